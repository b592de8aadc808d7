"""Several hosts on one machine: a network namespace each, with an address and a loopback of its own, joined by a switch that leads nowhere
else. For tests and benchmarks of work on many machines; needs Linux, root and iproute2.

    with Hosts(3) as (head, one, two):
        server = one.start(["python", "-m", "http.server", "--bind", one.address])
        one.cut(); one.restore(); one.kill()
        TrainingHosts(hosts=(head.address, one.address), launch=head.launch)

What is not separate: processors, memory, files and the clock. Whether a machine can do this, `can_make_hosts` says.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

NETWORK = "10.77.0"
"""First three numbers of the addresses. Each `Hosts` has a switch of its own, so that several may use the same."""
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def can_make_hosts() -> bool:
    """Whether this process may make network namespaces, tried by making one."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        return False
    name = f"flywheel-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        _ip("netns", "del", name)
    return made


class Host:
    """One of `Hosts`. `address`: where what it starts can listen for the other hosts."""

    def __init__(self, name: str, address: str, switch: str, port: str) -> None:
        self.name, self.address = name, address
        self._switch, self._port = switch, port
        self._enter = ("nsenter", f"--net=/run/netns/{name}")
        """Not `ip netns exec`, which mounts another /sys, without control groups."""
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        output: Path | IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """A process on the host, first of a process group of its own. `output`: a file that its stdout and stderr are appended to."""
        if isinstance(output, Path):
            with output.open("ab") as file:
                return self.start(command, env=env, cwd=cwd, output=file)
        process = subprocess.Popen(
            [*self._enter, *map(str, command)],
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def has_ended(self) -> bool:
        """Whether none of what was started here runs any more."""
        return all(process.poll() is not None for process in self._started)

    def run(self, command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
        """`subprocess.run` on the host; raises CalledProcessError unless `check=False`."""
        options = {"check": True, "text": True, "capture_output": True, **options}
        return subprocess.run([*self._enter, *map(str, command)], **options)

    @property
    def launch(self) -> str:
        """A `training.launch` that reaches all of its `Hosts`: a namespace's name ends with the last number of its address."""
        namespace = f"/run/netns/{self.name.rpartition('-')[0]}-${{0##*.}}"
        return f"""sh -c 'exec nsenter --net={namespace} sh -c "$1"' {{host}} {{command}}"""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Sockets that this thread opens within the block are the host's. Threads and processes started within it are its as well."""
        with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{self.name}") as there:
            _set_namespace(there.fileno())
            try:
                yield
            finally:
                _set_namespace(before.fileno())

    def cut(self) -> None:
        """Take its link down: nothing gets in or out, and nobody is notified."""
        _ip("-n", self._switch, "link", "set", self._port, "down")

    def restore(self) -> None:
        """Take its link up again: packets pass at once, and connections that waited go on when they next send, seconds later."""
        _ip("-n", self._switch, "link", "set", self._port, "up")

    def pids(self) -> list[int]:
        """Of all processes whose network is the host's."""
        return [int(pid) for pid in _ip("netns", "pids", self.name).split()]

    def kill(self) -> None:
        """`kill -9` of everything on the host at once."""
        for _ in range(20):
            pids = [pid for pid in self.pids() if pid != os.getpid()]
            if not pids:
                break
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()
        self._started.clear()


class Hosts:
    """So many hosts, numbered from 1 in their addresses, until the block ends; then everything on them is killed."""

    _num_made = 0

    def __init__(self, num_hosts: int) -> None:
        Hosts._num_made += 1
        self._prefix = f"flywheel-{os.getpid()}-{Hosts._num_made}"
        self._num_hosts = num_hosts
        self.hosts: list[Host] = []

    def __enter__(self) -> list[Host]:
        try:
            switch = f"{self._prefix}-switch"
            _ip("netns", "add", switch)
            _ip("-n", switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", switch, "link", "set", "switch", "up")
            for number in range(1, self._num_hosts + 1):
                self.hosts.append(self._add(number, switch))
        except BaseException:
            self._remove()
            raise
        return self.hosts

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _add(self, number: int, switch: str) -> Host:
        name, port, address = f"{self._prefix}-{number}", f"port{number}", f"{NETWORK}.{number}"
        _ip("netns", "add", name)
        _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", switch, "link", "set", port, "master", "switch", "up")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        return Host(name, address, switch, port)

    def _remove(self) -> None:
        for host in self.hosts:
            host.kill()
        self.hosts.clear()
        for path in Path("/run/netns").glob(f"{self._prefix}-*"):
            _ip("netns", "del", path.name)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip() or done.returncode}. Hosts need root and iproute2.")
    return done.stdout


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
