"""One node of an accessibility tree (AT-SPI 2): its role, place, text, states and children, in the terms of our element lists.

For both walkers of such trees (walk.py). Runs under the Python of the distribution, which has the library `gi`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi  # noqa: E402

MAX_CHILDREN, MAX_TEXT = 500, 2000
_R, _S = Atspi.Role, Atspi.StateType
ROLES = {
    _R.PUSH_BUTTON: "button",
    _R.TOGGLE_BUTTON: "button",
    _R.CHECK_BOX: "checkbox",
    _R.CHECK_MENU_ITEM: "checkbox",
    _R.RADIO_BUTTON: "radio",
    _R.RADIO_MENU_ITEM: "radio",
    _R.PAGE_TAB: "tab",
    _R.COMBO_BOX: "select",
    _R.MENU: "item",
    _R.MENU_ITEM: "item",
    _R.LIST_ITEM: "item",
    _R.TABLE_CELL: "item",
    _R.TREE_ITEM: "item",
    _R.ICON: "item",
    _R.LINK: "link",
    _R.LABEL: "text",
    _R.STATIC: "text",
    _R.PARAGRAPH: "text",
    _R.STATUS_BAR: "text",
    _R.INFO_BAR: "text",
    _R.HEADING: "header",
    _R.COLUMN_HEADER: "header",
    _R.TABLE_COLUMN_HEADER: "header",
    _R.ROW_HEADER: "header",
    _R.TABLE_ROW_HEADER: "header",
    _R.TEXT: "input",
    _R.ENTRY: "input",
    _R.PASSWORD_TEXT: "input",
    _R.TERMINAL: "textarea",
    _R.SPIN_BUTTON: "spinner",
    _R.SLIDER: "slider",
    _R.IMAGE: "image",
    _R.CANVAS: "image",
    _R.DRAWING_AREA: "image",
}
WHOLE = {"button", "checkbox", "radio", "input", "textarea", "spinner", "item", "link", "select", "tab"}
"""Roles whose insides are part of the thing itself."""
CONTAINERS = {_R.MENU, _R.COMBO_BOX, _R.PAGE_TAB, _R.LIST_ITEM, _R.TREE_ITEM}
"""Kinds that hold others to be seen, whatever their role."""
TYPED = {"input", "textarea", "spinner"}
"""Roles whose text is what was typed, not their name."""
NEED_TEXT = {"text", "image", "header", "item"}
"""Roles that are listed only where they say something."""


class Box(NamedTuple):
    """A rectangle in pixels of the screen."""

    x: int
    y: int
    width: int
    height: int

    def holds(self, x: int, y: int) -> bool:
        return self.x <= x < self.x + self.width and self.y <= y < self.y + self.height

    def cut(self, other: Box) -> Box:
        """What lies in both; not larger than nothing where they do not meet."""
        x, y = max(self.x, other.x), max(self.y, other.y)
        right, bottom = min(self.x + self.width, other.x + other.width), min(self.y + self.height, other.y + other.height)
        return Box(x, y, right - x, bottom - y)


def children(node: Any) -> Iterator[Any]:
    """The first MAX_CHILDREN that its program still has."""
    for index in range(min(node.get_child_count(), MAX_CHILDREN)):
        child = node.get_child_at_index(index)
        if child is not None:
            yield child


def role_of(kind: Any, states: Any) -> str | None:
    """The role of a node of this kind in these states; None where we list no such thing."""
    role = ROLES.get(kind)
    return "textarea" if role == "input" and states.contains(_S.MULTI_LINE) else role


def box_of(node: Any) -> Box | None:
    """Where a node is on the screen; None where it has no extent."""
    component = node.get_component_iface()
    if component is None:
        return None
    box = component.get_extents(Atspi.CoordType.SCREEN)
    return Box(box.x, box.y, box.width, box.height) if box.width > 0 and box.height > 0 else None


def text_of(node: Any) -> str:
    """The first MAX_TEXT characters of its text; its name where it has none."""
    text = node.get_text_iface()
    if text is None:
        return node.get_name() or ""
    length = Atspi.Text.get_character_count(text)
    return Atspi.Text.get_text(text, 0, min(length, MAX_TEXT)) if length > 0 else ""


def states_of(states: Any, *, is_selected: bool = False) -> list[str]:
    """What we say of its states; `is_selected` where the caller knows that although the states do not say it."""
    found = {
        "checked": states.contains(_S.CHECKED),
        "selected": is_selected or states.contains(_S.SELECTED),
        "focused": states.contains(_S.FOCUSED),
        "expanded": states.contains(_S.EXPANDED),
        "disabled": not states.contains(_S.SENSITIVE) and not states.contains(_S.ENABLED),
    }
    return [name for name, is_so in found.items() if is_so]
