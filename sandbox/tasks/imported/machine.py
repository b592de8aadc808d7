"""What a goal may ask of the machine that an episode ran on: the Machine protocol, and what satisfies it in a terminal and on a desktop.
Files and programs are looked at as our own verifiers look: no link is followed, and programs read nothing of a home that the agent may
write to, as far as that is possible (docs/verifiers.md).
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal, Protocol, get_args

from sandbox.desktop.apps import APPS
from sandbox.desktop.desktop import Desktop, Window
from sandbox.session import Element
from sandbox.terminal.tasks import VERIFIERS_ENVIRONMENT, Probe
from warehouse.core.errors import SandboxError

COMMAND_LIMIT_S = 30.0
PathKind = Literal["file", "folder", "executable", "absent", "link", "other"]
"""`other` is a pipe, a socket or a device. What a goal may ask for are the first four."""
Command = str | tuple[str, ...]
TERMINAL_HOME, DESKTOP_HOME = PurePosixPath("/workspace"), PurePosixPath("/home/user")

DESKTOP_ENVIRONMENT = {name: value for name, value in VERIFIERS_ENVIRONMENT.items() if name != "HOME"}
"""On a desktop the home stays what it is: commands of foreign tasks look for `~` in programs as well."""
READ_LIMIT_BYTES = 1 << 26
_LOOK = (
    'if [ -L "$1" ]; then echo link; elif [ -d "$1" ]; then echo folder; elif [ -f "$1" ]; then if [ -x "$1" ]; then echo executable; '
    'else echo file; fi; elif [ -e "$1" ]; then echo other; else echo absent; fi'
)
_READ = f'[ -f "$1" ] && [ ! -L "$1" ] && exec /usr/bin/head -c {READ_LIMIT_BYTES} -- "$1"'
_WITH_HOME = f'goal() {{ local +x HOME={TERMINAL_HOME} goal=$1; shift; eval "$goal"; }}; goal "$1"'
"""`~` and $HOME in a command's own words are the workspace; programs get another home, which is not there."""


class Machine(Protocol):
    async def read(self, path: str) -> bytes | None:
        """What a file holds; None where there is no such file, or it may not be read. A link is none."""
        ...

    async def path_kind(self, path: str) -> PathKind:
        """What is at a path; a file that may be run is `executable`, a link is a `link` wherever it leads."""
        ...

    async def run(self, command: Command) -> tuple[int, str, str]:
        """Exit code, output and errors of a command in the home folder; a text is run by bash."""
        ...

    async def shown(self) -> str | None:
        """The text in the window of the terminal; None where there is no such window, or it is covered."""
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
            return self._probe.jail.workspace.read(path, follows_links=False)
        except SandboxError:
            raise
        except OSError:
            return None

    async def path_kind(self, path: str) -> PathKind:
        entry = self._probe.jail.workspace.look(path)
        if entry is None:
            return "absent"
        kinds: dict[str, PathKind] = {"folder": "folder", "link": "link", "file": "executable" if entry.mode & 0o100 else "file"}
        return kinds.get(entry.kind, "other")

    async def run(self, command: Command) -> tuple[int, str, str]:
        try:
            argv = [*words(_WITH_HOME), "goal", command] if isinstance(command, str) else words(command)
            done = await self._probe.jail.run(argv, timeout_s=COMMAND_LIMIT_S, environment=VERIFIERS_ENVIRONMENT)
        except SandboxError:
            raise
        except OSError:  # the agent has used up its processes
            return 126, "", ""
        output = done.output.decode(errors="replace")
        return (124 if done.exit_code is None else done.exit_code), output, output

    async def shown(self) -> str | None:
        return None


class DesktopMachine:
    """A desktop's home folder and the programs that run beside its applications. Paths outside of the home are read by a program."""

    def __init__(self, desktop: Desktop) -> None:
        self._desktop = desktop

    async def read(self, path: str) -> bytes | None:
        inside = relative(path, DESKTOP_HOME)
        if inside is not None:
            return await self._desktop.get_file(PurePosixPath(inside))
        done = await self.run(("/bin/bash", "-c", _READ, "read", path))
        return done[1].encode() if done[0] == 0 else None

    async def path_kind(self, path: str) -> PathKind:
        _, output, _ = await self.run(("/bin/bash", "-c", _LOOK, "look", relative(path, DESKTOP_HOME) or path))
        return next((kind for kind in get_args(PathKind) if kind == output.strip()), "absent")

    async def run(self, command: Command) -> tuple[int, str, str]:
        done = await self._desktop.run(words(command), timeout_s=COMMAND_LIMIT_S, environment=DESKTOP_ENVIRONMENT)
        return done.exit_code, done.stdout, done.stderr

    async def shown(self) -> str | None:
        of_terminals = [window for window in await self._desktop.windows() if window.window_class == APPS["terminal"].window_class]
        texts = (each for each in await self._desktop.elements() if each.role == "textarea")
        return next((each.text for each in texts if any(_lies_in(each, window) for window in of_terminals)), None)


def _lies_in(element: Element, window: Window) -> bool:
    return (
        window.x_px <= element.x_px < window.x_px + window.width_px
        and window.y_px <= element.y_px < window.y_px + window.height_px
        and element.width_px <= window.width_px
        and element.height_px <= window.height_px
    )


def relative(path: str, home: PurePosixPath) -> str | None:
    """A path below the home folder, as its desktops and workspaces name it; None for one outside."""
    whole = PurePosixPath(path.replace("~", str(home), 1) if path.startswith("~/") else path)
    if whole.is_absolute():
        if not whole.is_relative_to(home):
            return None
        whole = whole.relative_to(home)
    return None if ".." in whole.parts or not whole.parts else str(whole)
