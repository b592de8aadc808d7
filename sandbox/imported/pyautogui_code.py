"""PyAutoGUI code as typed actions. The code is parsed into a syntax tree and read call by call; nothing of it is ever evaluated.

Understood are calls with constant arguments of `pyautogui` and of the few functions that trajectories add to it (`computer.terminate`,
`computer.triple_click`, `computer.wait`, `time.sleep`), and the words WAIT, DONE and FAIL alone. Anything else is a BadCode with its
reason.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

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
)  # fmt: skip

MAX_CODE_CHARS = 100_000
MAX_ACTIONS = 200
MAX_REPEATS = 50
_MODULES = ("pyautogui", "computer", "time")
_WORDS: Mapping[str, Action] = {"WAIT": Wait(), "DONE": Finished(), "FAIL": CallUser()}
_KEY_NAMES = {
    "return": "enter", "esc": "escape", "del": "delete", "pgup": "pageup", "pgdn": "pagedown", "control": "ctrl", "ctrlleft": "ctrl",
    "ctrlright": "ctrl", "shiftleft": "shift", "shiftright": "shift", "altleft": "alt", "altright": "alt", "option": "alt",
    "optionleft": "alt", "optionright": "alt", "command": "meta", "cmd": "meta", "win": "meta", "winleft": "meta", "winright": "meta",
    "super": "meta", "left": "left", "right": "right", "up": "up", "down": "down", " ": "space", "\n": "enter", "\t": "tab",
}  # fmt: skip
_LOST = ("scroll amount", "duration", "interval")
"""What calls say that actions do not, by the name under which it is counted: how far a wheel was turned (one gesture stands for it), how
long a movement took, the pause between keys."""


class BadCode(ValueError):
    """The code is none that is understood, and why."""


@dataclass(slots=True, kw_only=True)
class Hand:
    """Where the pointer is while code is read: one trajectory's, from step to step."""

    x: int | None = None
    y: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    actions: tuple[Action, ...]
    lost: tuple[str, ...] = ()
    """Names of _LOST, one for each call that said such a thing."""


@dataclass(slots=True, kw_only=True)
class _Call:
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


def parse_code(code: str, size_px: tuple[int, int], hand: Hand | None = None) -> Parsed:
    """Actions of the code on a screen of this size. Coordinates written as fractions from 0 to 1 are of the screen's width and height,
    others are pixels. Raises BadCode."""
    hand = hand or Hand()
    if len(code) > MAX_CODE_CHARS:
        raise BadCode(f"the code has {len(code)} characters, at most {MAX_CODE_CHARS} are read")
    if (word := _WORDS.get(code.strip().strip("`").strip())) is not None:
        return Parsed(actions=(word,))
    try:
        tree = ast.parse(_without_fence(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadCode(f"it is no Python: {error}") from None
    actions: list[Action] = []
    lost: list[str] = []
    for statement in tree.body:
        call = _call_of(statement, size_px, hand)
        if call is None:
            continue
        try:
            actions += _READERS[call.name](call)
        except ValidationError as error:
            raise BadCode(f"{call.name}: {error.errors()[0]['msg']}") from None
        call.note("duration")
        call.note("interval")
        lost += call.lost
        if len(actions) > MAX_ACTIONS:
            raise BadCode(f"it has more than {MAX_ACTIONS} actions")
    if not actions:
        raise BadCode("it does nothing")
    return Parsed(actions=_merged(actions), lost=tuple(lost))


def _without_fence(code: str) -> str:
    lines = [line for line in code.strip().splitlines() if not line.strip().startswith("```")]
    return "\n".join(lines)


def _call_of(statement: ast.stmt, size_px: tuple[int, int], hand: Hand) -> _Call | None:
    """None for what does nothing: imports, settings of the module, docstrings."""
    if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Pass)):
        return None
    if isinstance(statement, ast.Assign):
        targets = [_dotted(target) for target in statement.targets]
        if all(target in ("pyautogui.FAILSAFE", "pyautogui.PAUSE") for target in targets):
            return None
    if not isinstance(statement, ast.Expr):
        raise BadCode(f"line {statement.lineno} is a {type(statement).__name__.lower()} and no call")
    if isinstance(statement.value, ast.Constant):
        return None
    if not isinstance(statement.value, ast.Call):
        raise BadCode(f"line {statement.lineno} is no call")
    module, _, name = _dotted(statement.value.func).rpartition(".")
    if module not in _MODULES or name not in _READERS:
        raise BadCode(f"{f'{module}.' * bool(module)}{name} is not one of the functions that are understood")
    values = [_constant(value) for value in statement.value.args]
    named = {str(keyword.arg): _constant(keyword.value) for keyword in statement.value.keywords if keyword.arg is not None}
    if any(keyword.arg is None for keyword in statement.value.keywords):
        raise BadCode(f"{name} takes its arguments from a dictionary")
    return _Call(name=name, values=values, named=named, size_px=size_px, hand=hand)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise BadCode("it calls what is no name")


