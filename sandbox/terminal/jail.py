"""A jail: bubblewrap around one session's programs and files. What holds which attempt to get out is listed in docs/isolation.md.

Programs in a jail see a read-only /usr, an /etc of ours, a workspace and /tmp in memory (each of limited size), a process table and a
loopback network of their own, and no environment but what they are given. They run without capabilities as a user without privileges:
nobody where we are root, else ourselves. Process 1 of a jail is init.py; the host talks to it over one socket. When a jail is closed,
or whoever made it dies, the kernel ends every process in it and its files are gone with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sandbox.browser.scratch import browser_user
from sandbox.terminal.cgroups import Cgroup
from sandbox.terminal.control import Control
from sandbox.terminal.seccomp import filter_program
from sandbox.terminal.workspace import Workspace
from warehouse.errors import BubblewrapMissing, JailCrashed, SandboxTimeout

HOME = "/workspace"
UID = 1000
INIT = Path(__file__).with_name("init.py").read_text(encoding="utf-8")
SHELL_START = Path(__file__).with_name("shell.sh").read_text(encoding="utf-8")
START_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 10.0
PYTHON = "/usr/bin/python3"

ENVIRONMENT: Mapping[str, str] = {
    "HOME": HOME,
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/bash",
    "PATH": "/usr/bin:/bin:/usr/sbin:/sbin:/usr/games",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "TMPDIR": "/tmp",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""All that programs in a jail find in their environment."""

ETC: Mapping[str, str] = {
    "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:{UID}:{UID}:agent:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nagent:x:{UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "gitconfig": "[user]\n\tname = agent\n\temail = agent@sandbox\n[init]\n\tdefaultBranch = main\n[safe]\n\tdirectory = *\n",
    "terminal.sh": SHELL_START,
}
"""Files of a jail's /etc that are made here."""

LENT_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "mime.types", "magic", "perl")
"""Files of the host's /etc that programs need and that tell nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JailLimits:
    """What all of a jail together may use, unless a unit says otherwise. What is written to files counts as memory too."""

    processes: int = 128
    memory_mib: int = 1024
    cpus: float = 1.0
    cpu_s: int = 1800
    """Processor time of one process."""
    workspace_mib: int = 256
    scratch_mib: int = 64
    """/tmp and /dev/shm, each."""
    open_files: int = 512
    """Of one process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A program that was run to its end, or cut off (`exit_code` None). `output` is both its streams, at most the limit asked for."""

    exit_code: int | None
    output: bytes


class JailProcess:
    """A program that runs in a jail, with what it says and is told."""

    def __init__(self, control: Control, pid: int, streams: Sequence[int]) -> None:
        self.pid = pid
        """In the jail."""
        self.ended = control.exit_of(pid)
        """Done with the exit code when it has ended; for asyncio.wait, not to be cancelled."""
        self._control = control
        self._streams = list(streams)

    def take_streams(self) -> list[int]:
        """Our ends, non-blocking and from now on the caller's to close: of a terminal one, of pipes standard input and output."""
        streams, self._streams = self._streams, []
        return streams

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self.ended.result() if self.ended.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    async def kill(self, signum: int = signal.SIGKILL, *, foreground: bool = False) -> int:
        """Signal every process of its session, or only what runs in the foreground of its terminal; how many there were."""
        whom = "foreground" if foreground else "session"
        try:
            text, _ = await self._control.ask("signal", whom, str(self.pid), str(int(signum)))
        except OSError:  # it ended meanwhile
            return 0
        return int(text)

    def forget(self) -> None:
        for fd in self.take_streams():
            os.close(fd)


