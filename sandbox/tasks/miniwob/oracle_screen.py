"""Screen: what an oracle looks at (one observation and the actions so far), with the questions oracles ask of it and the small moves
they share. The oracles themselves are oracle_pointing.py, oracle_forms.py, oracle_lists.py and oracle_shapes.py.

An oracle sees what a policy sees: the instruction, the elements, its own past actions. Nothing comes from the page's scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sandbox.actions import Action, Click, Drag, Hotkey, Scroll, TypeText, Wait
from sandbox.session import Element, Observation

FIELD_ROLES = ("input", "textarea", "spinner")
QUERY_HEIGHT_PX = 50
"""The instruction's band at the top of a MiniWoB page; an element above it belongs to the instruction."""


class Lost(Exception):
    """The screen is not one of the task's: there is nothing to propose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """One observation and the history before it."""

    instruction: str
    elements: tuple[Element, ...]
    history: tuple[Action, ...]

    @classmethod
    def of(cls, observation: Observation, history: Sequence[Action]) -> Screen:
        return cls(instruction=observation.instruction, elements=observation.elements, history=tuple(history))

    @property
    def quoted(self) -> list[str]:
        """The instruction's strings in double quotes, in order."""
        return re.findall(r'"(.*?)"', self.instruction)

    def quote(self, index: int = 0) -> str:
        """One of the quoted strings. Raises Lost where the instruction has none."""
        if index >= len(self.quoted):
            raise Lost
        return self.quoted[index]

    def match(self, pattern: str) -> tuple[str, ...] | None:
        """Groups of a pattern in the instruction, or None where it does not occur."""
        found = re.search(pattern, self.instruction)
        return found.groups() if found else None

    def all(self, *roles: str) -> list[Element]:
        """Elements of the given roles below the instruction, in reading order; no role means any."""
        return [e for e in self.elements if e.y_px >= QUERY_HEIGHT_PX and (not roles or e.role in roles)]

    def first(self, *roles: str, text: str | None = None) -> Element | None:
        """The first element of the given roles, with exactly this text where one is given."""
        return next((e for e in self.all(*roles) if text is None or e.text == text), None)

    def after(self, anchor: Element, *roles: str, text: str | None = None) -> Element | None:
        """The next element of the given roles behind `anchor` in reading order."""
        rest = self.elements[self.elements.index(anchor) + 1 :]
        return next((e for e in rest if (not roles or e.role in roles) and (text is None or e.text == text)), None)

    def before(self, anchor: Element, *roles: str) -> Element | None:
        """The nearest element of the given roles ahead of `anchor` in reading order."""
        ahead = self.elements[: self.elements.index(anchor)]
        return next((e for e in reversed(ahead) if not roles or e.role in roles), None)

    @property
    def last(self) -> Action | None:
        return self.history[-1] if self.history else None


def click(element: Element | None) -> Action | None:
    """A click on an element; None where there is none, or it does not react."""
    return None if element is None or "disabled" in element.states else Click(x=element.x_px, y=element.y_px)


def hits(action: Action, element: Element) -> bool:
    """Whether a click's point lies on the element's box, as far as the box is known from where it is clicked."""
    if not isinstance(action, Click):
        return False
    return abs(action.x - element.x_px) <= element.width_px / 2 and abs(action.y - element.y_px) <= element.height_px / 2


def fill(screen: Screen, field: Element | None, wanted: str, *, placeholder: str = "") -> Action | None:
    """The next move towards `field` holding `wanted`: focus it, select what is wrong in it, type. None where it is done (or cannot be).

    Text that is already there is replaced by a triple click, which selects it, and typing over it.
    """
    if field is None or "disabled" in field.states or is_filled(screen, field, wanted):
        return None
    is_empty = field.text in ("", placeholder)
    is_all_selected = "selected" in field.states or (isinstance(screen.last, Click) and screen.last.count == 3 and hits(screen.last, field))
    if "focused" in field.states and (is_empty or is_all_selected):
        return TypeText(text=wanted)
    return Click(x=field.x_px, y=field.y_px, count=1 if is_empty else 3)


def is_filled(screen: Screen, field: Element, wanted: str) -> bool:
    """Whether a field holds a text. A password shows only its length; what was typed into it is in the history."""
    if field.text != wanted and field.text == "*" * len(field.text) and len(field.text) == len(wanted):
        return typed_into(screen, field) in (wanted, None)
    return field.text == wanted


def typed_into(screen: Screen, field: Element) -> str | None:
    """What the history says a field holds, or None where that does not fit what it shows."""
    text, is_focused, is_selected = "", False, False
    for action in screen.history:
        if isinstance(action, Click):
            is_focused = hits(action, field)
            is_selected = is_focused and action.count > 1
        elif isinstance(action, TypeText) and is_focused:
            text = action.text if is_selected else text + action.text
            is_selected = False
    return text if len(text) == len(field.text) else None


def fill_all(screen: Screen, wanted: Iterable[tuple[Element | None, str]], submit: Element | None) -> Action | None:
    """Fill fields one after the other, then click the button. None where a field is missing."""
    for field, text in wanted:
        if field is None:
            return None
        if not is_filled(screen, field, text):
            return fill(screen, field, text)
    return click(submit)


def press(*keys: str) -> Action:
    return Hotkey(keys=keys)


def drag(start: Element, to_x: int, to_y: int) -> Action:
    return Drag(x=start.x_px, y=start.y_px, to_x=to_x, to_y=to_y)


def scroll_down(screen: Screen, x: int, y: int, limit: int = 12) -> Action | None:
    """One wheel gesture further down, or None after `limit` of them: what is looked for is not there."""
    num_scrolls = sum(isinstance(action, Scroll) for action in screen.history)
    return Scroll(direction="down", x=x, y=y) if num_scrolls < limit else None


def wait(seconds: float) -> Action:
    return Wait(seconds=seconds)


def number(text: str) -> int | None:
    """The text as a whole number, or None."""
    return int(text) if re.fullmatch(r"-?\d+", text.strip()) else None


def ordinal(text: str) -> int:
    """1 for "1st", 12 for "12th"."""
    return int(re.sub(r"\D", "", text))
