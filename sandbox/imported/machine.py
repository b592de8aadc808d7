"""What a goal may ask of the machine that an episode ran on: the Machine protocol, and what satisfies it in a terminal and on a desktop."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal, Protocol

from sandbox.desktop.desktop import Desktop
from sandbox.terminal.tasks import Probe
from warehouse.errors import SandboxError

COMMAND_LIMIT_S = 30.0
PathKind = Literal["file", "folder", "executable", "absent"]
Command = str | tuple[str, ...]
TERMINAL_HOME, DESKTOP_HOME = PurePosixPath("/workspace"), PurePosixPath("/home/user")

_LOOK = 'if [ -d "$1" ]; then echo folder; elif [ -x "$1" ]; then echo executable; elif [ -e "$1" ]; then echo file; else echo absent; fi'


class Machine(Protocol):
    async def read(self, path: str) -> bytes | None:
        """What a file holds; None where there is no such file, or it may not be read."""
        ...

    async def path_kind(self, path: str) -> PathKind:
        """What is at a path; a file that may be run is `executable`."""
        ...

    async def run(self, command: Command) -> tuple[int, str, str]:
        """Exit code, output and errors of a command in the home folder; a text is run by bash."""
        ...


def words(command: Command) -> list[str]:
    """A command as a program and its arguments."""
    return ["/bin/bash", "--noprofile", "--norc", "-c", command] if isinstance(command, str) else list(command)


class TerminalMachine:
    """A terminal's workspace and jail. Its commands' errors come with their output."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    async def read(self, path: str) -> bytes | None:
        try:
            return self._probe.jail.workspace.read(path)
        except SandboxError:
            raise
        except OSError:
            return None

    async def path_kind(self, path: str) -> PathKind:
        entry = self._probe.jail.workspace.look(path)
        if entry is None:
            return "absent"
        if entry.kind == "folder":
            return "folder"
        return "executable" if entry.mode & 0o100 else "file"

    async def run(self, command: Command) -> tuple[int, str, str]:
        try:
            done = await self._probe.jail.run(words(command), timeout_s=COMMAND_LIMIT_S)
        except SandboxError:
            raise
        except OSError:  # the agent has used up its processes
            return 126, "", ""
        output = done.output.decode(errors="replace")
        return (124 if done.exit_code is None else done.exit_code), output, output


class DesktopMachine:
    """A desktop's home folder and the programs that run beside its applications. Paths outside of the home are read by a program."""

    def __init__(self, desktop: Desktop) -> None:
        self._desktop = desktop

    async def read(self, path: str) -> bytes | None:
        inside = relative(path, DESKTOP_HOME)
        if inside is not None:
            return await self._desktop.get_file(PurePosixPath(inside))
        done = await self._desktop.run(["/bin/cat", "--", path], timeout_s=COMMAND_LIMIT_S)
        return done.stdout.encode() if done.exit_code == 0 else None

    async def path_kind(self, path: str) -> PathKind:
        told = await self._desktop.run(["/bin/bash", "-c", _LOOK, "look", path], timeout_s=COMMAND_LIMIT_S)
        kinds: dict[str, PathKind] = {"folder": "folder", "executable": "executable", "file": "file"}
        return kinds.get(told.stdout.strip(), "absent")

    async def run(self, command: Command) -> tuple[int, str, str]:
        done = await self._desktop.run(words(command), timeout_s=COMMAND_LIMIT_S)
        return done.exit_code, done.stdout, done.stderr


def relative(path: str, home: PurePosixPath) -> str | None:
    """A path below the home folder, as its desktops and workspaces name it; None for one outside."""
    whole = PurePosixPath(path.replace("~", str(home), 1) if path.startswith("~/") else path)
    if whole.is_absolute():
        if not whole.is_relative_to(home):
            return None
        whole = whole.relative_to(home)
    return None if ".." in whole.parts or not whole.parts else str(whole)
