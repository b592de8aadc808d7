"""The typed action space: everything an agent can do in any session, as values. How actions are written as text is agent/grammars.

Coordinates are integer pixels in the session's viewport, origin top left; a grammar with relative coordinates resolves them before it
builds an action. `InvalidAction` is a value like the others: it is recorded and fed back to the agent, never raised.
Source: the computer, mobile, game and SDK action sets of UI-TARS 1.x and UI-TARS-2 (arXiv 2509.02544, and its public client).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

Px = Annotated[int, Field(ge=-10_000, le=100_000, description="pixels in the viewport")]
Direction = Literal["up", "down", "left", "right"]


class _Action(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return without_halves(value)


MAX_DEPTH = 100


def without_halves(value: Any, depth: int = 0) -> Any:
    """JSON that a policy wrote can spell half of a pair of surrogates, which no keyboard types and no table holds: each becomes the
    replacement character. Raises ValueError for what is nested deeper than MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
    match value:
        case str() if not value.isascii():
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case dict():
            return {without_halves(key, depth + 1): without_halves(each, depth + 1) for key, each in value.items()}
        case list() | tuple():
            return [without_halves(each, depth + 1) for each in value]
    return value


class Click(_Action):
    """Press and release a mouse button; `count` 2 is a double click."""

    kind: Literal["click"] = "click"
    x: Px
    y: Px
    button: Literal["left", "middle", "right"] = "left"
    count: Annotated[int, Field(ge=1, le=3)] = 1


class Drag(_Action):
    kind: Literal["drag"] = "drag"
    x: Px
    y: Px
    to_x: Px
    to_y: Px


class MoveTo(_Action):
    kind: Literal["move_to"] = "move_to"
    x: Px
    y: Px


class MouseDown(_Action):
    """Without a point, where the pointer is."""

    kind: Literal["mouse_down"] = "mouse_down"
    x: Px | None = None
    y: Px | None = None
    button: Literal["left", "middle", "right"] = "left"


class MouseUp(_Action):
    kind: Literal["mouse_up"] = "mouse_up"
    x: Px | None = None
    y: Px | None = None
    button: Literal["left", "middle", "right"] = "left"


class Scroll(_Action):
    """One wheel gesture; without a point, at the middle of the viewport."""

    kind: Literal["scroll"] = "scroll"
    direction: Direction
    x: Px | None = None
    y: Px | None = None


class TypeText(_Action):
    """Text into the focused element; a trailing newline submits."""

    kind: Literal["type"] = "type"
    text: str


class Hotkey(_Action):
    """Keys pressed together, at most three, lower case: ("ctrl", "c"). One key alone is a key press."""

    kind: Literal["hotkey"] = "hotkey"
    keys: Annotated[tuple[str, ...], Field(min_length=1, max_length=3)]


class KeyDown(_Action):
    kind: Literal["key_down"] = "key_down"
    key: str


class KeyUp(_Action):
    kind: Literal["key_up"] = "key_up"
    key: str


class SelectOption(_Action):
    """Choose an option of the drop-down at a point by its visible text (Mind2Web's `select`)."""

    kind: Literal["select"] = "select"
    x: Px
    y: Px
    option: str


class Navigate(_Action):
    kind: Literal["navigate"] = "navigate"
    url: str


class NavigateBack(_Action):
    kind: Literal["navigate_back"] = "navigate_back"


class Wait(_Action):
    """Let page time pass."""

    kind: Literal["wait"] = "wait"
    seconds: Annotated[float, Field(gt=0, le=60)] = 5.0


class LongPress(_Action):
    kind: Literal["long_press"] = "long_press"
    x: Px
    y: Px


class OpenApp(_Action):
    kind: Literal["open_app"] = "open_app"
    name: str


class PressHome(_Action):
    kind: Literal["press_home"] = "press_home"


class PressBack(_Action):
    kind: Literal["press_back"] = "press_back"


class ToolCall(_Action):
    """A call of a named tool with JSON arguments: the terminal, the file editor, search, an MCP server's tool."""

    kind: Literal["tool"] = "tool"
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class Finished(_Action):
    """The agent says that it is done, with an answer where the task asks for one."""

    kind: Literal["finished"] = "finished"
    answer: str = ""


class CallUser(_Action):
    kind: Literal["call_user"] = "call_user"
    question: str = ""


class InvalidAction(_Action):
    """What the policy wrote is not an action: the text and the reason, to be recorded and fed back."""

    kind: Literal["invalid"] = "invalid"
    text: str
    reason: str


Action = Annotated[
    Click
    | Drag
    | MoveTo
    | MouseDown
    | MouseUp
    | Scroll
    | TypeText
    | Hotkey
    | KeyDown
    | KeyUp
    | SelectOption
    | Navigate
    | NavigateBack
    | Wait
    | LongPress
    | OpenApp
    | PressHome
    | PressBack
    | ToolCall
    | Finished
    | CallUser
    | InvalidAction,
    Field(discriminator="kind"),
]

ACTION: TypeAdapter[Action] = TypeAdapter(Action)
"""Parses and prints any action as JSON: `ACTION.validate_json(text)`, `ACTION.dump_json(action)`."""


def point_outside(action: Action, size_px: tuple[int, int]) -> tuple[int, int] | None:
    """The first point of an action that is not on a screen of this width and height; None where all are, or it has none."""
    points = [(getattr(action, "x", None), getattr(action, "y", None)), (getattr(action, "to_x", None), getattr(action, "to_y", None))]
    for x, y in points:
        if x is not None and y is not None and not (0 <= x < size_px[0] and 0 <= y < size_px[1]):
            return (x, y)
    return None
