"""From actions to the device's own `input` commands. Pure: nothing is sent here.

`input` taps, swipes, types ASCII and presses keys by Android's key codes. What it cannot do (hover, other mouse buttons, keys held down
over several actions, characters that no key has) is refused with the reason, and the agent reads it.
"""

from __future__ import annotations

import shlex

from sandbox import actions
from sandbox.actions import Action, point_outside
from sandbox.browser.input import Refusal, find_key

SWIPE_MS, DRAG_MS, LONG_PRESS_MS = 300, 800, 800
SCROLL_SHARE = 0.5
"""One scroll moves the contents by this share of the screen."""

_KEY_CODES = {
    "Enter": "ENTER",
    "Tab": "TAB",
    "Escape": "ESCAPE",
    "Backspace": "DEL",
    "Delete": "FORWARD_DEL",
    "Insert": "INSERT",
    " ": "SPACE",
    "ArrowLeft": "DPAD_LEFT",
    "ArrowUp": "DPAD_UP",
    "ArrowRight": "DPAD_RIGHT",
    "ArrowDown": "DPAD_DOWN",
    "PageUp": "PAGE_UP",
    "PageDown": "PAGE_DOWN",
    "End": "MOVE_END",
    "Home": "MOVE_HOME",
    "Control": "CTRL_LEFT",
    "Shift": "SHIFT_LEFT",
    "Alt": "ALT_LEFT",
    "Meta": "META_LEFT",
    "CapsLock": "CAPS_LOCK",
    "`": "GRAVE",
    "-": "MINUS",
    "=": "EQUALS",
    "[": "LEFT_BRACKET",
    "]": "RIGHT_BRACKET",
    "\\": "BACKSLASH",
    ";": "SEMICOLON",
    "'": "APOSTROPHE",
    ",": "COMMA",
    ".": "PERIOD",
    "/": "SLASH",
    "+": "PLUS",
    "*": "STAR",
    "#": "POUND",
    "@": "AT",
}
"""Android's KEYCODE_ names by the name of the key in sandbox/browser/input.py; letters, digits and F keys go by rule."""
_DEVICE_KEYS = {
    "back": "BACK",
    "recents": "APP_SWITCH",
    "app_switch": "APP_SWITCH",
    "menu": "MENU",
    "power": "POWER",
    "volume_up": "VOLUME_UP",
    "volume_down": "VOLUME_DOWN",
    "search": "SEARCH",
    "home_button": "HOME",
}
"""Keys that only a phone has. "home" is the cursor key, as everywhere; the phone's own is the action `press_home`."""


def commands(action: Action, size_px: tuple[int, int]) -> tuple[str, ...] | Refusal:
    """The shell commands that carry out an action of touch or keyboard on a screen of the given size."""
    if (outside := point_outside(action, size_px)) is not None:
        return Refusal(reason=f"point {outside} is outside the screen of {size_px[0]}x{size_px[1]} pixels")
    match action:
        case actions.Click(x=x, y=y, button="left", count=count):
            return (f"input tap {x} {y}",) * count
        case actions.Click(button=button):
            return Refusal(reason=f"a finger has no {button} button; long_press opens what a right click would")
        case actions.LongPress(x=x, y=y):
            return (_swipe(x, y, x, y, LONG_PRESS_MS),)
        case actions.Drag(x=x, y=y, to_x=to_x, to_y=to_y):
            return (_swipe(x, y, to_x, to_y, DRAG_MS),)
        case actions.Scroll():
            return (_scroll(action, size_px),)
        case actions.TypeText(text=text):
            return typing(text)
        case actions.Hotkey(keys=keys):
            return _press(keys)
        case actions.PressHome():
            return ("input keyevent KEYCODE_HOME",)
        case actions.PressBack() | actions.NavigateBack():
            return ("input keyevent KEYCODE_BACK",)
        case _:
            return Refusal(reason=f"{action.kind} is not possible on this device")


def typing(text: str) -> tuple[str, ...] | Refusal:
    """`input text` for runs of characters, Enter and Tab as keys."""
    foreign = sorted({character for character in text if not (" " <= character <= "~" or character in "\r\n\t")})
    if foreign:
        return Refusal(reason=f"this device's `input` types ASCII only, not {''.join(foreign)[:40]!r}")
    parts: list[str] = []
    for line_number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n")):
        if line_number:
            parts.append("input keyevent KEYCODE_ENTER")
        for field_number, run in enumerate(line.split("\t")):
            if field_number:
                parts.append("input keyevent KEYCODE_TAB")
            parts += _text_commands(run)
    return tuple(parts)


def _text_commands(run: str) -> list[str]:
    """`input text` takes %s for a space, so a percent sign and an s that follows it must come in two commands."""
    pieces = run.replace("%s", "%\0s").split("\0")
    return [f"input text {shlex.quote(piece.replace(' ', '%s'))}" for piece in pieces if piece]


def _swipe(x: int, y: int, to_x: int, to_y: int, duration_ms: int) -> str:
    return f"input swipe {x} {y} {to_x} {to_y} {duration_ms}"


def _scroll(action: actions.Scroll, size_px: tuple[int, int]) -> str:
    """The finger moves against the direction in which one wants to see more. It keeps off the edges, where a swipe is the system's."""
    width, height = size_px
    x, y = (width // 2, height // 2) if action.x is None or action.y is None else (action.x, action.y)
    dx, dy = {"up": (0, 1), "down": (0, -1), "left": (1, 0), "right": (-1, 0)}[action.direction]
    half_x, half_y = round(dx * width * SCROLL_SHARE / 2), round(dy * height * SCROLL_SHARE / 2)
    x = min(max(x, width // 20 + abs(half_x)), width - width // 20 - abs(half_x))
    y = min(max(y, height // 10 + abs(half_y)), height - height // 10 - abs(half_y))
    return _swipe(x - half_x, y - half_y, x + half_x, y + half_y, SWIPE_MS)


def _press(names: tuple[str, ...]) -> tuple[str, ...] | Refusal:
    codes = [key_code(name) for name in names]
    for name, code in zip(names, codes, strict=True):
        if code is None:
            known = f"single characters, keys like enter or backspace, {', '.join(_DEVICE_KEYS)}"
            return Refusal(reason=f"unknown key {name!r}; known are {known}")
    command = "keyevent" if len(codes) == 1 else "keycombination"
    return (f"input {command} {' '.join(f'KEYCODE_{code}' for code in codes)}",)


def key_code(name: str) -> str | None:
    """Android's name of a key, without KEYCODE_; None for a key that it has not."""
    if name.lower() in _DEVICE_KEYS:
        return _DEVICE_KEYS[name.lower()]
    key = find_key(name)
    if key is None:
        return None
    if key.key in _KEY_CODES:
        return _KEY_CODES[key.key]
    if (len(key.key) == 1 and key.key.isascii() and key.key.isalnum()) or (key.key[0] == "F" and key.key[1:].isdigit()):
        return key.key.upper()
    return None
