"""The terminal: one bash for a whole session, on a terminal of its own in a jail, driven command by command. What it may reach is jail.py.

Why a terminal (pty) and not pipes: programs then print line by line, ask what they would ask a person, and a C-c goes where the kernel
sends it, to what runs in the foreground. Commands reach bash on a descriptor of their own, and bash reports the end of each (number,
exit code, directory) between control characters beside a secret that it got at its start: printing something that looks like a
report does not make one. A command that reads the shell's own variables can forge it, and deceives only itself: verdicts never rest on it.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import termios
import time
from contextlib import suppress
from dataclasses import dataclass

from sandbox.terminal.bubblewrap import HOME
from sandbox.terminal.jail import Jail, JailProcess
from sandbox.terminal.output import Capture
from warehouse.core.errors import SandboxError, SandboxTimeout

READ_BYTES = 1 << 16
SHELL = ("/bin/bash", "--noprofile", "--rcfile", "/etc/terminal.sh", "--noediting", "-i")
START_TIMEOUT_S = 20.0
TELL_TIMEOUT_S = 10.0
STUBBORN_AFTER = 3
"""A command that lives on after so many C-c in a row is killed."""
IDLE_BYTES_PER_S = 1 << 20
"""What programs may print between calls; beyond, they wait, as on a terminal that nobody reads."""
MAX_REPORT_BYTES = 8192
KEYS = {"C-c": b"\x03", "C-d": b"\x04"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalLimits:
    """How long a call waits and how much it returns."""

    wait_s: float = 10.0
    """A call returns after so long, whether or not its command has ended."""
    command_s: float = 600.0
    """A command in the foreground is killed after so long, whether a call waits for it or not, if need be with the shell. What runs in
    the background goes on."""
    output_chars: int = 8000
    """Of one call, half of them from its beginning and half from its end."""
    printed_mib: int = 64
    """A command in the foreground that prints more is killed by the call that waits; between calls it is held back instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a call gave. `exit_code` is None where a command still runs, or none did."""

    output: str
    note: str
    exit_code: int | None = None
    is_running: bool = False
    is_error: bool = False
    """The call was refused: nothing was done."""

    @property
    def text(self) -> str:
        """As the agent reads it: what was printed, then a line about how it ended."""
        if self.is_error:
            return f"error: {self.note}"
        gap = "" if not self.output or self.output.endswith("\n") else "\n"
        return f"{self.output}{gap}[{self.note}]"


class Terminal:
    """One bash of a jail. Calls come one after another; a call that comes while another waits is refused."""

    def __init__(self, jail: Jail, limits: TerminalLimits | None = None) -> None:
        self._jail = jail
        self._limits = limits or TerminalLimits()
        self._loop = asyncio.get_running_loop()
        self._capture = Capture(self._limits.output_chars)
        self._shell: JailProcess | None = None
        self._master = self._commands = -1
        self._nonce = ""
        self._report = re.compile(b"")
        self._unread = b""
        self._number = 0
        self._ended: asyncio.Future[int] | None = None
        """Of the command that runs: its exit code."""
        self._started_s = 0.0
        self._overdue: asyncio.TimerHandle | None = None
        self._killer: asyncio.Task[None] | None = None
        """Ends a command that is overdue."""
        self._num_interrupts = 0
        self._num_idle_bytes = 0
        self._is_busy = self._is_closed = False
        self._news = ""
        self.cwd = HOME

    @classmethod
    async def open(cls, jail: Jail, limits: TerminalLimits | None = None) -> Terminal:
        """Raises SandboxError."""
        terminal = cls(jail, limits)
        await terminal._start()
        return terminal

    @property
    def is_running(self) -> bool:
        """Whether a command runs in the foreground, as far as was read."""
        return self._ended is not None and not self._ended.done()

    async def execute(self, command: str, *, wait_s: float | None = None) -> Result:
        """Run a command; "" reads what more was printed, "C-c" interrupts, "C-d" ends the input of what runs. Raises SandboxError."""
        if self._is_busy:
            return Result(output="", note="the terminal is in use by another call", is_error=True)
        self._is_busy = True
        try:
            return await self._execute(command, self._limits.wait_s if wait_s is None else wait_s)
        finally:
            self._is_busy = False

    async def _execute(self, command: str, wait_s: float) -> Result:
        self._check_killer()
        if self._shell is None or self._shell.exit_code is not None:
            await self._restart()
        self._listen()
        self._catch_up()
        stripped = command.strip()
        if not stripped or stripped in KEYS:
            if self._ended is None:
                return Result(output=self._capture.take(), note=f"{self._said()}no command is running")
            if stripped and not self._ended.done():
                await self._press(stripped)
            return await self._outcome(wait_s)
        if self._ended is not None and self._ended.done():
            self._news += f"the command before ended with exit code {self._ended.result()}; "
            self._ended = None
        if self._ended is not None:
            note = (
                f"a command still runs (for {time.monotonic() - self._started_s:.0f} s), and this terminal runs one at a time: "
                "read more of its output with an empty command, interrupt it with C-c, or start such commands with & at the end"
            )
            return Result(output="", note=note, is_error=True)
        if "\0" in command:
            return Result(output="", note="a command cannot hold a NUL character", is_error=True)
        await self._send(command)
        return await self._outcome(wait_s)

    async def _send(self, command: str) -> None:
        """Hand bash a command, and put the terminal right, whatever the last program did to it."""
        self._number += 1
        self._ended = self._loop.create_future()
        self._started_s = time.monotonic()
        self._forget_time()
        if self._shell is not None:
            self._overdue = self._loop.call_later(self._limits.command_s, self._on_overdue, self._shell, self._ended)
        self._num_interrupts = 0
        attributes = termios.tcgetattr(self._master)
        attributes[1] &= ~termios.OPOST
        attributes[3] = (attributes[3] | termios.ISIG | termios.ICANON | termios.NOFLSH) & ~termios.ECHO
        termios.tcsetattr(self._master, termios.TCSANOW, attributes)
        await self._write(self._master, b'__shell_next; eval "$__shell_command"\n')
        await self._write(self._commands, f"{self._number};{command}\0".encode(errors="replace"))

    async def _write(self, fd: int, data: bytes) -> None:
        """All of it, unless bash dies or does not read: then the reader of the answer finds out."""
        view, deadline = memoryview(data), time.monotonic() + TELL_TIMEOUT_S
        while view and time.monotonic() < deadline:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:  # bash reads byte by byte
                if self._shell is None or self._shell.exit_code is not None:
                    return
                await asyncio.sleep(0.002)
            except OSError:
                return

    async def _press(self, key: str) -> None:
        await self._write(self._master, KEYS[key])
        self._num_interrupts = self._num_interrupts + 1 if key == "C-c" else 0
        if self._num_interrupts >= STUBBORN_AFTER and self._shell is not None:
            await self._shell.kill(signal.SIGKILL, "foreground")
            self._news = f"it did not obey {STUBBORN_AFTER} C-c and was killed; "

    async def _outcome(self, wait_s: float) -> Result:
        """Wait for the command's end, the shell's end, or until it is time to return."""
        ended, shell = self._ended, self._shell
        if ended is None or shell is None:
            return Result(output=self._capture.take(), note="no command is running")
        deadline = time.monotonic() + wait_s
        while not ended.done() and shell.exit_code is None and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait([ended, shell.ended], timeout=min(left, 0.25), return_when=asyncio.FIRST_COMPLETED)
            await self._enforce(shell)
        if ended.done():
            self._ended = None
            place = "" if self.cwd == HOME else f", in {self.cwd}"
            return Result(output=self._capture.take(), note=f"{self._said()}exit code {ended.result()}{place}", exit_code=ended.result())
        if shell.exit_code is not None:
            return await self._after_death(shell.exit_code)
        note = f"{self._said()}still running after {time.monotonic() - self._started_s:.0f} s; an empty command reads more, C-c interrupts"
        return Result(output=self._capture.take(), note=note, is_running=True)

    async def _enforce(self, shell: JailProcess) -> None:
        """Kill a command that prints without end."""
        self._check_killer()
        if self._killer is None and self._capture.num_bytes > self._limits.printed_mib << 20:
            self._news = f"killed: it printed more than {self._limits.printed_mib} MiB; "
            await self._shoot(shell)

    def _on_overdue(self, shell: JailProcess, ended: asyncio.Future[int]) -> None:
        if not ended.done() and not shell.ended.done():
            self._news = f"killed: it ran longer than {self._limits.command_s:g} s; "
            self._killer = self._loop.create_task(self._kill(shell, ended))

    async def _kill(self, shell: JailProcess, ended: asyncio.Future[int]) -> None:
        """Until the command has ended. A loop of the shell's own may start the next program whenever one is killed: then the shell goes."""
        num_shots = 0
        while not ended.done() and not shell.ended.done():
            num_shots += 1
            await (self._shoot(shell) if num_shots <= STUBBORN_AFTER else shell.kill(signal.SIGKILL, "process"))
            await asyncio.wait([ended, shell.ended], timeout=0.25, return_when=asyncio.FIRST_COMPLETED)

    def _check_killer(self) -> None:
        """Raises JailCrashed, SandboxTimeout where an overdue command could not be killed."""
        if self._killer is not None and self._killer.done():
            self._killer.result()

    def _forget_time(self) -> None:
        """Of the command before."""
        if self._overdue is not None:
            self._overdue.cancel()
        if self._killer is not None:
            self._killer.cancel()
        self._overdue = self._killer = None

    async def _shoot(self, shell: JailProcess) -> None:
        """First as C-c does, which ends a loop of the shell's own too; then what is left of it."""
        with suppress(OSError):
            os.write(self._master, KEYS["C-c"])
        await asyncio.sleep(0.05)
        if self._ended is not None and not self._ended.done():
            await shell.kill(signal.SIGKILL, "foreground")

    def _said(self) -> str:
        news, self._news = self._news, ""
        return news

    async def _after_death(self, exit_code: int) -> Result:
        self._catch_up()
        output, self._ended = self._capture.take(), None
        await self._start_again()
        how = f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"
        note = f"{self._said()}the shell ended ({how}) and a new one was started: directory, variables and functions are as at first"
        return Result(output=output, note=note, exit_code=exit_code if exit_code >= 0 else 128 - exit_code)

    async def _restart(self) -> None:
        """For a shell that died between two calls, as when a background program killed it."""
        self._ended = None
        await self._start_again()
        self._news += "the shell had ended and a new one was started, as at first; "

    async def _start_again(self) -> None:
        """Where none can be started, because what runs in the background has taken all processes, or ends or stops each new one, that is
        ended first. Raises SandboxTimeout where it is not to blame."""
        deadline = time.monotonic() + START_TIMEOUT_S
        was_ended = False
        while True:
            try:
                return await self._start()
            except OSError as error:
                is_late = isinstance(error, SandboxTimeout) or time.monotonic() > deadline
                if isinstance(error, SandboxError) and not isinstance(error, SandboxTimeout):
                    raise
                if is_late and was_ended:
                    raise SandboxTimeout(f"A shell could not be restarted within {START_TIMEOUT_S:g} s: {error}.") from error
            was_ended = True
            await self._jail.end_processes()
            self._news = "everything in the background was killed, because no other process could be started; "
            await asyncio.sleep(0.02)  # until the dead are gone

    async def _start(self) -> None:
        """Raises OSError where the jail has no process to spare or the shell was ended at once, SandboxError."""
        self._drop()
        self._shell = None
        reading, writing = os.pipe()
        try:
            shell = await self._jail.spawn(SHELL, tty=True, fds=[reading])
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        self._commands = writing
        os.set_blocking(writing, False)
        (self._master,) = shell.take_streams()
        self._shell, self.cwd, self._number, self._unread = shell, HOME, 0, b""
        self._nonce = secrets.token_hex(16)
        self._report = re.compile(rb"\x1e" + self._nonce.encode() + rb";(\d+);(\d+);(.*?)\x1e", re.DOTALL)
        self._ended = self._loop.create_future()
        self._listen()
        await self._write(self._commands, f"{self._nonce}\0".encode())
        await asyncio.wait([self._ended, shell.ended], timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not self._ended.done():
            if shell.ended.done():
                raise ChildProcessError("the shell was ended as it started")
            raise SandboxTimeout(f"A shell did not start within {START_TIMEOUT_S:g} s. Is the machine overloaded?")
        self._ended = None

    def _catch_up(self) -> None:
        """Read what is there by now; not without end, for programs in the background may print as fast as we read."""
        for _ in range(64):
            if not self._receive():
                return

    def _listen(self) -> None:
        self._num_idle_bytes = 0
        self._loop.add_reader(self._master, self._receive)

    def _receive(self) -> bool:
        """Take what was printed, if anything was; look for the report that ends the command."""
        try:
            data = os.read(self._master, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # nobody is left at the other end
            data = b""
        if not data:
            self._loop.remove_reader(self._master)
            return False
        self._unread += data
        while found := self._report.search(self._unread):
            self._capture.add(self._unread[: found.start()])
            self._unread = self._unread[found.end() :]
            if int(found[1]) == self._number and self._ended is not None and not self._ended.done():
                self.cwd = found[3].decode(errors="replace")
                self._ended.set_result(int(found[2]))
        start = self._unread.rfind(b"\x1e")
        keep = start if start >= 0 and len(self._unread) - start < MAX_REPORT_BYTES else len(self._unread)
        self._capture.add(self._unread[:keep])
        self._unread = self._unread[keep:]
        self._num_idle_bytes += 0 if self._is_busy else len(data)
        if self._num_idle_bytes > IDLE_BYTES_PER_S:
            self._loop.remove_reader(self._master)
            self._loop.call_later(1.0, self._resume, self._master)
        return True

    def _resume(self, master: int) -> None:
        if master == self._master and not self._is_closed:
            self._listen()

    def _drop(self) -> None:
        self._forget_time()
        if self._master >= 0:
            self._loop.remove_reader(self._master)
            os.close(self._master)
            os.close(self._commands)
            self._master = self._commands = -1

    async def close(self) -> None:
        """The shell ends with its jail; this lets go of it. May be called twice."""
        self._is_closed = True
        killer = self._killer
        self._drop()
        if killer is not None:
            await asyncio.gather(killer, return_exceptions=True)
