"""Whether a tab shows a page of an excluded site in a frame, at any depth and in whichever process Chromium keeps it. Frames of the page's
own site are reported by its session; one of another site has its own session, which reports those inside it.

Chromium reports a frame's new address when it commits the page there, which is before anything of it is painted: at the time of a picture
all frames that it shows are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sandbox.browser.cdp.connection import Connection, Params

FOLLOWING = {"autoAttach": True, "waitForDebuggerOnStart": False, "flatten": True, "filter": [{"type": "iframe"}]}


@dataclass(slots=True, kw_only=True)
class _Process:
    """The frames that one session reports."""

    around: str | None
    """The session of the page around it."""
    target_id: str
    """Also the id of its outermost frame, the page itself or one in it."""
    excluded: set[str] = field(default_factory=set)
    """Ids of frames."""
    reported: set[str] = field(default_factory=set)
    """Ids of frames of which an event came, which are known better than by a list that was asked for earlier."""


class Frames:
    """Of one tab. `changed` is called when an excluded frame came or went."""

    def __init__(
        self, connection: Connection, session_id: str, target_id: str, excludes: Callable[[str], bool], changed: Callable[[], None]
    ) -> None:
        self._connection, self._excludes, self._changed = connection, excludes, changed
        self._page = session_id
        self._processes: dict[str, _Process] = {}
        self._follow(session_id, None, target_id)

    @property
    def has_excluded(self) -> bool:
        return any(process.excluded for process in self._processes.values())

    def navigated(self, frame: Params, session_id: str | None = None) -> None:
        """Page.frameNavigated of a session, the page's own where none is named. What the outermost frame of a session shows next has none
        of the frames of what it showed before: no event says of each that it is gone."""
        process = self._processes.get(session_id or self._page)
        if process is None:
            return
        excluded = set() if frame["id"] == process.target_id else process.excluded - {frame["id"]}
        if "parentId" in frame and self._excludes(frame["url"]):
            excluded.add(frame["id"])
        process.reported.add(frame["id"])
        self._now(process, excluded)

    def target_changed(self, info: Params) -> None:
        """Target.targetInfoChanged: the browser knows earlier than the frame's process. It knows addresses only; that a frame is gone
        comes from the frame's process."""
        for process in self._processes.values():
            if process.target_id == info["targetId"] and process.around is not None and self._excludes(info["url"]):
                self._now(process, process.excluded | {info["targetId"]})

    def forget(self) -> None:
        """The tab is gone."""
        for session_id in list(self._processes):
            self._connection.forget(session_id)
        self._processes.clear()

    def _follow(self, session_id: str, around: str | None, target_id: str) -> None:
        self._processes[session_id] = _Process(around=around, target_id=target_id)
        listen, send = self._connection.listen, self._connection.send
        if around is not None:
            listen(session_id, "Page.frameNavigated", lambda params: self.navigated(params["frame"], session_id))
        listen(session_id, "Page.frameDetached", lambda params: self._gone(session_id, params["frameId"]))
        listen(session_id, "Target.attachedToTarget", lambda params: self._attached(session_id, params))
        listen(session_id, "Target.detachedFromTarget", lambda params: self._detached(params["sessionId"]))
        send("Page.enable", None, session_id)
        send("Target.setAutoAttach", FOLLOWING, session_id)
        if around is not None:  # what was there before it was listened to
            send("Page.getFrameTree", None, session_id).add_done_callback(partial(self._listed, session_id))

    def _attached(self, around: str, params: Params) -> None:
        self._follow(params["sessionId"], around, params["targetInfo"]["targetId"])
        self.target_changed(params["targetInfo"])

    def _listed(self, session_id: str, answer: asyncio.Future[Params]) -> None:
        process = self._processes.get(session_id)
        if process is None or answer.cancelled() or answer.exception() is not None:  # it is gone by now
            return
        found = {frame["id"] for frame in _in_tree(answer.result()["frameTree"]) if self._excludes(frame["url"])}
        self._now(process, process.excluded | (found - process.reported))

    def _gone(self, session_id: str, frame_id: str) -> None:
        """Removed, or gone on in another process."""
        process = self._processes.get(session_id)
        if process is not None:
            process.reported.add(frame_id)
            self._now(process, process.excluded - {frame_id})

    def _detached(self, session_id: str) -> None:
        """With all that was inside it."""
        process = self._processes.pop(session_id, None)
        if process is None:
            return
        self._connection.forget(session_id)
        for inner in [inner for inner, other in self._processes.items() if other.around == session_id]:
            self._detached(inner)
        if process.excluded:
            self._changed()

    def _now(self, process: _Process, excluded: set[str]) -> None:
        if process.excluded != excluded:
            process.excluded = excluded
            self._changed()


def _in_tree(tree: dict[str, Any]) -> list[Params]:
    return [tree["frame"], *(frame for inner in tree.get("childFrames", ()) for frame in _in_tree(inner))]
