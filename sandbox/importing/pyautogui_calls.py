"""The functions of PyAutoGUI, and the few that trajectories add to it, as typed actions: one reader each, of constants that
pyautogui_code.py has read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sandbox.actions import (
    Action,
    CallUser,
    Click,
    Direction,
    Drag,
    Finished,
    Hotkey,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    MoveTo,
    Scroll,
    TypeText,
    Wait,
)

MAX_REPEATS = 50
_KEY_NAMES = {
    "return": "enter",
    "esc": "escape",
    "del": "delete",
    "pgup": "pageup",
    "pgdn": "pagedown",
    "control": "ctrl",
    "ctrlleft": "ctrl",
    "ctrlright": "ctrl",
    "shiftleft": "shift",
    "shiftright": "shift",
    "altleft": "alt",
    "altright": "alt",
    "option": "alt",
    "optionleft": "alt",
    "optionright": "alt",
    "command": "meta",
    "cmd": "meta",
    "win": "meta",
    "winleft": "meta",
    "winright": "meta",
    "super": "meta",
    "left": "left",
    "right": "right",
    "up": "up",
    "down": "down",
    " ": "space",
    "\n": "enter",
    "\t": "tab",
}


class BadCode(ValueError):
    """The code is none that is understood, and why."""


@dataclass(slots=True, kw_only=True)
class Hand:
    """Where the pointer is while code is read: one trajectory's, from step to step."""

    x: int | None = None
    y: int | None = None


@dataclass(slots=True, kw_only=True)
class Call:
    """One call with its constants."""

    name: str
    values: Sequence[Any]
    named: Mapping[str, Any]
    size_px: tuple[int, int]
    hand: Hand
    lost: list[str] = field(default_factory=list)

    def get(self, index: int, *names: str, default: Any = None) -> Any:
        for name in names:
            if name in self.named:
                return self.named[name]
        return self.values[index] if 0 <= index < len(self.values) else default

    def point(self, index: int = 0) -> tuple[int, int]:
        """The point that is given, else where the pointer is. Moves it there."""
        x, y = self.get(index, "x"), self.get(index + 1, "y")
        if isinstance(x, (list, tuple)) and len(x) == 2:
            x, y = x
        if x is None and y is None:
            if self.hand.x is None or self.hand.y is None:
                raise BadCode(f"{self.name} names no point, and nothing before it did")
            return self.hand.x, self.hand.y
        self.hand.x, self.hand.y = _pixels(x, y, self.size_px, self.name)
        return self.hand.x, self.hand.y

    def has_point(self, index: int = 0) -> bool:
        return self.get(index, "x") is not None

    def note(self, name: str, *also: str) -> None:
        if any(self.named.get(each) for each in (name, *also)):
            self.lost.append(name)


def _pixels(x: Any, y: Any, size_px: tuple[int, int], name: str) -> tuple[int, int]:
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (x, y)):
        raise BadCode(f"{name} takes numbers for a point, not {x!r}, {y!r}")
    if all(isinstance(value, float) and 0 <= value <= 1 for value in (x, y)):
        point = round(x * size_px[0]), round(y * size_px[1])
    else:
        point = round(x), round(y)
    clipped = min(point[0], size_px[0] - 1), min(point[1], size_px[1] - 1)
    if min(point) < 0 or max(point[0] - size_px[0], point[1] - size_px[1]) > 0:
        raise BadCode(f"{name}: point ({x:g}, {y:g}) is outside the screen of {size_px[0]}x{size_px[1]}")
    return clipped


def _button(call: Call, index: int) -> Literal["left", "middle", "right"]:
    button = str(call.get(index, "button", default="left")).lower()
    if button == "primary":
        return "left"
    if button not in ("left", "middle", "right"):
        raise BadCode(f"{call.name} has the button {button!r}; known are left, middle and right")
    return button  # type: ignore[return-value]


def _click(call: Call) -> list[Action]:
    x, y = call.point()
    clicks = call.get(2, "clicks", default=1)
    if not isinstance(clicks, int) or not 1 <= clicks <= MAX_REPEATS:
        raise BadCode(f"{call.name} has clicks={clicks!r}")
    button = _button(call, 4)
    whole, rest = divmod(clicks, 3)
    counts = [clicks] if clicks <= 3 else [3] * whole + [rest] * bool(rest)
    return [Click(x=x, y=y, button=button, count=count) for count in counts]


def _clicks(button: Literal["left", "middle", "right"], count: int) -> Callable[[Call], list[Action]]:
    def read(call: Call) -> list[Action]:
        x, y = call.point()
        return [Click(x=x, y=y, button=button, count=count)]

    return read


def _move(call: Call) -> list[Action]:
    x, y = call.point()
    return [MoveTo(x=x, y=y)]


def _by(call: Call) -> tuple[int, int]:
    """The point that lies so far from the pointer; moves it there."""
    dx, dy = call.get(0, "xOffset", "x", default=0), call.get(1, "yOffset", "y", default=0)
    if call.hand.x is None or call.hand.y is None:
        raise BadCode(f"{call.name} goes from where the pointer is, and nothing before it says where")
    if not all(isinstance(value, (int, float)) for value in (dx, dy)):
        raise BadCode(f"{call.name} takes numbers")
    is_fraction = all(isinstance(value, float) and abs(value) <= 1 for value in (dx, dy) if value)
    step = (round(dx * call.size_px[0]), round(dy * call.size_px[1])) if is_fraction else (round(dx), round(dy))
    x, y = _pixels(call.hand.x + step[0], call.hand.y + step[1], call.size_px, call.name)
    call.hand.x, call.hand.y = x, y
    return x, y


