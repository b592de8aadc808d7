"""How an action is drawn on a screen: points, a line, a label. What draws it is page.py (SVG) and film.py (pixels)."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sandbox import actions
from sandbox.actions import ACTION, Action

LABEL_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One action on a screen, in its pixels. `point` is where it was done, `to_point` where a drag ended."""

    label: str
    point: tuple[int, int] | None = None
    to_point: tuple[int, int] | None = None


def mark_of(action: Action) -> Mark:
    x, y = getattr(action, "x", None), getattr(action, "y", None)
    return Mark(
        label=_short(_label(action)),
        point=(x, y) if isinstance(x, int) and isinstance(y, int) else None,
        to_point=(action.to_x, action.to_y) if isinstance(action, actions.Drag) else None,
    )


def details_of(action: Action) -> str:
    """The action's own words for its parts, as JSON without the kind; empty where it has none."""
    parts = {name: value for name, value in ACTION.dump_python(action, mode="json").items() if name != "kind" and value is not None}
    return json.dumps(parts, ensure_ascii=False)[1:-1]


def _label(action: Action) -> str:
    match action:
        case actions.Click(count=count, button=button):
            times = {1: "", 2: "double ", 3: "triple "}[count]
            return f"{times}{'' if button == 'left' else button + ' '}click"
        case actions.TypeText(text=text):
            return f"type “{text}”"
        case actions.Hotkey(keys=keys):
            return " + ".join(keys)
        case actions.Scroll(direction=direction):
            return f"scroll {direction}"
        case actions.SelectOption(option=option):
            return f"select “{option}”"
        case actions.ToolCall(name=name, arguments=arguments):
            command = arguments.get("command")
            return f"$ {command}" if name == "execute_bash" else name
        case actions.Navigate(url=url):
            return f"go to {url}"
        case actions.Finished(answer=answer):
            return f"finished {answer}".rstrip()
        case actions.InvalidAction(reason=reason):
            return f"no action: {reason}"
        case _:
            return action.kind.replace("_", " ")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LABEL_CHARS else line[: LABEL_CHARS - 1] + "…"
