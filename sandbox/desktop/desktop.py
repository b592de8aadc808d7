"""The Desktop protocol: one screen with windows, applications and files, whatever drives it. What a task or an episode is, is not
known here (sandbox/desktop/session.py).

Two implementations: sandbox/desktop/local.py runs an X server on this machine, sandbox/desktop/agent_desktop.py talks to a guest agent
in a virtual machine. Input is the gesture vocabulary of sandbox/browser/input.py; elements are those of sandbox/session.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, Protocol, runtime_checkable

from sandbox.browser.input import Phase
from sandbox.session import Element

WindowChange = Literal["activate", "close", "minimise", "maximise", "restore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window of an application. `window_id` is the window system's number for it; the box is that of its contents, without the frame.

    `window_class` is what the program calls itself to the window system (X: the class part of WM_CLASS), the same from run to run.
    """

    window_id: int
    title: str
    window_class: str
    x_px: int
    y_px: int
    width_px: int
    height_px: int
    is_focused: bool = False
    is_minimised: bool = False
    is_maximised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file or folder, its path relative to the home folder."""

    path: PurePosixPath
    is_folder: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command ended. Output is decoded as UTF-8, undecodable bytes replaced, and cut off at a limit of the implementation."""

    exit_code: int
    stdout: str
    stderr: str


@runtime_checkable
class Desktop(Protocol):
    """One screen. All methods may raise a SandboxError; a closed or broken desktop raises DesktopCrashed and is of no more use.

    Paths are relative to the home folder of the user whom the applications run as, and may not leave it (ValueError).
    """

    @property
    def size_px(self) -> tuple[int, int]:
        """Width and height of the screen."""
        ...

    @property
    def environment(self) -> str:
        """Versions that pixels and behaviour depend on, one line."""
        ...

    async def screenshot(self) -> bytes:
        """The whole screen as PNG."""
        ...

    async def elements(self) -> tuple[Element, ...]:
        """What is visible and can be clicked or read, window by window from the top one down, each in reading order.

        Roles are the words of sandbox/browser/elements.js: button link text input textarea checkbox radio tab select item header image
        slider spinner; states of checked selected focused expanded disabled. A window's frame is a header with its title and the buttons
        "minimise", "maximise" and "close"; a window without an accessibility tree is an image with the window's title.
        """
        ...

    async def perform(self, phases: Sequence[Phase]) -> None:
        """Carry out gestures, phase after phase. Unknown keys are ignored: sandbox.browser.input.gestures refuses them."""
        ...

    async def settle(self) -> bool:
        """Wait until the screen has stood still for a while; False where it had not by the implementation's limit."""
        ...

    async def windows(self) -> tuple[Window, ...]:
        """Windows of applications from the top one down; neither panels nor menus."""
        ...

    async def change_window(self, window_id: int, change: WindowChange) -> None:
        """Ask the window manager for a change, as its buttons do. A window that is gone is left gone."""
        ...

    async def place_window(self, window_id: int, x_px: int, y_px: int, width_px: int | None = None, height_px: int | None = None) -> None:
        """Move a window's contents to a point, and resize them where a size is given."""
        ...

    async def launch(self, app: str, files: Sequence[PurePosixPath] = ()) -> None:
        """Start an application of sandbox/desktop/apps.py with files to open; does not wait for its window. Raises TaskError for an
        unknown one and DesktopMissing where it is not installed."""
        ...

    async def put_file(self, path: PurePosixPath, content: bytes) -> None:
        """Write a file that belongs to the applications' user; folders are made."""
        ...

    async def get_file(self, path: PurePosixPath) -> bytes | None:
        """A file's bytes, or None where there is no such file. Symbolic links are not followed."""
        ...

    async def list_files(self) -> tuple[FileEntry, ...]:
        """Files and folders of the home, sorted by path; nothing whose name begins with a dot, nor what lies below such a folder."""
        ...

    async def run(self, command: Sequence[str], timeout_s: float = 10.0, environment: Mapping[str, str] | None = None) -> CommandResult:
        """Run a program beside the applications, as their user, in the home folder: for verifiers and for setting things up. One that
        takes too long is killed with all that it started, and ends with exit code 124. `environment` is what it finds otherwise than the
        applications do."""
        ...

    async def close(self) -> None:
        """End every process of it; may be called twice."""
        ...


class Desktops(Protocol):
    """Where a session gets its desktops from, one after the other."""

    async def fresh(self) -> Desktop:
        """A desktop as if nobody had ever used it. The one handed out before is of no more use from here on."""
        ...

    async def is_well(self) -> bool:
        """Whether another desktop can be had while one is in use: what ended that one is then what was done in it, and not the machine.
        False where that is not known."""
        ...

    async def close(self) -> None:
        """End the desktop that was handed out, and any that is kept ready; may be called twice."""
        ...