def _move_by(call: Call) -> list[Action]:
    x, y = _by(call)
    return [MoveTo(x=x, y=y)]


def _drag_to(call: Call) -> list[Action]:
    if call.hand.x is None or call.hand.y is None:
        raise BadCode(f"{call.name} begins where the pointer is, and nothing before it says where")
    x, y = call.hand.x, call.hand.y
    to_x, to_y = _by(call) if call.name in ("drag", "dragRel") else call.point()
    if (button := _button(call, 3)) != "left":
        raise BadCode(f"{call.name} with the {button} button has no action")
    return [Drag(x=x, y=y, to_x=to_x, to_y=to_y)]


def _mouse(action: type[MouseDown] | type[MouseUp]) -> Callable[[Call], list[Action]]:
    def read(call: Call) -> list[Action]:
        point = dict(zip(("x", "y"), call.point(), strict=True)) if call.has_point() else {}
        return [action.model_validate({"button": _button(call, 2), **point})]

    return read


def _scroll(positive: Direction, negative: Direction) -> Callable[[Call], list[Action]]:
    def read(call: Call) -> list[Action]:
        amount = call.get(0, "clicks", "amount")
        if not isinstance(amount, (int, float)) or isinstance(amount, bool) or amount == 0:
            raise BadCode(f"{call.name} has the amount {amount!r}")
        is_known = call.has_point(1) or call.hand.x is not None
        point = dict(zip(("x", "y"), call.point(1), strict=True)) if is_known else {}
        call.lost.append("scroll amount")
        return [Scroll.model_validate({"direction": positive if amount > 0 else negative, **point})]

    return read


def _write(call: Call) -> list[Action]:
    text = call.get(0, "message", "text")
    if isinstance(text, list) and all(isinstance(key, str) for key in text):
        return [Hotkey(keys=(key_named(key),)) for key in text]
    if not isinstance(text, str):
        raise BadCode(f"{call.name} takes a text, not {text!r:.60}")
    return [TypeText(text=text)]


def _press(call: Call) -> list[Action]:
    keys = call.get(0, "keys", "key")
    presses = call.get(1, "presses", default=1)
    if not isinstance(presses, int) or not 1 <= presses <= MAX_REPEATS:
        raise BadCode(f"{call.name} has presses={presses!r}")
    wanted = keys if isinstance(keys, list) else [keys]
    return [Hotkey(keys=(key_named(key),)) for _ in range(presses) for key in wanted]


def _hotkey(call: Call) -> list[Action]:
    keys = call.values[0] if len(call.values) == 1 and isinstance(call.values[0], list) else call.get(-1, "keys", default=call.values)
    if not 1 <= len(keys) <= 3:
        raise BadCode(f"hotkey has {len(keys)} keys; one to three can be pressed together")
    return [Hotkey(keys=tuple(key_named(key) for key in keys))]


def key_named(key: Any) -> str:
    """A key as actions call it. Raises BadCode."""
    if not isinstance(key, str) or not key:
        raise BadCode(f"{key!r} is not a key")
    return _KEY_NAMES.get(key.lower(), key if len(key) == 1 else key.lower())


def _sleep(call: Call) -> list[Action]:
    seconds = call.get(0, "seconds", "secs", "time", default=5.0)
    if not isinstance(seconds, (int, float)) or seconds < 0:
        raise BadCode(f"{call.name} has {seconds!r} seconds")
    return [Wait(seconds=min(60.0, float(seconds)))] if seconds else []


def _terminate(call: Call) -> list[Action]:
    status = str(call.get(0, "status", default="success")).lower()
    answer = call.get(1, "answer", default="") or ""
    return [Finished(answer=str(answer)) if status in ("success", "done") else CallUser()]


def _answer(call: Call) -> list[Action]:
    return [Finished(answer=str(call.get(0, "answer", "content", default="") or ""))]


READERS: Mapping[str, Callable[[Call], list[Action]]] = {
    "click": _click,
    "leftClick": _clicks("left", 1),
    "left_click": _clicks("left", 1),
    "rightClick": _clicks("right", 1),
    "right_click": _clicks("right", 1),
    "middleClick": _clicks("middle", 1),
    "middle_click": _clicks("middle", 1),
    "doubleClick": _clicks("left", 2),
    "double_click": _clicks("left", 2),
    "tripleClick": _clicks("left", 3),
    "triple_click": _clicks("left", 3),
    "moveTo": _move,
    "move_to": _move,
    "move": _move_by,
    "moveRel": _move_by,
    "dragTo": _drag_to,
    "drag_to": _drag_to,
    "drag": _drag_to,
    "dragRel": _drag_to,
    "mouseDown": _mouse(MouseDown),
    "mouseUp": _mouse(MouseUp),
    "scroll": _scroll("up", "down"),
    "vscroll": _scroll("up", "down"),
    "hscroll": _scroll("right", "left"),
    "write": _write,
    "typewrite": _write,
    "press": _press,
    "hotkey": _hotkey,
    "keyDown": lambda call: [KeyDown(key=key_named(call.get(0, "key")))],
    "keyUp": lambda call: [KeyUp(key=key_named(call.get(0, "key")))],
    "sleep": _sleep,
    "wait": _sleep,
    "terminate": _terminate,
    "answer": _answer,
}
