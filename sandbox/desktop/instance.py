"""What an instance of a desktop task is: its instruction, what is on the desktop at first, its verifier and its oracle.

A verifier looks at state (files, windows, what a program wrote down), never at what the screen says. An oracle looks at what a policy
could see, and acts only by Actions.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from sandbox.actions import Action, Click, Hotkey
from sandbox.desktop.desktop import Desktop, Window
from sandbox.session import Element, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """An application to start with files to open."""

    app: str
    files: tuple[PurePosixPath, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DesktopStepContext:
    """What an oracle sees: the last observation, the windows (as a task bar would show them), and the episode's actions so far."""

    observation: Observation
    windows: tuple[Window, ...]
    actions: tuple[Action, ...]

    @property
    def top(self) -> Window | None:
        """The window that has the keyboard."""
        return next((window for window in self.windows if window.is_focused), None)

    @property
    def last(self) -> Action | None:
        return self.actions[-1] if self.actions else None

    def window(self, title: str) -> Window | None:
        """The first window, from the top, whose title matches a regular expression."""
        return next((window for window in self.windows if re.search(title, window.title)), None)

    def find(self, role: str, text: str | None = None, *, within: Window | None = None) -> Element | None:
        """The first element of a role, with exactly this text, inside a window, where these are given."""
        return next((element for element in self.all(role, within) if text is None or element.text == text), None)

    def all(self, role: str, within: Window | None = None) -> list[Element]:
        elements = [element for element in self.observation.elements if element.role == role]
        return [element for element in elements if within is None or holds(within, element)]


Verify = Callable[[Desktop], Awaitable[list[str]]]
"""What is not as it should be, in words; an empty list where the task is done."""
Oracle = Callable[[DesktopStepContext], Action | None]
Prepare = Callable[[Desktop, float], Awaitable[None]]
"""What else is done before the episode begins; the number is how long a program may take to its window, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One task with its seed filled in. Launched programs are waited for one after the other, so that windows lie the same each time."""

    instruction: str
    verify: Verify
    oracle: Oracle
    launches: tuple[Launch, ...] = ()
    opens_apps: bool = True
    """The agent may open other applications. Not where one of them could write what the verifier reads, as a dialog's answer."""
    files: Mapping[PurePosixPath, bytes] = field(default_factory=dict)
    prepare: Prepare | None = None
    """Done last, after files and launches."""
    ends_when_solved: bool = False
    """The episode ends as soon as the verifier is content."""
    has_oracle: bool = True
    """Without one there are no hints, and the verifier, which may close windows, is left alone until the end."""
    cannot_be_done: bool = False
    """It is solved by saying so: the agent's last action is CallUser, whatever the desktop's state."""


def holds(window: Window, element: Element) -> bool:
    """Whether an element lies in a window's contents."""
    return window.x_px <= element.x_px < window.x_px + window.width_px and window.y_px <= element.y_px < window.y_px + window.height_px


def click(element: Element | None, count: int = 1) -> Action | None:
    """A click on an element; None where there is none, or it does not react."""
    return None if element is None or "disabled" in element.states else Click(x=element.x_px, y=element.y_px, count=count)


def press(*keys: str) -> Action:
    return Hotkey(keys=keys)


def raise_window(context: DesktopStepContext, window: Window) -> Action:
    """Bring a window to the top: by its title where that shows, else by going through the windows."""
    title = context.find("header", " ".join(window.title.split()))
    return click(title) or press("alt", "tab")


def frame_button(context: DesktopStepContext, window: Window, name: str) -> Element | None:
    """A button of a window's frame: level with its title, just above the contents."""
    buttons = [button for button in context.all("button") if button.text == name]
    above = [b for b in buttons if b.y_px < window.y_px + 8 and window.x_px <= b.x_px <= window.x_px + window.width_px]
    return min(above, key=lambda button: window.y_px - button.y_px, default=None)
