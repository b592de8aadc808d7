"""From gestures to the input events of a box: X button numbers and keysyms. Pure: nothing is sent here.

Keysyms are of X11's keysymdef.h: Latin 1 characters are their own, other characters are 0x01000000 plus their code point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sandbox.browser.input import (
    WHEEL_STEP_PX,
    Gesture,
    Insert,
    KeyStroke,
    Pause,
    Phase,
    PointerDown,
    PointerMove,
    PointerUp,
    Wheel,
    find_key,
)

BUTTONS = {"left": 1, "middle": 2, "right": 3}
_WHEEL_BUTTONS = {(0, -1): 4, (0, 1): 5, (-1, 0): 6, (1, 0): 7}
WHEEL_CLICKS = 3
"""Notches of a mouse's wheel that one wheel gesture is: about 100 pixels in GTK programs."""

_NAMED = {
    "Enter": 0xFF0D,
    "Tab": 0xFF09,
    "Escape": 0xFF1B,
    "Backspace": 0xFF08,
    "Delete": 0xFFFF,
    "Insert": 0xFF63,
    "ArrowLeft": 0xFF51,
    "ArrowUp": 0xFF52,
    "ArrowRight": 0xFF53,
    "ArrowDown": 0xFF54,
    "PageUp": 0xFF55,
    "PageDown": 0xFF56,
    "End": 0xFF57,
    "Home": 0xFF50,
    "Control": 0xFFE3,
    "Shift": 0xFFE1,
    "Alt": 0xFFE9,
    "Meta": 0xFFEB,
    "CapsLock": 0xFFE5,
    **{f"F{n}": 0xFFBD + n for n in range(1, 13)},
}

Event = list[Any]


def keysym(name: str) -> int | None:
    """The keysym of a key's name or of a character; None for an unknown name."""
    key = find_key(name)
    if key is not None and key.key in _NAMED:
        return _NAMED[key.key]
    character = key.key if key is not None else name
    if len(character) != 1:
        return None
    code = ord(character)
    return code if 0x20 <= code <= 0x7E or 0xA0 <= code <= 0xFF else 0x01000000 + code


def events(phases: Sequence[Phase]) -> list[Event]:
    """Every event of some phases, in order. Unknown keys are left out."""
    return [event for phase in phases for event in ([["pause", phase.ms]] if isinstance(phase, Pause) else _phase_events(phase))]


def _phase_events(phase: tuple[Gesture, ...]) -> Iterator[Event]:
    for gesture in phase:
        yield from _gesture_events(gesture)
    # Programs measure how fast a pointer moves and join moves that come at once: a hand takes its time between phases.
    if any(isinstance(gesture, PointerMove) for gesture in phase):
        yield ["pause", 15.0]


def _gesture_events(gesture: Gesture) -> Iterator[Event]:
    match gesture:
        case PointerMove(x=x, y=y):
            yield ["move", x, y]
        case PointerDown(button=button):
            yield ["button", BUTTONS[button], True]
        case PointerUp(button=button):
            yield ["button", BUTTONS[button], False]
        case Wheel(dx=dx, dy=dy):
            steps = max(abs(dx), abs(dy)) // WHEEL_STEP_PX
            number = _WHEEL_BUTTONS[((dx > 0) - (dx < 0), 0 if dx else (dy > 0) - (dy < 0))]
            for _ in range(steps * WHEEL_CLICKS):
                yield ["button", number, True]
                yield ["button", number, False]
        case KeyStroke(name=name, is_down=is_down):
            if (code := keysym(name)) is not None:
                yield ["key", code, is_down]
        case Insert(text=text):
            for character in text:
                if (code := keysym(character)) is not None:
                    yield ["key", code, True]
                    yield ["key", code, False]
