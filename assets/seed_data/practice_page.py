"""A page in memory that behaves like a plain web form: what tutorials (assets/seed_data/tutorials.py) are acted out on. No browser is
involved.

It knows what clicks, typing and choosing do to fields, boxes, tabs, sections and suggestions, and shows itself as an Observation. What
there is to learn on a page is the lessons' business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sandbox.actions import Action, Click, SelectOption, TypeText
from sandbox.session import Element, Observation

WIDTH_PX, ROW_PX = 160, 8
FIELD_ROLES = ("input", "textarea", "spinner")


@dataclass(slots=True, eq=False)
class Widget:
    """One thing on the page. `shows_when` hides it while it returns False; `is_secret` shows stars for what is typed."""

    role: str
    text: str = ""
    states: set[str] = field(default_factory=set)
    is_secret: bool = False
    shows_when: Callable[[], bool] | None = None
    fills: Widget | None = None
    """The field that takes this suggestion's text when it is clicked."""
    is_hint: bool = False
    """What the field shows is its placeholder: gone once something is typed."""

    @property
    def shown_text(self) -> str:
        return "*" * len(self.text) if self.is_secret else self.text

    @property
    def shown_states(self) -> tuple[str, ...]:
        return tuple(state for state in ("checked", "selected", "focused", "expanded", "disabled") if state in self.states)


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a worked example: what to do with which widget. `text` is typed or chosen."""

    verb: str
    widget: Widget
    text: str = ""


class PracticePage:
    """Widgets from top to bottom. Moves are made of actions by the widget's place, as an agent would make them."""

    def __init__(self, widgets: list[Widget]) -> None:
        self.widgets = widgets

    @property
    def _visible(self) -> list[Widget]:
        return [widget for widget in self.widgets if widget.shows_when is None or widget.shows_when()]

    def observe(self, instruction: str) -> Observation:
        elements = tuple(
            Element(
                role=widget.role,
                text=widget.shown_text,
                states=widget.shown_states,
                x_px=WIDTH_PX // 2,
                y_px=ROW_PX * place + ROW_PX // 2,
                width_px=WIDTH_PX,
                height_px=ROW_PX,
            )
            for place, widget in enumerate(self._visible)
        )
        return Observation(
            instruction=instruction,
            elements=elements,
            screenshot=None,
            width_px=WIDTH_PX,
            height_px=ROW_PX * (len(elements) + 1),
            time_ms=0.0,
        )

    def action(self, move: Move) -> Action:
        """The action that carries out a move on the page as it is now."""
        if move.verb == "type":
            return TypeText(text=move.text)
        x, y = WIDTH_PX // 2, ROW_PX * self._visible.index(move.widget) + ROW_PX // 2
        if move.verb == "select":
            return SelectOption(x=x, y=y, option=move.text)
        return Click(x=x, y=y, count=3 if move.verb == "triple_click" else 1)

    def carry_out(self, move: Move) -> None:
        """Change the page as a browser would."""
        widget = move.widget
        if move.verb == "type":
            widget.text = move.text if "selected" in widget.states or widget.is_hint else widget.text + move.text
            widget.is_hint = False
            widget.states.discard("selected")
            return
        for other in self.widgets:
            other.states -= {"focused"} | ({"selected"} if other.role in FIELD_ROLES else set())
        if move.verb == "select":
            widget.text = move.text
        if widget.role in (*FIELD_ROLES, "select"):
            widget.states |= {"focused"} | ({"selected"} if move.verb == "triple_click" and widget.text and not widget.is_hint else set())
        elif widget.fills is not None:
            widget.fills.text = widget.text
            widget.fills.states.add("focused")
        else:
            self._push(widget)

    def _push(self, widget: Widget) -> None:
        if widget.role == "checkbox":
            widget.states ^= {"checked"}
        elif widget.role == "header":
            widget.states ^= {"expanded"}
        elif widget.role in ("radio", "tab"):
            state = "checked" if widget.role == "radio" else "selected"
            for other in self.widgets:
                if other.role == widget.role:
                    other.states.discard(state)
            widget.states.add(state)
