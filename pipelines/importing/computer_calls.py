"""Calls of a computer tool as typed actions: the names and fields of Anthropic's and OpenAI's computer tools, of Qwen's `computer_use`, and
of plain functions that are called as they are (click, type, …). Whole conversations are conversations.py's.

Names: Anthropic's computer_20241022, computer_20250124 and computer_20251124; OpenAI's computer_call actions; Qwen2.5-VL's cookbook.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from agent.grammars.base import validation_reason
from agent.grammars.uitars2 import SDK_TOOLS
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
    Navigate,
    NavigateBack,
    OpenApp,
    Scroll,
    SelectOption,
    ToolCall,
    TypeText,
    Wait,
)
from sandbox.importing.fields import BadRecord
from sandbox.importing.pyautogui_calls import BadCode, Hand, key_named

MAX_KEYS = 50
COMPUTERS = ("computer", "computer_use", "computer-use", "computer_use_preview")
TERMINALS = ("bash", "execute_bash", "shell", "terminal")
EDITORS = ("str_replace_editor", "str_replace_based_edit_tool")
Button = Literal["left", "middle", "right"]
_BUTTONS: Mapping[str, Button] = {"left": "left", "middle": "middle", "wheel": "middle", "right": "right"}
_X11_KEYS = {"prior": "pageup", "next": "pagedown", "kpenter": "enter", "superl": "meta", "superr": "meta", "spacebar": "space"}
_SPELLED = {"plus": "+", "minus": "-", "period": ".", "comma": ",", "slash": "/", "equal": "="}


@dataclass(slots=True, kw_only=True)
class ComputerCall:
    """One call. `scale`: screenshot pixels to a unit of its points, across and down; `size_px` is the screenshot's. What actions do not
    say of it is counted in `lost`."""

    name: str
    values: Mapping[str, Any]
    size_px: tuple[int, int]
    scale: tuple[float, float]
    hand: Hand
    lost: Counter[str]
    read: set[str] = field(default_factory=set)
    """Names of the values that have been asked for."""

    def any(self, *names: str) -> Any:
        for name in names:
            if self.values.get(name) is not None:
                self.read.add(name)
                return self.values[name]
        return None

    def count_rest(self, *known: str) -> None:
        """Count the values that nothing asked for, but for `known` ones."""
        rest = [name for name, value in self.values.items() if value is not False and value not in (None, "", [], {})]
        self.lost.update(f"`{name[:40]}` of {self.name}" for name in rest if name not in self.read and name not in known)

    def text(self, *names: str) -> str:
        value = self.any(*names)
        if not isinstance(value, str):
            raise BadRecord(f"{self.name} has {names[0]}={value!r:.60}, expected a text")
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        value = self.any(*names)
        value = default if value is None else value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            raise BadRecord(f"{self.name} has {names[0]}={value!r:.60}, expected a number")
        return float(value)

    def times(self, *names: str, default: int = 1) -> int:
        value = self.number(*names, default=default)
        if not value.is_integer() or not 1 <= value <= MAX_KEYS:
            raise BadRecord(f"{self.name} has {names[0]}={value:g}, expected a whole number from 1 to {MAX_KEYS}")
        return int(value)

    def point(self, *names: str) -> tuple[int, int]:
        """The point that is given, else where the pointer is. Moves it there. Raises BadRecord outside of the screen."""
        given = self.any(*(names or ("coordinate", "point", "position")))
        if given is None and not names:
            given = {"x": self.any("x"), "y": self.any("y")}
        x, y = _xy(given)
        if x is None and y is None:
            if self.hand.x is None or self.hand.y is None:
                raise BadRecord(f"{self.name} names no point, and nothing before it did")
            return self.hand.x, self.hand.y
        self.hand.x, self.hand.y = self._pixels(x, y)
        return self.hand.x, self.hand.y

    def _pixels(self, x: Any, y: Any) -> tuple[int, int]:
        if not all(isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e6 for value in (x, y)):
            raise BadRecord(f"{self.name} has the point ({x!r:.40}, {y!r:.40}), expected two numbers")
        if 0 in self.size_px:
            raise BadRecord(f"{self.name} acts on a point before any screenshot")
        width_px, height_px = self.size_px
        across, down = x * self.scale[0], y * self.scale[1]
        if not (-0.5 <= across <= width_px + 0.5 and -0.5 <= down <= height_px + 0.5):  # of a scale that is not finite, too
            raise BadRecord(f"{self.name}: the point ({x:g}, {y:g}) is outside of the screen of {width_px}x{height_px}")
        return min(round(across), width_px - 1), min(round(down), height_px - 1)

    def has_point(self) -> bool:
        return self.any("coordinate", "point", "position", "x") is not None or self.hand.x is not None

    def held(self, *names: str) -> list[str]:
        """Keys that are held during it."""
        given = self.any(*names)
        if not isinstance(given, list):
            return [] if given in (None, "") else _chord(self.text(*names))
        return [key_of(key) for key in given]


def _xy(given: Any) -> tuple[Any, Any]:
    if isinstance(given, Mapping):
        return given.get("x"), given.get("y")
    if isinstance(given, (list, tuple)) and len(given) == 2:
        return given[0], given[1]
    return (None, None) if given is None else (given, None)


def key_of(name: Any) -> str:
    """A key as actions call it, of the names that X11, Playwright and the models have for it. Raises BadRecord."""
    if not isinstance(name, str):
        raise BadRecord(f"{name!r:.40} is not a key")
    plain = name if len(name) == 1 else name.lower().replace("_", "").replace(" ", "")
    try:
        return key_named(_SPELLED.get(plain, _X11_KEYS.get(plain, plain)))
    except BadCode as error:
        raise BadRecord(str(error)) from None


def chord_parts(written: str) -> list[str]:
    """ctrl+s, as xdotool and Playwright write it: the second + of ctrl++ is a key, as one at the end is."""
    parts = [""]
    for character in written:
        if character == "+" and parts[-1]:
            parts.append("")
        else:
            parts[-1] += character
    return [part or "+" for part in parts]


def _chord(written: str) -> list[str]:
    return [key_of(part if part.isspace() else part.strip()) for part in chord_parts(written)]


def _hotkey(keys: Sequence[str]) -> Hotkey:
    if not 1 <= len(keys) <= 3:
        raise BadRecord(f"{len(keys)} keys are pressed together; an action has one to three")
    return Hotkey(keys=tuple(key.lower() for key in keys) if len(keys) > 1 else tuple(keys))


def _click(button: Button | None, count: int = 1) -> Callable[[ComputerCall], list[Action]]:
    def read(call: ComputerCall) -> list[Action]:
        named = call.any("button") or "left"
        if button is None and named == "back":
            return [NavigateBack()]
        known = button or _BUTTONS.get(str(named))
        if known is None:
            raise BadRecord(f"{call.name} has the button {named!r:.40}; known are {', '.join(_BUTTONS)} and back")
        x, y = call.point()
        times = call.times("clicks", "num_clicks", "click_count", "clickCount", "count", default=count)
        return _while_held(call.held("text", "keys", "modifiers"), [Click(x=x, y=y, button=known, count=times)])

    return read


def _while_held(keys: Sequence[str], actions: list[Action]) -> list[Action]:
    return [*(KeyDown(key=key) for key in keys), *actions, *(KeyUp(key=key) for key in reversed(keys))]


def _move(call: ComputerCall) -> list[Action]:
    x, y = call.point()
    return _while_held(call.held("keys"), [MoveTo(x=x, y=y)])


def _drag(call: ComputerCall) -> list[Action]:
    if (path := call.any("path")) is not None:
        if not isinstance(path, list) or len(path) < 2:
            raise BadRecord(f"{call.name} has the path {path!r:.60}, expected two points or more")
        call.lost["points that a drag passes between its ends"] += len(path) - 2
        (x, y), (to_x, to_y) = (call._pixels(*_xy(end)) for end in (path[0], path[-1]))
        call.hand.x, call.hand.y = to_x, to_y
    else:
        start = [name for name in ("start_coordinate", "start", "start_point") if call.any(name) is not None]
        x, y = call.point(*(start or ("pointer",)))
        to_x, to_y = call.point("coordinate", "end_coordinate", "end", "end_point", "to")
    return _while_held(call.held("text", "keys", "modifiers"), [Drag(x=x, y=y, to_x=to_x, to_y=to_y)])


def _mouse(action: type[MouseDown] | type[MouseUp]) -> Callable[[ComputerCall], list[Action]]:
    def read(call: ComputerCall) -> list[Action]:
        x, y = call.point() if call.has_point() else (None, None)
        return [action(x=x, y=y)]

    return read


def _scroll(call: ComputerCall) -> list[Action]:
    direction = call.any("scroll_direction", "direction")
    if direction is None:
        across = call.number("scroll_x", "delta_x", default=0)
        down = call.number("scroll_y", "delta_y", default=-call.number("pixels", default=0))
        if across == 0 == down:
            call.lost["scrolls by nothing"] += 1
            return []
        direction = ("down" if down > 0 else "up") if abs(down) >= abs(across) else ("right" if across > 0 else "left")
    found: Direction | None = next((known for known in ("up", "down", "left", "right") if known == direction), None)
    if found is None:
        raise BadRecord(f"{call.name} has the direction {direction!r:.40}, expected up, down, left or right")
    call.lost["scroll distance"] += 1
    x, y = call.point() if call.has_point() else (None, None)
    return _while_held(call.held("text", "keys", "modifiers"), [Scroll(direction=found, x=x, y=y)])


def _keys(call: ComputerCall) -> list[Action]:
    keys, times = call.any("keys", "key", "text"), call.times("repeat", "presses")
    if isinstance(keys, list):
        return [_hotkey([key_of(key) for key in keys])] * times
    if not isinstance(keys, str) or not keys:
        raise BadRecord(f"{call.name} has the keys {keys!r:.60}, expected a text or a list")
    pressed = [_hotkey(_chord(part)) for part in keys.split() or [keys[0]]] * times
    if len(pressed) > MAX_KEYS:
        raise BadRecord(f"{call.name} presses {len(pressed)} keys one after the other, at most {MAX_KEYS} are read")
    return list(pressed)


def _hold(call: ComputerCall) -> list[Action]:
    return _while_held(_chord(call.text("text", "key")), [_waited(call.number("duration", default=1.0))])


def _waited(seconds: float) -> Wait:
    return Wait(seconds=min(60.0, max(0.01, seconds)))


def _wait(call: ComputerCall) -> list[Action]:
    ms = call.any("ms")
    return [_waited(call.number("ms") / 1000 if ms is not None else call.number("duration", "seconds", "time", default=2.0))]


def _type(call: ComputerCall) -> list[Action]:
    typed: list[Action] = [TypeText(text=call.text("text", "content"))] if call.any("text", "content") is not None else []
    return [*typed, Hotkey(keys=("enter",))] if call.any("press_enter", "submit") is True else typed


def _look(call: ComputerCall) -> list[Action]:
    call.lost[f"{call.name}: a look at the screen, which every step begins with"] += 1
    return []


def _select(call: ComputerCall) -> list[Action]:
    x, y = call.point()
    return [SelectOption(x=x, y=y, option=call.text("option", "value", "text"))]


def _terminate(call: ComputerCall) -> list[Action]:
    answer = str(call.any("answer", "text", "message") or "")
    call.read |= {"status", "success"}
    return [CallUser(question=answer) if _is_failure(call.values) else Finished(answer=answer)]


def _is_failure(values: Mapping[str, Any]) -> bool:
    """What the agent that ends its run says of it."""
    status = values.get("status")
    return values.get("success") is False or str("success" if status is None else status).lower() not in ("success", "done")


READERS: Mapping[str, Callable[[ComputerCall], list[Action]]] = {
    "click": _click(None),
    "left_click": _click("left"),
    "right_click": _click("right"),
    "middle_click": _click("middle"),
    "double_click": _click("left", 2),
    "triple_click": _click("left", 3),
    "move": _move,
    "mouse_move": _move,
    "hover": _move,
    "drag": _drag,
    "left_click_drag": _drag,
    "left_mouse_down": _mouse(MouseDown),
    "left_mouse_up": _mouse(MouseUp),
    "scroll": _scroll,
    "key": _keys,
    "keypress": _keys,
    "press": _keys,
    "hotkey": _keys,
    "hold_key": _hold,
    "type": _type,
    "type_text": _type,
    "wait": _wait,
    "screenshot": _look,
    "cursor_position": _look,
    "zoom": _look,
    "select_option": _select,
    "navigate": lambda call: [Navigate(url=call.text("url", "text"))],
    "goto": lambda call: [Navigate(url=call.text("url", "text"))],
    "go_back": lambda call: [NavigateBack()],
    "open_app": lambda call: [OpenApp(name=call.text("name", "app_name", "text"))],
    "terminate": _terminate,
    "answer": lambda call: [Finished(answer=call.text("text", "answer"))],
    "done": _terminate,
    "finished": _terminate,
}


def actions_of(tool: str, call: ComputerCall) -> list[Action]:
    """Of a call of a tool of this name. Raises BadRecord for a tool or an action that is none of those that are known, by its name."""
    try:
        if tool in TERMINALS:
            return _terminal(call)
        if tool in EDITORS or tool in SDK_TOOLS:
            return [ToolCall(name=EDITORS[0] if tool in EDITORS else tool, arguments=dict(call.values))]
        name = str(call.any("action", "type")) if tool in COMPUTERS else tool
        if name not in READERS:
            known = ", ".join(READERS if tool in COMPUTERS else (*COMPUTERS, *TERMINALS, *EDITORS, *SDK_TOOLS, *READERS))
            what = f"action {name!r:.60} of the tool {tool}" if tool in COMPUTERS else f"tool {tool!r:.60}"
            raise BadRecord(f"the {what} has no action here; known are {known}")
        call.name = name
        found = READERS[name](call)
        call.count_rest()
        return found
    except ValidationError as error:
        raise BadRecord(f"{call.name}: {validation_reason(error)}") from None


def says_failed(tool: str, values: Mapping[str, Any]) -> bool:
    """Whether it is a call that ends the run, and says that the task was not carried out."""
    name = str(values.get("action") or values.get("type")) if tool in COMPUTERS else tool
    return READERS.get(name) is _terminate and _is_failure(values)


def _terminal(call: ComputerCall) -> list[Action]:
    if call.any("restart") is True and call.any("command") is None:
        call.lost["restarts of the terminal"] += 1
        return []
    command = call.text("command")
    call.count_rest()
    return [ToolCall(name="execute_bash", arguments={"command": command})]
