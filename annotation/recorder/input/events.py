"""Input events as values, and the protocol of their sources. What they mean is in gestures.py; where they come from in x11_input.py
and pynput_input.py.

Times are `time.monotonic()` seconds. Key names are those of sandbox/browser/input.py ("ctrl", "arrowleft", "a"); points are pixels of the
screen. Moves of the pointer are not reported: what an action needs of them is where buttons went down and up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

Button = Literal["left", "middle", "right"]
COMMANDS = ("ctrl", "alt", "shift", "meta")
"""Modifiers, in the order in which they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key going down or up. `text` is what it types by itself: with the layout, Shift, AltGr and a dead key before it taken into
    account, without what Ctrl, Alt or Meta make of it."""

    time_s: float
    name: str
    is_down: bool
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Press:
    """A pointer button going down or up."""

    time_s: float
    button: Button
    is_down: bool
    x: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One notch of the wheel; positive is right and down."""

    time_s: float
    dx: int
    dy: int
    x: int
    y: int


Event = Key | Press | Wheel
Sink = Callable[[Event], None]


class InputSource(Protocol):
    """Delivers input events, in order, from its own thread."""

    @property
    def name(self) -> str: ...

    @property
    def failure(self) -> str | None:
        """Why it no longer hears, where that ended before `stop` was called."""
        ...

    def check(self) -> None:
        """Whether this machine would let us listen; nothing is heard for it. Raises RecorderUnavailable."""
        ...

    def start(self, sink: Sink) -> None:
        """Call `sink` for every event from now on. Raises RecorderUnavailable where this machine does not let us listen."""
        ...

    def stop(self) -> None:
        """No call of `sink` after this returns. May be called twice."""
        ...
