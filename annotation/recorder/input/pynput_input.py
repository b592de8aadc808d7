"""Input by pynput, on Windows and macOS. Its library is imported when listening starts; the translation of what it says is pure.

Not installed on Linux: there x11_input.py listens.
"""

from __future__ import annotations

import time
from typing import Any

from annotation.recorder.input.events import Button, Key, Press, Sink, Wheel
from warehouse.core.errors import RecorderUnavailable

_NAMES = {
    "alt_l": "alt",
    "alt_r": "alt",
    "alt_gr": "altgr",
    "ctrl_l": "ctrl",
    "ctrl_r": "ctrl",
    "shift_l": "shift",
    "shift_r": "shift",
    "cmd": "meta",
    "cmd_l": "meta",
    "cmd_r": "meta",
    "esc": "escape",
    "left": "arrowleft",
    "right": "arrowright",
    "up": "arrowup",
    "down": "arrowdown",
    "page_up": "pageup",
    "page_down": "pagedown",
    "caps_lock": "capslock",
}
_SAME = {"alt", "ctrl", "shift", "enter", "tab", "space", "backspace", "delete", "insert", "home", "end", *(f"f{n}" for n in range(1, 13))}
_BUTTONS: dict[str, Button] = {"left": "left", "middle": "middle", "right": "right"}


def key_of(key: Any, *, is_down: bool, time_s: float) -> Key | None:
    """From pynput's `Key` (a named one) or `KeyCode` (a character); None for keys that actions do not know."""
    named = getattr(key, "name", None)
    if named is not None:
        name = _NAMES.get(named, named if named in _SAME else "")
        if not name:
            return None
        return Key(time_s=time_s, name=name, is_down=is_down, text=" " if is_down and name == "space" else "")
    typed = getattr(key, "char", None)
    if not typed:
        code = getattr(key, "vk", None)  # with Ctrl, Windows reports some keys by their code alone
        typed = chr(code).lower() if code is not None and (0x30 <= code <= 0x39 or 0x41 <= code <= 0x5A) else ""
    if len(typed) == 1 and 1 <= ord(typed) <= 26:  # Ctrl+A is reported as the control character 1
        typed = chr(ord(typed) + 96)
    if not typed or not typed.isprintable():
        return None
    return Key(time_s=time_s, name=typed.lower(), is_down=is_down, text=typed if is_down else "")


def press_of(x: float, y: float, button: Any, *, is_down: bool, time_s: float) -> Press | None:
    name = _BUTTONS.get(getattr(button, "name", ""))
    return None if name is None else Press(time_s=time_s, button=name, is_down=is_down, x=round(x), y=round(y))


def wheels_of(x: float, y: float, dx: float, dy: float, *, time_s: float) -> list[Wheel]:
    """Notches, one event each; pynput counts up and right as positive. Touchpads report parts of a notch, which are left out."""
    across = [Wheel(time_s=time_s, dx=1 if dx > 0 else -1, dy=0, x=round(x), y=round(y))] * int(abs(dx))
    along = [Wheel(time_s=time_s, dx=0, dy=-1 if dy > 0 else 1, x=round(x), y=round(y))] * int(abs(dy))
    return [*across, *along]


class PynputInput:
    """The keyboard and pointer of the logged-in user. macOS asks the person to allow it (Privacy, Accessibility and Input Monitoring)."""

    name = "pynput"

    def __init__(self) -> None:
        self._listeners: list[Any] = []

    @property
    def failure(self) -> str | None:
        return next((f"{type(one).__module__} ended" for one in self._listeners if not one.is_alive()), None)

    def check(self) -> None:
        _library()

    def start(self, sink: Sink) -> None:
        keyboard, mouse = _library()

        def emit(event: Key | Press | None) -> None:
            if event is not None:
                sink(event)

        def scrolled(x: float, y: float, dx: float, dy: float) -> None:
            for wheel in wheels_of(x, y, dx, dy, time_s=time.monotonic()):
                sink(wheel)

        listeners = (
            keyboard.Listener(
                on_press=lambda key: emit(key_of(key, is_down=True, time_s=time.monotonic())),
                on_release=lambda key: emit(key_of(key, is_down=False, time_s=time.monotonic())),
            ),
            mouse.Listener(
                on_click=lambda x, y, button, down: emit(press_of(x, y, button, is_down=down, time_s=time.monotonic())), on_scroll=scrolled
            ),
        )
        for listener in listeners:
            listener.start()
            self._listeners.append(listener)  # not before: one that was never started seems to have ended, and cannot be joined
            listener.wait()

    def stop(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.stop()
            listener.join()


def _library() -> tuple[Any, Any]:
    """pynput's keyboard and mouse. Raises RecorderUnavailable."""
    try:
        from pynput import keyboard, mouse
    except ImportError as error:
        raise RecorderUnavailable("pynput is not installed. Install the extra: pip install 'flywheel[recorder]'") from error
    return keyboard, mouse
