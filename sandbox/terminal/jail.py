"""A jail: bubblewrap around one session's programs and files. What holds which attempt to get out is listed in docs/isolation.md.

Programs in a jail see a read-only /usr, an /etc of ours, a workspace and /tmp in memory (each of limited size), a process table and a
loopback network of their own, and no environment but what they are given. They run without capabilities as a user without privileges:
nobody where we are root, else ourselves. Process 1 of a jail is init.py; the host talks to it over one socket. When a jail is closed,
or the process that made it dies, the kernel ends every process in it and its files are gone with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandbox.browser.isolation.scratch import browser_user
from sandbox.terminal.bubblewrap import (
    ENVIRONMENT,
    HOME,
    JailLimits,
    Places,
    command_line,
    find_bubblewrap,
    launch,
    memory_files,
    open_files,
)
from sandbox.terminal.cgroups import Cgroup
from sandbox.terminal.control import Control
from sandbox.terminal.descriptors import read_all, read_rest, readable, write_all
from sandbox.terminal.workspace import Workspace
from warehouse.core.errors import BubblewrapMissing, FlywheelError, JailCrashed, SandboxError, SandboxTimeout
from warehouse.core.machine import shortage

START_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
END_TIMEOUT_S, END_POLL_S = 10.0, 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A program that was run to its end, or cut off (`exit_code` None). `output` is both its streams, at most the limit asked for."""

    exit_code: int | None
    output: bytes