def _constant(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, (str, int, float, bool))):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(value := _constant(node.operand), (int, float)):
        return -value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_constant(item) for item in node.elts]
    if isinstance(node, ast.Attribute) and _dotted(node) in ("pyautogui.LEFT", "pyautogui.RIGHT", "pyautogui.MIDDLE"):
        return node.attr.lower()
    raise BadCode(f"an argument is no constant: {ast.unparse(node)[:60]}")


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


def _button(call: _Call, index: int) -> Literal["left", "middle", "right"]:
    button = str(call.get(index, "button", default="left")).lower()
    if button == "primary":
        return "left"
    if button not in ("left", "middle", "right"):
        raise BadCode(f"{call.name} has the button {button!r}; known are left, middle and right")
    return button  # type: ignore[return-value]


def _click(call: _Call) -> list[Action]:
    x, y = call.point()
    clicks = call.get(2, "clicks", default=1)
    if not isinstance(clicks, int) or not 1 <= clicks <= MAX_REPEATS:
        raise BadCode(f"{call.name} has clicks={clicks!r}")
    button = _button(call, 4)
    whole, rest = divmod(clicks, 3)
    counts = [clicks] if clicks <= 3 else [3] * whole + [rest] * bool(rest)
    return [Click(x=x, y=y, button=button, count=count) for count in counts]


def _clicks(button: Literal["left", "middle", "right"], count: int) -> Callable[[_Call], list[Action]]:
    def read(call: _Call) -> list[Action]:
        x, y = call.point()
        return [Click(x=x, y=y, button=button, count=count)]

    return read


def _move(call: _Call) -> list[Action]:
    x, y = call.point()
    return [MoveTo(x=x, y=y)]


def _by(call: _Call) -> tuple[int, int]:
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


def _move_by(call: _Call) -> list[Action]:
    x, y = _by(call)
    return [MoveTo(x=x, y=y)]


def _drag_to(call: _Call) -> list[Action]:
    if call.hand.x is None or call.hand.y is None:
        raise BadCode(f"{call.name} begins where the pointer is, and nothing before it says where")
    x, y = call.hand.x, call.hand.y
    to_x, to_y = _by(call) if call.name in ("drag", "dragRel") else call.point()
    if (button := _button(call, 3)) != "left":
        raise BadCode(f"{call.name} with the {button} button has no action")
    return [Drag(x=x, y=y, to_x=to_x, to_y=to_y)]


def _mouse(action: type[MouseDown] | type[MouseUp]) -> Callable[[_Call], list[Action]]:
    def read(call: _Call) -> list[Action]:
        point = dict(zip(("x", "y"), call.point(), strict=True)) if call.has_point() else {}
        return [action.model_validate({"button": _button(call, 2), **point})]

    return read


def _scroll(positive: Direction, negative: Direction) -> Callable[[_Call], list[Action]]:
    def read(call: _Call) -> list[Action]:
        amount = call.get(0, "clicks", "amount")
        if not isinstance(amount, (int, float)) or isinstance(amount, bool) or amount == 0:
            raise BadCode(f"{call.name} has the amount {amount!r}")
        is_known = call.has_point(1) or call.hand.x is not None
        point = dict(zip(("x", "y"), call.point(1), strict=True)) if is_known else {}
        call.lost.append("scroll amount")
        return [Scroll.model_validate({"direction": positive if amount > 0 else negative, **point})]

    return read


