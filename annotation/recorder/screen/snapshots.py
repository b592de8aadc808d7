"""The elements on the screen as they were from moment to moment, with what is private in them already found. In memory only.

Programs are asked when the screen has changed and come to rest, so that there is an answer before the next action; asking at the action
would give what came after it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from annotation.recorder.screen.accessibility import Accessibility, SeenElement
from annotation.recorder.screen.camera import Camera, Frame
from annotation.recorder.screen.exclusions import Exclusions, asks_for_password
from annotation.recorder.screen.pixels import grown
from annotation.recorder.screen.windows import SeenWindow
from annotation.recordings.bundle import Box, ScreenElement
from annotation.recordings.redaction import Redactor, replace_findings

SNAPSHOTS_KEPT = 400
"""Some minutes of them: a long run of typing is written when it is over, with the picture from before it."""
REST_S = 0.15
LONGEST_S = 0.8
"""A screen that never rests (a video, a clock) is read this often all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Elements with redacted texts, those on top and not excluded; `black`: where the private parts of their texts stand."""

    start_s: float
    end_s: float
    elements: tuple[ScreenElement, ...]
    names: tuple[str, ...]
    """What each element is called, as far as it is not its text: the label of a field."""
    black: tuple[Box, ...]

    def at(self, x: int, y: int) -> tuple[ScreenElement, str] | None:
        """The smallest element at a point, and its name."""
        hits = [(e.box.width * e.box.height, i) for i, e in enumerate(self.elements) if e.box.holds(x, y)]
        if not hits:
            return None
        index = min(hits)[1]
        return self.elements[index], self.names[index]


class Snapshots:
    def __init__(self, accessibility: Accessibility, camera: Camera, exclusions: Exclusions, redactor: Redactor) -> None:
        self._accessibility, self._camera, self._exclusions, self._redactor = accessibility, camera, exclusions, redactor
        self._kept: deque[Snapshot] = deque(maxlen=SNAPSHOTS_KEPT)
        self._stop = threading.Event()
        self.failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)

    def start(self) -> None:
        if self._accessibility.is_available:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def forget(self) -> None:
        self._kept.clear()

    def of(self, frame: Frame) -> Snapshot | None:
        """The snapshot of a frame: the one that was taken while it showed, else the last one before it."""
        kept = list(self._kept)
        while_shown = [one for one in kept if frame.since_s <= one.start_s <= frame.until_s + 0.2]
        before = [one for one in kept if one.end_s <= frame.until_s + 0.2]
        return while_shown[-1] if while_shown else before[-1] if before else None

    def black(self, frame: Frame) -> tuple[Box, ...]:
        """Places to blacken in a frame: by its own snapshot, and where it is from before the frame, by the one after it, too."""
        kept, own = list(self._kept), self.of(frame)
        boxes = list(own.black) if own is not None else []
        if own is None or own.start_s < frame.since_s:
            after = next((one for one in kept if one.start_s > frame.since_s), None)
            boxes += after.black if after is not None else ()
        return tuple(dict.fromkeys(boxes))

    def _run(self) -> None:
        try:
            self._keep_reading()
        except Exception as error:  # must reach the recorder: pictures would be redacted by what stood there before
            self.failure = type(error).__name__

    def _keep_reading(self) -> None:
        seen, read_s = -1, 0.0
        while not self._stop.wait(0.05):
            frame, now_s = self._camera.newest(), time.monotonic()
            if frame is None or frame.number == seen:
                continue
            if now_s - frame.since_s < REST_S and now_s - read_s < LONGEST_S:
                continue
            seen, read_s = frame.number, now_s
            snapshot = self._read(now_s)
            if snapshot is not None:
                self._kept.append(snapshot)

    def _read(self, now_s: float) -> Snapshot | None:
        found, _ = self._accessibility.elements()
        looks = self._camera.looks(time.monotonic(), time.monotonic())
        windows = looks[-1] if looks else ()
        elements, names, black = [], list[str](), list[Box]()
        for seen in found:
            if not _is_on_top(seen, windows) or self._is_hidden(seen, windows):
                continue
            text, boxes = self._redacted(seen)
            black += boxes
            elements.append(seen.element.model_copy(update={"text": text}))
            names.append(self._redactor.redact(seen.name)[0])
        for window in windows:
            if self._redactor.find(window.title) or asks_for_password(window.title):
                top = max(0, window.inner.y - window.box.y)
                black.append(Box(x=window.box.x, y=window.box.y, width=window.box.width, height=top))
        return Snapshot(start_s=now_s, end_s=time.monotonic(), elements=tuple(elements), names=tuple(names), black=tuple(black))

    def _redacted(self, seen: SeenElement) -> tuple[str, list[Box]]:
        """An element's text without what is private, and where that stands."""
        if seen.is_password:
            return "", [grown(seen.element.box, 0)]
        text = seen.element.text
        findings = self._redactor.find(text, loose=True)
        if not findings:
            return text, []
        boxes: list[Box] = []
        for finding in findings:
            rows = self._accessibility.extents(seen.node, finding.start, finding.end)
            inside = [row for row in rows if row.overlaps(seen.element.box)]
            # A program that does not say where, or says nonsense, has the whole element blackened.
            boxes += [grown(row) for row in inside] if inside or (rows and seen.element.role == "textarea") else [grown(seen.element.box)]
        return replace_findings(text, findings), boxes

    def _is_hidden(self, seen: SeenElement, windows: Sequence[SeenWindow]) -> bool:
        box = seen.element.box
        return self._exclusions.hides_point(box.x + box.width // 2, box.y + box.height // 2, windows)


def cover(element: ScreenElement, redactor: Redactor) -> ScreenElement:
    """An element as it may be stored, by what is known to be secret by now: more than when its program was asked."""
    text, kinds = redactor.redact(element.text, loose=True)
    return element.model_copy(update={"text": text[:2000]}) if kinds else element


def _is_on_top(seen: SeenElement, windows: Sequence[SeenWindow]) -> bool:
    """Whether the window at an element's middle is of its program, as far as that is known."""
    box = seen.element.box
    x, y = box.x + box.width // 2, box.y + box.height // 2
    top = next((window for window in windows if window.box.holds(x, y)), None)
    return top is None or top.pid in (0, seen.pid)