class Jail:
    """One jail. Made by `Jail.start`; its `workspace` can be used from the host while programs run in it."""

    def __init__(self, process: subprocess.Popen[bytes], limits: JailLimits, cgroup: Cgroup) -> None:
        self.limits = limits
        self._process, self._cgroup = process, cgroup
        self._init_fd = -1
        self._control: Control | None = None
        self._workspace: Workspace | None = None

    @classmethod
    async def start(cls, limits: JailLimits | None = None) -> Jail:
        """Raises BubblewrapMissing, JailCrashed or SandboxTimeout. Takes about 25 ms."""
        limits = limits or JailLimits()
        cgroup = Cgroup(memory_mib=limits.memory_mib, processes=limits.processes, cpus=limits.cpus)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        told, telling = os.pipe()
        held, releasing = os.pipe()
        contents = [_memory_file(text.encode()) for text in ETC.values()]
        contents.append(_memory_file(filter_program()))
        jail: Jail | None = None
        try:
            command = _command(limits, cgroup, theirs.fileno(), telling, held, contents)
            process = _launch(command, (theirs.fileno(), telling, held, *contents))
            jail = cls(process, limits, cgroup)
            for fd in (telling, held, *contents):
                os.close(fd)
            telling = held = -1
            contents = []
            theirs.close()
            async with asyncio.timeout(START_TIMEOUT_S):
                await jail._enter(ours, told, releasing)
            return jail
        except BaseException as error:
            if jail is None:
                cgroup.remove()
                ours.close()
            else:
                await jail.close()
            if isinstance(error, TimeoutError):
                raise SandboxTimeout(f"A jail did not start within {START_TIMEOUT_S:g} s. Is the machine overloaded?") from error
            raise
        finally:
            theirs.close()
            for fd in (told, telling, held, releasing, *contents):
                if fd >= 0:
                    os.close(fd)

    async def _enter(self, ours: socket.socket, told: int, releasing: int) -> None:
        """Put process 1 into its control group before it runs, let it run, and take what it hands out."""
        self._control = Control(ours)
        pid = await self._process_one(told)
        self._init_fd = os.pidfd_open(pid)
        self._cgroup.add(pid)
        os.write(releasing, b"1")
        workspace = await self._control.ready()
        self._workspace = Workspace(workspace, user=browser_user(), path=Path(f"/proc/{pid}/root{HOME}"))

    async def _process_one(self, told: int) -> int:
        os.set_blocking(told, False)
        text = b""
        while not text.endswith(b"}\n"):
            await _readable(told)
            part = os.read(told, 4096)
            if not part:
                raise self._failure()
            text += part
        return int(json.loads(text)["child-pid"])

    def _failure(self) -> JailCrashed | BubblewrapMissing:
        """What bubblewrap, which has ended, said last."""
        said = self._process.stderr.read().decode(errors="replace").strip() if self._process.stderr else ""
        if "namespace" in said or "ermission denied" in said:
            return BubblewrapMissing(
                f"bubblewrap may not make a jail here: {said[-300:]!r}. Allow user namespaces for this user or container; "
                "`flywheel doctor` tries it."
            )
        return JailCrashed(f"bubblewrap ended before the jail was up: {said[-300:]!r}. `flywheel doctor` tries it by itself.")

    @property
    def workspace(self) -> Workspace:
        """The files of the session."""
        if self._workspace is None:
            raise JailCrashed("The jail is closed; start another one.")
        return self._workspace

    @property
    def is_alive(self) -> bool:
        return self._control is not None and self._control.is_open

    @property
    def held_by(self) -> dict[str, str]:
        """What holds each limit: a control group, the size of a file system, or a resource limit, which counts each process by itself."""
        groups = self._cgroup.held
        return {
            "processes": groups.get("pids", "RLIMIT_NPROC, in a user namespace of its own"),
            "memory": groups.get("memory", "RLIMIT_AS, each process by itself"),
            "cpus": groups.get("cpu", "not held"),
            "cpu_s": "RLIMIT_CPU, each process by itself",
            "workspace": "size of its tmpfs",
            "scratch": "size of its tmpfs",
        }

    def memory_mib(self) -> float | None:
        """Used now by all processes and files of the jail; None where no control group counts it."""
        return self._cgroup.memory_mib()

    async def spawn(
        self, argv: Sequence[str], *, tty: bool = False, environment: Mapping[str, str] | None = None, cwd: str = HOME,
        fds: Sequence[int] = (), stderr: int | None = None,
    ) -> JailProcess:  # fmt: skip
        """Start a program (argv[0]: an absolute path) in a session of its own, on a new terminal or on pipes; its standard error goes
        where its output goes unless `stderr` is given. It gets `fds` as 250, 251 …. Raises OSError where the jail cannot start it, as when
        its process limit is reached; JailCrashed."""
        control = self._alive()
        given = [f"{name}={value}" for name, value in {**ENVIRONMENT, **(environment or {})}.items()]
        request = [cwd, "tty" if tty else "pipe", str(len(argv)), *argv, *given]
        if tty:
            pid, streams = await control.ask("spawn", *request, fds=fds)
            os.set_blocking(streams[0], False)
            return JailProcess(control, int(pid), streams)
        (their_input, our_input), (our_output, their_output) = os.pipe(), os.pipe()
        try:
            standard = [their_input, their_output, their_output if stderr is None else stderr]
            pid, _ = await control.ask("spawn", *request, fds=[*standard, *fds])
        except BaseException:
            os.close(our_input)
            os.close(our_output)
            raise
        finally:
            os.close(their_input)
            os.close(their_output)
        os.set_blocking(our_input, False)
        os.set_blocking(our_output, False)
        return JailProcess(control, int(pid), [our_input, our_output])

    async def run(
        self, argv: Sequence[str], *, given: bytes = b"", timeout_s: float = 30.0, limit_bytes: int = 1 << 20, cwd: str = HOME,
        environment: Mapping[str, str] | None = None,
    ) -> Completed:  # fmt: skip
        """Run a program to its end on pipes; after `timeout_s` it and its children are killed. Raises OSError, JailCrashed as spawn does."""
        process = await self.spawn(argv, cwd=cwd, environment=environment)
        giving, taking = process.take_streams()
        writer = asyncio.ensure_future(_write_all(giving, given))
        output = bytearray()
        try:
            async with asyncio.timeout(timeout_s):
                await _read_all(taking, output, limit_bytes)
                return Completed(exit_code=await process.wait(), output=bytes(output))
        except TimeoutError:
            await process.kill()
            return Completed(exit_code=None, output=bytes(output))
        finally:
            writer.cancel()
            with suppress(asyncio.CancelledError):
                await writer
            os.close(taking)

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to what listens on a TCP port of the jail's loopback. Raises ConnectionRefusedError where nothing does.

        The socket is made inside, handed out, and connected from here: nothing inside forwards, so nothing inside can be turned round."""
        loop = asyncio.get_running_loop()
        for family, address in (("4", "127.0.0.1"), ("6", "::1")):
            _, fds = await self._alive().ask("socket", family)
            made = socket.socket(fileno=fds[0])
            made.setblocking(False)
            try:
                await loop.sock_connect(made, (address, port))
                return await asyncio.open_connection(sock=made)
            except OSError:
                made.close()
        raise ConnectionRefusedError(f"Nothing listens on port {port} in the session's terminal.")

    def _alive(self) -> Control:
        if self._control is None:
            raise JailCrashed("The jail is closed; start another one.")
        return self._control

    async def close(self) -> None:
        """End every process in the jail and drop its files. May be called twice."""
        control, self._control = self._control, None
        workspace, self._workspace = self._workspace, None
        if workspace is not None:
            workspace.close()
        if self._init_fd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)
            os.close(self._init_fd)
            self._init_fd = -1
        elif self._process.poll() is None:
            self._process.kill()
        if control is not None:
            control.close()
        await _ended(self._process)
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._cgroup.remove()


@lru_cache(maxsize=1)
def find_bubblewrap() -> str:
    """Raises BubblewrapMissing."""
    program = shutil.which("bwrap")
    if program is None:
        raise BubblewrapMissing("bwrap is not installed: terminals need it (Linux only). On Debian, as root: apt-get install bubblewrap.")
    return program


def _command(limits: JailLimits, cgroup: Cgroup, control: int, telling: int, held: int, contents: Sequence[int]) -> list[str]:
    """bubblewrap's command line. The order of mounts counts: what comes later lies on top."""
    scratch = str(limits.scratch_mib << 20)
    mounts = ["--ro-bind", "/usr", "/usr", "--tmpfs", "/usr/local"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if Path("/", name).is_symlink():
            mounts += ["--symlink", f"usr/{name}", f"/{name}"]
        elif Path("/", name).is_dir():
            mounts += ["--ro-bind", f"/{name}", f"/{name}"]
    mounts += ["--perms", "0755", "--dir", "/etc"]
    for name in LENT_ETC:
        mounts += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name, fd in zip(ETC, contents, strict=False):
        mounts += ["--perms", "0644", "--ro-bind-data", str(fd), f"/etc/{name}"]
    mounts += ["--proc", "/proc", "--dev", "/dev", "--size", scratch, "--tmpfs", "/dev/shm", "--perms", "1777", "--size", scratch]
    mounts += ["--tmpfs", "/tmp", "--size", str(limits.workspace_mib << 20), "--tmpfs", HOME]
    for place in ("/usr/local", "/dev", "/"):
        mounts += ["--remount-ro", place]
    address_mib = -1 if "memory" in cgroup.held else limits.memory_mib
    settings = (control, limits.processes, limits.workspace_mib, limits.open_files, limits.cpu_s, address_mib)
    return [
        find_bubblewrap(), "--unshare-user", "--unshare-all", "--disable-userns", "--uid", str(UID), "--gid", str(UID), "--cap-drop", "ALL",
        "--as-pid-1", "--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv", *mounts, "--chdir", HOME,
        "--seccomp", str(contents[-1]), "--info-fd", str(telling), "--block-fd", str(held),
        PYTHON, "-ISc", INIT, *map(str, settings),
    ]  # fmt: skip


def _launch(command: Sequence[str], fds: Sequence[int]) -> subprocess.Popen[bytes]:
    user = browser_user()
    other: dict[str, Any] = {} if user.is_us else {"user": user.uid, "group": user.gid, "extra_groups": []}
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=fds, cwd="/", env={}, **other
        )
    except FileNotFoundError as error:
        find_bubblewrap.cache_clear()
        raise BubblewrapMissing(f"{command[0]} has gone: on Debian, as root: apt-get install bubblewrap.") from error


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("jail")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for bubblewrap, which ends when process 1 and everything below it have. Raises SandboxTimeout."""
    if process.poll() is not None:
        return
    fd = os.pidfd_open(process.pid)
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await _readable(fd)
    except TimeoutError as error:
        raise SandboxTimeout(f"A jail was killed, but still runs after {CLOSE_TIMEOUT_S:g} s (bubblewrap is process {process.pid}).") from error
    finally:
        os.close(fd)
    process.wait()


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def _writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(fd)


async def _write_all(fd: int, content: bytes) -> None:
    """Write, then close."""
    view = memoryview(content)
    try:
        while view:
            await _writable(fd)
            view = view[os.write(fd, view) :]
    except (BrokenPipeError, BlockingIOError):
        pass  # it does not want to read
    finally:
        os.close(fd)


async def _read_all(fd: int, output: bytearray, limit_bytes: int) -> None:
    """Until everyone who could write has closed; beyond the limit what is read is dropped."""
    while True:
        await _readable(fd)
        part = os.read(fd, 1 << 16)
        if not part:
            return
        output += part[: max(0, limit_bytes - len(output))]
