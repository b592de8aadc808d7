"""A walk over the accessibility trees (AT-SPI 2) of a display's programs: which nodes it visits, and when it ends.

Both walkers are made of it: accessibility.py, the elements of a desktop's screen, and the recorder of a person's own work
(annotation/recorder/screen/inside/reader.py). What becomes of a node is theirs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib  # noqa: E402

from sandbox.desktop.inside.nodes import children  # noqa: E402

MAX_ELEMENTS, MAX_NODES = 400, 4000
_SHOWING = Atspi.StateType.SHOWING
Found = TypeVar("Found")


def top_nodes(desktop: Any) -> Iterator[tuple[Any, int]]:
    """The top-level nodes that show, of all programs, each with the id of its process."""
    # The library caches its first answers, and hears of changes only while a main loop runs. (A cache mask of NONE makes it wait for ever.)
    desktop.clear_cache()
    for application in children(desktop):
        try:
            pid = application.get_process_id()
            for node in children(application):
                if node.get_state_set().contains(_SHOWING):
                    yield node, pid
        except GLib.Error:
            continue


class Walk(Generic[Found]):
    """Collects what it finds in nodes that show. It ends after MAX_NODES nodes, MAX_ELEMENTS finds or `limit_s` seconds, so a program that
    hangs costs no more than that."""

    def __init__(self, limit_s: float) -> None:
        self.found: list[Found] = []
        self._num_nodes = 0
        self._deadline_s = time.monotonic() + limit_s

    @property
    def is_over(self) -> bool:
        return self._num_nodes > MAX_NODES or len(self.found) >= MAX_ELEMENTS or time.monotonic() > self._deadline_s

    def visit(self, node: Any, owner: int) -> None:
        """Enter a node, if it shows. `owner` is what it belongs to, a window or a process."""
        self._num_nodes += 1
        if self.is_over:
            return
        try:
            states = node.get_state_set()
            if states.contains(_SHOWING):
                self.enter(node, node.get_role(), states, owner)
        except GLib.Error:
            return  # it went away while it was read

    def visit_children(self, node: Any, owner: int) -> None:
        for child in children(node):
            self.visit(child, owner)

    def enter(self, node: Any, kind: Any, states: Any, owner: int) -> None:
        """Take what is wanted of a node of this kind in these states, and visit its children. May raise GLib.Error."""
        raise NotImplementedError
