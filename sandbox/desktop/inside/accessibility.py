"""What is on the screen as a flat list of elements, read from the applications' accessibility trees (AT-SPI 2).

Windows come from the top one down: first the frame's own parts (title, buttons), then what the application says is showing, in reading
order. A thing whose every test point lies under another window is not listed. Windows of programs without a tree (xterm, Wine) are one
element of role "image" that carries their title.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib  # noqa: E402

from sandbox.desktop.inside.nodes import (  # noqa: E402
    CONTAINERS,
    MAX_CHILDREN,
    NEED_TEXT,
    TYPED,
    WHOLE,
    Box,
    box_of,
    children,
    role_of,
    states_of,
    text_of,
)
from sandbox.desktop.inside.walk import Walk, top_nodes  # noqa: E402
from sandbox.desktop.inside.windows import FoundWindow  # noqa: E402

ROW_PX = 8
EMPTY_CELLS = 3
CALL_LIMIT_MS = 3000
WALK_LIMIT_S = 20.0
"""A program that hangs answers nothing: it costs some of the first limit, and never more than the second."""
FRAME_BUTTONS = ("close", "maximise", "minimise")
"""Of the window frame, from the right; openbox.xml has them in this order."""

_R = Atspi.Role
_POPUPS = {_R.MENU, _R.POPUP_MENU, _R.WINDOW, _R.TOOL_TIP}
_S = Atspi.StateType


class Accessibility:
    def __init__(self, width_px: int, height_px: int) -> None:
        self._screen = Box(0, 0, width_px, height_px)
        Atspi.set_timeout(CALL_LIMIT_MS, CALL_LIMIT_MS)
        self._desktop = Atspi.get_desktop(0)

    def elements(self, windows: list[FoundWindow]) -> list[dict[str, Any]]:
        """Elements as dictionaries: role, text, states, x, y, width, height."""
        walk = _ScreenWalk(self._screen, [window for window in windows if not window.is_minimised])
        trees = list(self._trees())
        for index, window in enumerate(walk.windows):
            walk.frame(index)
            tree = _tree_of(window, trees)
            if tree is None:
                walk.add("image", window.title, [], walk.inner(index), index)
            else:
                trees.remove(tree)
                walk.visit(tree.node, index)
        for tree in trees:
            if tree.is_popup:
                walk.visit(tree.node, -1)
        return walk.sorted()

    def _trees(self) -> Iterator[_Tree]:
        for node, pid in top_nodes(self._desktop):
            with suppress(GLib.Error):
                box = box_of(node)
                if box is not None:
                    yield _Tree(node, pid, node.get_name() or "", box, node.get_role() in _POPUPS)


@dataclass(frozen=True)
class _Tree:
    node: Any
    pid: int
    name: str
    box: Box
    is_popup: bool


def _tree_of(window: FoundWindow, trees: Iterable[_Tree]) -> _Tree | None:
    """The tree that belongs to a window: of its process, and of its title or its place."""
    own = [tree for tree in trees if tree.pid == window.pid]
    named = [tree for tree in own if tree.name == window.title]
    inside = [tree for tree in named or own if tree.box.width <= window.width_px + 100 and tree.box.holds(*_middle(window))]
    return next(iter(inside or named), None)


def _middle(window: FoundWindow) -> tuple[int, int]:
    return window.x_px + window.width_px // 2, window.y_px + window.height_px // 2


class _ScreenWalk(Walk[tuple[int, Box, dict[str, Any]]]):
    """Collects elements by level: -1 is above all windows, n is window n counted from the top."""

    def __init__(self, screen: Box, windows: list[FoundWindow]) -> None:
        super().__init__(WALK_LIMIT_S)
        self._screen = screen
        self.windows = windows
        self._popups: list[Box] = []

    def inner(self, index: int) -> Box:
        window = self.windows[index]
        return Box(window.x_px, window.y_px, window.width_px, window.height_px)

    def _outer(self, index: int) -> Box:
        inner, (left, right, top, bottom) = self.inner(index), self.windows[index].frame
        return Box(inner.x - left, inner.y - top, inner.width + left + right, inner.height + top + bottom)

    def frame(self, index: int) -> None:
        """The title and the buttons of a window's frame."""
        outer, (left, right, top, _) = self._outer(index), self.windows[index].frame
        if top < 10:
            return
        side = top - 4
        edge = outer.x + outer.width - right - 2
        buttons = [Box(edge - (n + 1) * (side + 1), outer.y + 2, side, side) for n in range(len(FRAME_BUTTONS))]
        title = Box(outer.x + left, outer.y, buttons[-1].x - outer.x - left, top)
        states = ["focused"] if self.windows[index].is_focused else []
        self.add("header", self.windows[index].title, states, title, index)
        for name, box in zip(reversed(FRAME_BUTTONS), reversed(buttons), strict=True):
            self.add("button", name, [], box, index)

    def enter(self, node: Any, kind: Any, states: Any, level: int) -> None:
        if kind in _POPUPS and (box := box_of(node)) is not None and kind is not _R.MENU:
            level = -1
            self._popups.append(box)
        role = role_of(kind, states)
        if role is not None:
            self._add_node(node, kind, role, states, level)
        if kind is _R.MENU:
            self._visit_menu(node)
        elif kind is _R.TABLE and node.get_child_count() > MAX_CHILDREN:
            self._visit_sheet(node, level)
        elif role not in WHOLE or kind in CONTAINERS:
            self.visit_children(node, level)

    def _visit_menu(self, node: Any) -> None:
        """The items of a menu that is open lie in a window that is not reported elsewhere: it is as large as all of them."""
        first = len(self.found)
        self.visit_children(node, -1)
        boxes = [box for level, box, _ in self.found[first:] if level < 0]
        if boxes:
            x, y = min(box.x for box in boxes), min(box.y for box in boxes)
            right, bottom = max(box.x + box.width for box in boxes), max(box.y + box.height for box in boxes)
            self._popups.append(Box(x - 2, y - 2, right - x + 4, bottom - y + 4))

    def _visit_sheet(self, node: Any, level: int) -> None:
        """A spreadsheet has a million cells: those that show are read row by row from the top left one on, until some are empty."""
        table, component, box = node.get_table_iface(), node.get_component_iface(), box_of(node)
        if table is None or component is None or box is None:
            return
        corner = component.get_accessible_at_point(box.x + 2, box.y + 2, Atspi.CoordType.SCREEN)
        start = corner.get_index_in_parent() if corner is not None else 0
        first_row, first_column = Atspi.Table.get_row_at_index(table, start), Atspi.Table.get_column_at_index(table, start)
        num_empty_rows = 0
        for row in range(first_row, first_row + MAX_CHILDREN):
            num_empty = 0
            is_empty_row = True
            for column in range(first_column, first_column + MAX_CHILDREN):
                cell = Atspi.Table.get_accessible_at(table, row, column)
                if cell is None or not (states := cell.get_state_set()).contains(_S.SHOWING) or (place := box_of(cell)) is None:
                    break
                content = text_of(cell)
                self.add("item", f"{cell.get_name()} {content}", _states(cell, "item", states), place, level)
                num_empty = 0 if content else num_empty + 1
                is_empty_row = is_empty_row and not content
                if num_empty == EMPTY_CELLS:
                    break
            num_empty_rows = num_empty_rows + 1 if is_empty_row else 0
            if num_empty_rows == EMPTY_CELLS:
                return

    def _add_node(self, node: Any, kind: Any, role: str, states: Any, level: int) -> None:
        box = box_of(node)
        if box is None:
            return
        # A menu that pops up by itself has no name; its items' names are theirs.
        text = text_of(node) if role in TYPED else node.get_name() or "" if kind is _R.MENU else _name(node, role)
        if text or role not in NEED_TEXT:
            self.add(role, text, _states(node, role, states), box, level)

    def add(self, role: str, text: str, states: list[str], box: Box, level: int) -> None:
        within = self._screen if level < 0 else self._outer(level) if role in ("header", "button") else self.inner(level)
        seen = box.cut(within).cut(self._screen)
        if seen.width < 2 or seen.height < 2:
            return
        text = text.strip("\n") if role == "textarea" else " ".join(text.split())
        size = {"width": seen.width, "height": seen.height}
        self.found.append((level, seen, {"role": role, "text": text, "states": states, **size}))

    def _is_open(self, x: int, y: int, level: int) -> bool:
        """Whether a click at a point comes to a window, and not to what lies above it."""
        if level < 0:
            return True
        return not any(box.holds(x, y) for box in (*self._popups, *(self._outer(above) for above in range(level))))

    def sorted(self) -> list[dict[str, Any]]:
        """Level by level; what popped up comes first and covers what lies under it."""
        levels: dict[int, list[dict[str, Any]]] = {}
        for level, box, element in self.found:
            point = next((at for at in _points(box) if self._is_open(*at, level)), None)
            if point is not None:
                levels.setdefault(level, []).append({**element, "x": point[0], "y": point[1]})
        return [element for level in sorted(levels) for element in _in_rows(levels[level])]