class JailProcess:
    """A program that runs in a jail, with its output and input."""

    def __init__(self, control: Control, pid: int, streams: Sequence[int]) -> None:
        self.pid = pid
        """In the jail."""
        self.ended = control.exit_of(pid)
        """Done with the exit code when it has ended, or with JailCrashed; for asyncio.wait, not to be cancelled."""
        self._control = control
        self._streams = list(streams)

    def take_streams(self) -> list[int]:
        """Our ends, non-blocking and from now on the caller's to close: of a terminal one, of pipes standard input and output."""
        streams, self._streams = self._streams, []
        return streams

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it. Raises JailCrashed where it ended with its jail."""
        return self.ended.result() if self.ended.done() else None

    async def wait(self) -> int:
        """Its exit code. Raises JailCrashed."""
        return await asyncio.shield(self.ended)

    async def kill(self, signum: int = signal.SIGKILL, whom: Literal["process", "session", "foreground"] = "session") -> int:
        """Signal it alone, every process of its session, or what runs in the foreground of its terminal; how many there were. Raises
        JailCrashed, SandboxTimeout."""
        try:
            text, _ = await self._control.ask("signal", whom, str(self.pid), str(int(signum)))
        except SandboxError:
            raise
        except OSError:  # it ended meanwhile
            return 0
        return int(text)


class Jail:
    """One jail. Made by `Jail.start`; its `workspace` can be used from the host while programs run in it."""

    def __init__(self, process: subprocess.Popen[bytes], limits: JailLimits, cgroup: Cgroup) -> None:
        self.limits = limits
        self._process, self._cgroup = process, cgroup
        self._init_fd = -1
        self._control: Control | None = None
        self._workspace: Workspace | None = None

    @classmethod
    async def start(
        cls,
        limits: JailLimits | None = None,
        *,
        lent: Mapping[str, Path] | None = None,
        links: Mapping[str, str] | None = None,
        scratch: Sequence[str] = (),
    ) -> Jail:
        """`lent`: folders of the host that programs find there, read-only; the jail's user must be able to read them. `links`: symbolic
        links by their place. `scratch`: more folders that can be written to, each of the size of /tmp. Raises
        BubblewrapMissing, JailCrashed or SandboxTimeout; MachineLimit or StorageFull where the machine gives too little. Takes some tens of
        milliseconds."""
        try:
            return await cls._start(limits or JailLimits(), Places(lent=lent or {}, links=links or {}, scratch=scratch))
        except (OSError, MemoryError) as error:
            if isinstance(error, FlywheelError) or (found := shortage(error)) is None:
                raise
            raise found from error

    @classmethod
    async def _start(cls, limits: JailLimits, places: Places) -> Jail:
        open_files(limits)
        find_bubblewrap()  # before anything is asked of a kernel that may not be Linux
        cgroup = Cgroup(memory_mib=limits.memory_mib, processes=limits.processes, cpus=limits.cpus)
        with ExitStack() as given, ExitStack() as kept, ExitStack() as on_failure:
            on_failure.callback(cgroup.remove)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            on_failure.callback(ours.close)
            given.callback(theirs.close)
            status_read, status_write = os.pipe()
            kept.callback(os.close, status_read)
            given.callback(os.close, status_write)
            held, releasing = os.pipe()
            kept.callback(os.close, releasing)
            given.callback(os.close, held)
            contents = []
            for fd in memory_files(limits.network):
                given.callback(os.close, fd)
                contents.append(fd)
            command = command_line(limits, control=theirs.fileno(), telling=status_write, held=held, contents=contents, places=places)
            process = launch(command, (theirs.fileno(), status_write, held, *contents))
            jail = cls(process, limits, cgroup)
            on_failure.pop_all()
            given.close()
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    await jail._enter(ours, status_read, releasing)
                return jail
            except BaseException as error:
                await jail.close()
                if isinstance(error, TimeoutError) and not isinstance(error, SandboxError):
                    raise SandboxTimeout(f"A jail did not start within {START_TIMEOUT_S:g} s. Is the machine overloaded?") from error
                raise

    async def _enter(self, ours: socket.socket, status_read: int, releasing: int) -> None:
        """Put process 1 into its control group before it runs, let it run, and take what it hands out."""
        self._control = Control(ours)
        try:
            pid = await self._process_one(status_read)
            self._init_fd = os.pidfd_open(pid)
            self._cgroup.add(pid)
            address_mib = -1 if "memory" in self._cgroup.held else self.limits.memory_mib
            self._control.send(str(address_mib))  # only now is it known whether the group took the process
            os.write(releasing, b"1")
            workspace = await self._control.ready()
        except (EOFError, ProcessLookupError, BrokenPipeError, JailCrashed) as error:
            raise await self._failure() from error
        self._workspace = Workspace(workspace, user=browser_user())

    @staticmethod
    async def _process_one(status_read: int) -> int:
        """Its process id outside of the jail, as bubblewrap reports it."""
        os.set_blocking(status_read, False)
        text = b""
        while not text.endswith(b"}\n"):
            await readable(status_read)
            part = os.read(status_read, 4096)
            if not part:
                raise EOFError("bubblewrap ended")
            text += part
        return int(json.loads(text)["child-pid"])

    async def _failure(self) -> JailCrashed | BubblewrapMissing:
        """What bubblewrap, which has ended, said last."""
        await _ended(self._process)
        said = self._process.stderr.read().decode(errors="replace").strip() if self._process.stderr else ""
        if any(sign in said for sign in ("namespace", "ermission denied", "not permitted")):
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
    def pid(self) -> int:
        """bubblewrap's; everything in the jail descends from it."""
        return self._process.pid

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
            "open_files": f"RLIMIT_NOFILE, {open_files(self.limits)} in each process",
            "workspace": "size of its tmpfs",
            "scratch": "size of its tmpfs",
        }

    def memory_mib(self) -> float | None:
        """Used now by all processes and files of the jail; None where no control group counts it."""
        return self._cgroup.memory_mib()

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        tty: bool = False,
        environment: Mapping[str, str] | None = None,
        cwd: str = HOME,
        fds: Sequence[int] = (),
        stderr: int | None = None,
    ) -> JailProcess:
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

    async def kill_all(self) -> None:
        """End every process in the jail but process 1. Raises JailCrashed."""
        await self._alive().ask("signal", "all", "0", str(int(signal.SIGKILL)))

    async def end_processes(self) -> None:
        """`kill_all`, and wait until they are gone. Raises JailCrashed, SandboxTimeout."""
        await self.kill_all()
        deadline = time.monotonic() + END_TIMEOUT_S
        while (await self._alive().ask("signal", "all", "0", "0"))[0] != "0":
            if time.monotonic() > deadline:
                raise SandboxTimeout(f"Processes of a jail were killed, but are still there after {END_TIMEOUT_S:g} s.")
            await asyncio.sleep(END_POLL_S)

    async def run(
        self,
        argv: Sequence[str],
        *,
        given: bytes = b"",
        timeout_s: float = 30.0,
        limit_bytes: int = 1 << 20,
        cwd: str = HOME,
        environment: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a program to its end on pipes; after `timeout_s` it and its children are killed. What it leaves running in the background
        goes on. Raises as spawn does."""
        process = await self.spawn(argv, cwd=cwd, environment=environment)
        giving, taking = process.take_streams()
        output = bytearray()
        writer = asyncio.ensure_future(write_all(giving, given))
        reader = asyncio.ensure_future(read_all(taking, output, limit_bytes))
        await asyncio.sleep(0)  # a task that is cancelled before its first step never closes what it was given
        try:
            async with asyncio.timeout(timeout_s):
                exit_code = await process.wait()
            read_rest(taking, output, limit_bytes)
            return Completed(exit_code=exit_code, output=bytes(output))
        except TimeoutError:
            await process.kill()
            return Completed(exit_code=None, output=bytes(output))
        finally:
            for task in (writer, reader):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            os.close(taking)

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to what listens on a TCP port of the jail's loopback. Raises ConnectionRefusedError where nothing does, JailCrashed,
        SandboxTimeout.

        The socket is made inside, handed out, and connected from here: nothing inside forwards, so nothing inside can be turned round."""
        if not 0 < port < 1 << 16:
            raise ConnectionRefusedError(f"{port} is not a TCP port: they go from 1 to 65535.")
        loop = asyncio.get_running_loop()
        for family, address in (("4", "127.0.0.1"), ("6", "::1")):
            _, fds = await self._alive().ask("socket", family)
            made = socket.socket(fileno=fds[0])
            made.setblocking(False)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await loop.sock_connect(made, (address, port))
                    return await asyncio.open_connection(sock=made)
            except OSError:  # a TimeoutError too: what listens takes nobody in
                made.close()
        raise ConnectionRefusedError(f"Nothing listens on port {port} in the session's terminal.")

    async def check(self) -> None:
        """Raises JailCrashed, SandboxTimeout where process 1 does not answer."""
        await self._alive().ask("signal", "session", "0", "0")  # to nobody

    def _alive(self) -> Control:
        if self._control is None:
            raise JailCrashed("The jail is closed; start another one.")
        return self._control

    async def close(self) -> None:
        """End every process in the jail and drop its files. May be called twice. Once begun it goes on, even where this is cancelled."""
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
        await asyncio.shield(self._clear_away())

    async def _clear_away(self) -> None:
        await _ended(self._process)
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._cgroup.remove()


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for bubblewrap, which ends when process 1 and everything below it have. Raises SandboxTimeout."""
    if process.poll() is not None:
        return
    fd = os.pidfd_open(process.pid)
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await readable(fd)
    except TimeoutError as error:
        raise SandboxTimeout(f"A jail was killed, but still runs after {CLOSE_TIMEOUT_S:g} s (its bubblewrap: {process.pid}).") from error
    finally:
        os.close(fd)
    process.wait()
