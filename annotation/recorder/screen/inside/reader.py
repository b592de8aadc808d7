"""Reports what programs expose of themselves (AT-SPI 2): which element has the focus, the elements that show, the place of a text.

Run as a file by /usr/bin/python3, which has the library `gi`; its argument is the folder that `sandbox` is in, of which it imports only
how trees are walked and nodes are read. Commands are JSON lines, {"id", "method", …}; answers {"id", "result"} or {"id", "error"}. Changes
of focus are sent unasked: {"focus": {…}, "time_s"}. Times are time.monotonic(). Text of password fields is never read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib  # noqa: E402

sys.path.append(sys.argv[1])
from sandbox.desktop.inside import nodes  # noqa: E402
from sandbox.desktop.inside.nodes import box_of, text_of  # noqa: E402
from sandbox.desktop.inside.walk import Walk, top_nodes  # noqa: E402

WALK_LIMIT_S, CALL_LIMIT_MS = 3.0, 1000
TAIL = 200
_R, _S = Atspi.Role, Atspi.StateType
DOCUMENTS = {_R.DOCUMENT_WEB: "document", _R.DOCUMENT_TEXT: "textarea"}
WHOLE = nodes.WHOLE - {"item", "select"}
"""A cell's or a list's parts are read too: each may be what is private."""
TYPED, NEED_TEXT = nodes.TYPED | {"text"}, nodes.NEED_TEXT | {"document"}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def label_of(node: Any) -> str:
    """The name of a field: its own, or that of the label that belongs to it."""
    names = [node.get_name() or "", node.get_description() or ""]
    try:
        for relation in node.get_relation_set() or ():
            if relation.get_relation_type() == Atspi.RelationType.LABELLED_BY:
                names += [relation.get_target(i).get_name() or "" for i in range(relation.get_n_targets())]
    except GLib.Error:
        pass
    return " ".join(name for name in names if name)[:300]


def focus_of(node: Any) -> dict[str, Any]:
    kind = node.get_role()
    role = nodes.ROLES.get(kind) or DOCUMENTS.get(kind) or node.get_role_name()
    focus: dict[str, Any] = {"role": role, "name": label_of(node), "is_password": kind == _R.PASSWORD_TEXT, "tail": ""}
    focus |= {"box": box_of(node), "pid": node.get_process_id()}
    if kind == _R.TERMINAL:
        text = node.get_text_iface()
        caret = Atspi.Text.get_caret_offset(text)
        focus["tail"] = Atspi.Text.get_text(text, max(0, caret - TAIL), caret) if caret > 0 else ""
    return focus


class FocusSearch(Walk[Any]):
    """Finds the node that has the focus, the innermost where several say so."""

    def enter(self, node: Any, kind: Any, states: Any, pid: int) -> None:
        self.visit_children(node, pid)
        if not self.found and states.contains(_S.FOCUSED):
            self.found.append(node)

    @property
    def is_over(self) -> bool:
        return bool(self.found) or super().is_over


class ElementWalk(Walk[dict[str, Any]]):
    """Collects elements as messages; the number `node` of each is its place in `nodes`."""

    def __init__(self) -> None:
        super().__init__(WALK_LIMIT_S)
        self.nodes: list[Any] = []

    def enter(self, node: Any, kind: Any, states: Any, pid: int) -> None:
        box = box_of(node)
        role = nodes.role_of(kind, states) or DOCUMENTS.get(kind)
        if role is not None and box is not None:
            self.add(node, kind, role, states, box, pid)
            if role in WHOLE and kind not in nodes.CONTAINERS:
                return
        self.visit_children(node, pid)

    def add(self, node: Any, kind: Any, role: str, states: Any, box: nodes.Box, pid: int) -> None:
        is_password = kind == _R.PASSWORD_TEXT
        text = "" if is_password else text_of(node) if role in TYPED else node.get_name() or ""
        if not text and role in NEED_TEXT:
            return
        self.nodes.append(node)
        self.found.append(
            {
                "node": len(self.nodes) - 1,
                "pid": pid,
                "role": role,
                "text": text,
                "name": label_of(node) if role in WHOLE else "",
                "states": nodes.states_of(states),
                "box": box,
                "is_password": is_password,
            }
        )


class Reader:
    def __init__(self) -> None:
        Atspi.set_timeout(CALL_LIMIT_MS, CALL_LIMIT_MS)
        self.desktop = Atspi.get_desktop(0)
        self.focused: Any = None
        self.nodes: list[Any] = []
        self.read = b""
        self.listener = Atspi.EventListener.new(self.on_focus)
        for kind in ("object:state-changed:focused", "focus:"):
            self.listener.register(kind)

    def on_focus(self, event: Any) -> None:
        if event.type.startswith("object:state-changed") and not event.detail1:
            return
        now = time.monotonic()
        try:
            self.focused = event.source
            focus: dict[str, Any] | None = focus_of(event.source)
        except GLib.Error:
            focus = None
        send({"focus": focus, "time_s": now})

    def find_focus(self) -> bool:
        """What had the keyboard before we listened."""
        now = time.monotonic()
        search = FocusSearch(WALK_LIMIT_S)
        for top, pid in top_nodes(self.desktop):
            with suppress(GLib.Error):
                if top.get_state_set().contains(_S.ACTIVE):
                    search.visit(top, pid)
        if self.focused is None and search.found:
            self.focused = search.found[0]
        if self.focused is not None:
            send({"focus": focus_of(self.focused), "time_s": now})
        return False

    def do_focus(self) -> dict[str, Any] | None:
        """What has the keyboard now, read again."""
        return focus_of(self.focused) if self.focused is not None else None

    def do_elements(self) -> dict[str, Any]:
        """Elements of every program that show, program by program."""
        walk = ElementWalk()
        for top, pid in top_nodes(self.desktop):
            walk.visit(top, pid)
        self.nodes = walk.nodes
        return {"elements": walk.found, "is_whole": not walk.is_over}

    def do_extents(self, node: int, start: int, end: int) -> list[list[int]]:
        """Boxes of a stretch of an element's text, one a line; empty where it does not say."""
        text = self.nodes[node].get_text_iface()
        if text is None:
            return []
        rows: list[list[int]] = []
        for offset in range(start, min(end, start + 400)):
            box = Atspi.Text.get_character_extents(text, offset, Atspi.CoordType.SCREEN)
            if box.width <= 0 or box.height <= 0:
                continue
            if rows and rows[-1][1] == box.y:
                rows[-1][2] = max(rows[-1][2], box.x + box.width - rows[-1][0])
            else:
                rows.append([box.x, box.y, box.width, box.height])
        return rows

    def obey(self, channel: Any, condition: Any) -> bool:
        data = os.read(0, 65536)
        if not data:
            os._exit(0)
        *lines, self.read = (self.read + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            number = command.pop("id")
            try:
                method = getattr(self, "do_" + command.pop("method"))
                send({"id": number, "result": method(**command)})
            except Exception as error:  # the other end has to hear of it
                send({"id": number, "error": type(error).__name__})
        return True


def main() -> None:
    reader = Reader()
    GLib.io_add_watch(0, GLib.PRIORITY_DEFAULT, GLib.IO_IN | GLib.IO_HUP, reader.obey)
    send({"ready": True})
    GLib.idle_add(reader.find_focus)
    GLib.MainLoop().run()


if __name__ == "__main__":
    main()