def _in_rows(elements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """From top to bottom, and what stands side by side from left to right."""
    rows: list[list[dict[str, Any]]] = []
    for element in sorted(elements, key=lambda element: (element["y"], element["x"])):
        if rows and element["y"] - rows[-1][0]["y"] <= ROW_PX:
            rows[-1].append(element)
        else:
            rows.append([element])
    return [element for row in rows for element in sorted(row, key=lambda element: element["x"])]


def _points(box: Box) -> Iterator[tuple[int, int]]:
    for fy in (0.5, 0.25, 0.75):
        for fx in (0.5, 0.25, 0.75, 0.1, 0.9):
            yield box.x + min(int(box.width * fx), box.width - 1), box.y + min(int(box.height * fy), box.height - 1)


def _name(node: Any, role: str) -> str:
    """What a thing is called; for an item of several parts, the parts' names."""
    name = node.get_name() or ""
    if name or role == "image":
        return str(name)
    if role == "item":
        parts = " ".join(part for child in children(node) if (part := child.get_name()))
        if parts:
            return parts
    return text_of(node)


def _states(node: Any, role: str, states: Any) -> list[str]:
    return states_of(states, is_selected=role in ("input", "textarea") and _is_all_selected(node))


def _is_all_selected(node: Any) -> bool:
    text = node.get_text_iface()
    if text is None or Atspi.Text.get_n_selections(text) < 1:
        return False
    chosen = Atspi.Text.get_selection(text, 0)
    length = int(chosen.end_offset) - int(chosen.start_offset)
    return length > 0 and length >= int(Atspi.Text.get_character_count(text))