def _write(call: _Call) -> list[Action]:
    text = call.get(0, "message", "text")
    if isinstance(text, list) and all(isinstance(key, str) for key in text):
        return [Hotkey(keys=(_key(key),)) for key in text]
    if not isinstance(text, str):
        raise BadCode(f"{call.name} takes a text, not {text!r:.60}")
    return [TypeText(text=text)]


def _press(call: _Call) -> list[Action]:
    keys = call.get(0, "keys", "key")
    presses = call.get(1, "presses", default=1)
    if not isinstance(presses, int) or not 1 <= presses <= MAX_REPEATS:
        raise BadCode(f"{call.name} has presses={presses!r}")
    wanted = keys if isinstance(keys, list) else [keys]
    return [Hotkey(keys=(_key(key),)) for _ in range(presses) for key in wanted]


def _hotkey(call: _Call) -> list[Action]:
    keys = call.values[0] if len(call.values) == 1 and isinstance(call.values[0], list) else call.get(-1, "keys", default=call.values)
    if not 1 <= len(keys) <= 3:
        raise BadCode(f"hotkey has {len(keys)} keys; one to three can be pressed together")
    return [Hotkey(keys=tuple(_key(key) for key in keys))]


def _key(key: Any) -> str:
    if not isinstance(key, str) or not key:
        raise BadCode(f"{key!r} is no key")
    return _KEY_NAMES.get(key.lower(), key if len(key) == 1 else key.lower())


def _sleep(call: _Call) -> list[Action]:
    seconds = call.get(0, "seconds", "secs", "time", default=5.0)
    if not isinstance(seconds, (int, float)) or seconds < 0:
        raise BadCode(f"{call.name} has {seconds!r} seconds")
    return [Wait(seconds=min(60.0, float(seconds)))] if seconds else []


def _terminate(call: _Call) -> list[Action]:
    status = str(call.get(0, "status", default="success")).lower()
    answer = call.get(1, "answer", default="") or ""
    return [Finished(answer=str(answer)) if status in ("success", "done") else CallUser()]


def _answer(call: _Call) -> list[Action]:
    return [Finished(answer=str(call.get(0, "answer", "content", default="") or ""))]


_READERS: Mapping[str, Callable[[_Call], list[Action]]] = {
    "click": _click, "leftClick": _clicks("left", 1), "left_click": _clicks("left", 1), "rightClick": _clicks("right", 1),
    "right_click": _clicks("right", 1), "middleClick": _clicks("middle", 1), "middle_click": _clicks("middle", 1),
    "doubleClick": _clicks("left", 2), "double_click": _clicks("left", 2), "tripleClick": _clicks("left", 3),
    "triple_click": _clicks("left", 3), "moveTo": _move, "move_to": _move, "move": _move_by, "moveRel": _move_by, "dragTo": _drag_to,
    "drag_to": _drag_to, "drag": _drag_to, "dragRel": _drag_to, "mouseDown": _mouse(MouseDown), "mouseUp": _mouse(MouseUp),
    "scroll": _scroll("up", "down"), "vscroll": _scroll("up", "down"), "hscroll": _scroll("right", "left"), "write": _write,
    "typewrite": _write, "press": _press, "hotkey": _hotkey, "keyDown": lambda call: [KeyDown(key=_key(call.get(0, "key")))],
    "keyUp": lambda call: [KeyUp(key=_key(call.get(0, "key")))], "sleep": _sleep, "wait": _sleep, "terminate": _terminate,
    "answer": _answer,
}  # fmt: skip


def _merged(actions: Sequence[Action]) -> tuple[Action, ...]:
    """A move of the pointer to where the next action begins says nothing that the action does not."""
    kept: list[Action] = []
    for index, action in enumerate(actions):
        after = actions[index + 1] if index + 1 < len(actions) else None
        if isinstance(action, MoveTo) and isinstance(after, (Click, Drag, Scroll)) and (after.x, after.y) == (action.x, action.y):
            continue
        kept.append(action)
    return tuple(kept)
