"""Function names and parameters of the UI-TARS family, as actions and back: one table for every generation. How a call is written as
text is the grammars' business (thought_action.py, uitars2.py).

Names: UI-TARS 1.x computer and mobile prompts, Mind2Web's `select`, the UI-TARS-2 GUI and game sets, and common synonyms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from agent.grammars.base import BadText, NotRepresentable, to_pixels, without_wrappers
from agent.grammars.points import read_point
from sandbox.actions import (
    Action,
    CallUser,
    Click,
    Direction,
    Drag,
    Finished,
    Hotkey,
    InvalidAction,
    KeyDown,
    KeyUp,
    LongPress,
    MouseDown,
    MouseUp,
    MoveTo,
    Navigate,
    NavigateBack,
    OpenApp,
    PressBack,
    PressHome,
    Scroll,
    SelectOption,
    ToolCall,
    TypeText,
    Wait,
)
from sandbox.session import Observation

Scale = tuple[float, float]
"""Width and height of the screen in a grammar's units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A parameter that is a point, in viewport pixels; the grammar writes it in its own units."""

    x_px: int
    y_px: int


Value = str | Point
Call = tuple[str, dict[str, Value]]
"""Canonical name and parameters of an action. Points are called `point`, `start_point` and `end_point`."""

_POINT_KEYS = ("point", "start_box", "start_point", "box", "position", "coordinate")
_END_KEYS = ("end_point", "end_box")
_OPPOSITE: dict[Direction, Direction] = {"up": "down", "down": "up", "left": "right", "right": "left"}
_KEY_NAMES = {"arrowup": "up", "arrowdown": "down", "arrowleft": "left", "arrowright": "right", "return": "enter", "control": "ctrl"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The parameters of one call as they were written. A positional one stands under its number ("0", "1", …)."""

    name: str
    values: Mapping[str, str]
    scale: Scale
    observation: Observation

    def find(self, *keys: str) -> str | None:
        """The first of these parameters that is there."""
        return next((self.values[key] for key in keys if key in self.values), None)

    def text(self, *keys: str) -> str:
        value = self.find(*keys, "0")
        if value is None:
            raise BadText(f"{self.name} needs the parameter {keys[0]!r}")
        return value

    def point(self, *keys: str) -> tuple[int, int]:
        written = self.find(*keys)
        if written is None:
            raise BadText(f"{self.name} needs a point as {keys[0]!r}")
        x, y = read_point(written)
        return to_pixels(x, y, scale_x=self.scale[0], scale_y=self.scale[1], observation=self.observation)

    def xy(self) -> dict[str, int]:
        x, y = self.point(*_POINT_KEYS, "0")
        return {"x": x, "y": y}

    def xy_if_any(self) -> dict[str, int]:
        return self.xy() if self.find(*_POINT_KEYS) else {}

    def direction(self) -> Direction:
        direction = (self.find("direction", "1") or "").strip().lower()
        known = next((known for known in _OPPOSITE if known == direction), None)
        if known is None:
            raise BadText(f"{self.name} needs a direction (up, down, left, right), not {direction[:40]!r}")
        return known

    def button(self) -> dict[str, str]:
        button = (self.find("button") or "left").strip().lower()
        return {"button": button}

    def keys(self) -> tuple[str, ...]:
        """Keys separated by spaces, or joined by plus signs."""
        written = self.text("key", "keys", "hotkey", "content").strip()
        parts = written.split() if " " in written or len(written) == 1 else [part for part in written.split("+") if part]
        if not 1 <= len(parts) <= 3:
            raise BadText(f"{self.name} takes one to three keys separated by spaces, not {written[:40]!r}")
        return tuple(_KEY_NAMES.get(part.lower(), part if len(part) == 1 else part.lower()) for part in parts)

    def key(self) -> str:
        keys = self.keys()
        if len(keys) > 1:
            raise BadText(f"{self.name} takes one key, not {len(keys)}")
        return keys[0]

    def seconds(self) -> dict[str, float]:
        written = self.find("time", "seconds", "0")
        if not written:
            return {}
        try:
            return {"seconds": float(written)}
        except ValueError:
            raise BadText(f"{self.name} takes seconds, not {written[:40]!r}") from None


def _click(button: Literal["left", "middle", "right"], num_clicks: int = 1) -> Callable[[Arguments], Action]:
    return lambda a: Click(**a.xy(), button=button, count=num_clicks)


def _drag(a: Arguments) -> Action:
    x, y = a.point(*_POINT_KEYS, "0")
    to_x, to_y = a.point(*_END_KEYS, "1")
    return Drag(x=x, y=y, to_x=to_x, to_y=to_y)


def _swipe(a: Arguments) -> Action:
    """With an end point a drag; with a direction, the finger's, which moves the page the other way."""
    if a.find(*_END_KEYS):
        return _drag(a)
    return Scroll(direction=_OPPOSITE[a.direction()], **a.xy_if_any())


def _scroll(a: Arguments) -> Action:
    return Scroll(direction=a.direction(), **a.xy_if_any())


READERS: dict[str, Callable[[Arguments], Action]] = {
    "click": _click("left"),
    "left_double": _click("left", 2),
    "right_single": _click("right"),
    "middle_click": _click("middle"),
    "left_triple": _click("left", 3),
    "drag": _drag,
    "swipe": _swipe,
    "move_to": lambda a: MoveTo(**a.xy()),
    "mouse_down": lambda a: MouseDown.model_validate({**a.button(), **a.xy_if_any()}),
    "mouse_up": lambda a: MouseUp.model_validate({**a.button(), **a.xy_if_any()}),
    "scroll": _scroll,
    "type": lambda a: TypeText(text=a.text("content", "text")),
    "hotkey": lambda a: Hotkey(keys=a.keys()),
    "press": lambda a: KeyDown(key=a.key()),
    "release": lambda a: KeyUp(key=a.key()),
    "press_enter": lambda a: Hotkey(keys=("enter",)),
    "select": lambda a: SelectOption(option=a.text("content", "option", "value"), **a.xy()),
    "navigate": lambda a: Navigate(url=a.text("content", "url")),
    "navigate_back": lambda a: NavigateBack(),
    "wait": lambda a: Wait.model_validate(a.seconds()),
    "long_press": lambda a: LongPress(**a.xy()),
    "open_app": lambda a: OpenApp(name=a.text("app_name", "name", "content")),
    "press_home": lambda a: PressHome(),
    "press_back": lambda a: PressBack(),
    "finished": lambda a: Finished(answer=without_wrappers(a.find("content", "answer", "0") or "")),
    "call_user": lambda a: CallUser(question=a.find("content", "question", "0") or ""),
}
"""Every function, by its canonical name."""

SYNONYMS = {
    "left_single": "click",
    "left_click": "click",
    "tap": "click",
    "double_click": "left_double",
    "right_click": "right_single",
    "triple_click": "left_triple",
    "left_click_drag": "drag",
    "select_text": "drag",
    "hover": "move_to",
    "mouse_move": "move_to",
    "left_down": "mouse_down",
    "left_up": "mouse_up",
    "input": "type",
    "input_text": "type",
    "key_down": "press",
    "keydown": "press",
    "key_up": "release",
    "keyup": "release",
    "enter": "press_enter",
    "goto": "navigate",
    "open_url": "navigate",
    "go_back": "navigate_back",
    "longpress": "long_press",
    "open": "open_app",
    "home": "press_home",
    "back": "press_back",
    "finish": "finished",
}


def canonical_name(name: str) -> str | None:
    """The canonical name of a GUI function, or None for what is none of them."""
    name = name.lower()
    name = SYNONYMS.get(name, name)
    return name if name in READERS else None


def read_call(name: str, values: Mapping[str, str], scale: Scale, observation: Observation) -> Action:
    """Raises BadText, or pydantic's ValidationError for a value outside an action's bounds."""
    known = canonical_name(name)
    if known is None:
        raise BadText(f"unknown action {name[:40]!r}; known are {', '.join(READERS)}")
    return READERS[known](Arguments(name=known, values=values, scale=scale, observation=observation))


def write_call(action: Action) -> Call:
    """The inverse of `read_call`. Raises NotRepresentable."""
    match action:
        case Click(x=x, y=y, button=button, count=num_clicks):
            for name, clicks in (
                ("click", ("left", 1)),
                ("left_double", ("left", 2)),
                ("left_triple", ("left", 3)),
                ("right_single", ("right", 1)),
                ("middle_click", ("middle", 1)),
            ):
                if clicks == (button, num_clicks):
                    return name, {"point": Point(x_px=x, y_px=y)}
            raise NotRepresentable(f"{num_clicks} clicks of the {button} button have no function; click once")
        case Drag(x=x, y=y, to_x=to_x, to_y=to_y):
            return "drag", {"start_point": Point(x_px=x, y_px=y), "end_point": Point(x_px=to_x, y_px=to_y)}
        case MoveTo(x=x, y=y) | LongPress(x=x, y=y):
            return action.kind, {"point": Point(x_px=x, y_px=y)}
        case MouseDown() | MouseUp():
            return action.kind, {**_point_if_any(action.x, action.y), **({} if action.button == "left" else {"button": action.button})}
        case Scroll(direction=direction):
            return "scroll", {**_point_if_any(action.x, action.y), "direction": direction}
        case Hotkey(keys=keys):
            return "hotkey", {"key": " ".join(_writable_key(key) for key in keys)}
        case KeyDown(key=key):
            return "press", {"key": _writable_key(key)}
        case KeyUp(key=key):
            return "release", {"key": _writable_key(key)}
        case SelectOption(x=x, y=y, option=option):
            return "select", {"content": option, "point": Point(x_px=x, y_px=y)}
        case Wait(seconds=seconds):
            return "wait", {} if seconds == Wait().seconds else {"time": repr(seconds)}
        case TypeText(text=text) | Navigate(url=text):
            return action.kind, {"content": text}
        case Finished(answer=text) | CallUser(question=text):
            return action.kind, {"content": text} if text else {}
        case OpenApp(name=name):
            return "open_app", {"app_name": name}
        case NavigateBack() | PressHome() | PressBack():
            return action.kind, {}
        case ToolCall(name=name):
            raise NotRepresentable(f"tool {name!r} is not a GUI action; write it in the uitars2 grammar")
        case InvalidAction(reason=reason):
            raise NotRepresentable(f"an invalid action ({reason}) cannot be written")


def _point_if_any(x: int | None, y: int | None) -> dict[str, Value]:
    return {} if x is None or y is None else {"point": Point(x_px=x, y_px=y)}


def _writable_key(key: str) -> str:
    is_name = len(key) == 1 or (key == key.lower() and "+" not in key and key not in _KEY_NAMES)
    if not key or key != "".join(key.split()) or not is_name:
        raise NotRepresentable(f"key {key!r}; allowed are lower-case names such as enter or page_down, and single visible characters")
    return key
