"""Pictures on their way to the disk: what is private in them is found and blackened on a thread of its own, since reading pixels takes a
second. Only then are they stored. Where that cannot keep up, actions stay without a picture; no picture goes by unread.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from annotation.recorder.screen.camera import Frame
from annotation.recorder.screen.pixels import blacken, boxes_in_words, grown, png_of
from annotation.recorder.screen.snapshots import Snapshot, cover
from annotation.recorder.screen.text_reader import TextReader
from annotation.recorder.store.store import Store
from annotation.recordings.bundle import Box
from annotation.recordings.redaction import Redactor
from warehouse.core.identity import bytes_id

_LOG = logging.getLogger(__name__)
MAX_WAITING = 48
ASKED_KEPT = 400
"""So many frames are known to be stored or waiting; what is requested again after that is stored again."""


class SnapshotSource(Protocol):
    """What is known of the elements of a frame."""

    def of(self, frame: Frame) -> Snapshot | None: ...

    def black(self, frame: Frame) -> tuple[Box, ...]: ...


class Screens:
    def __init__(
        self, store: Store, snapshots: SnapshotSource, redactor: Redactor, reader: TextReader | None, *, with_elements: bool = True
    ) -> None:
        self._store, self._snapshots, self._redactor, self._reader = store, snapshots, redactor, reader
        self._with_elements = with_elements
        self._queue: queue.Queue[Frame | None] = queue.Queue()
        self._asked: deque[int] = deque(maxlen=ASKED_KEPT)
        self._thread = threading.Thread(target=self._run, name="screens", daemon=True)
        self.num_dropped = 0

    def start(self) -> None:
        self._thread.start()

    def keep(self, frame: Frame | None) -> int | None:
        """Have a frame stored; its number, under which the journal will list it. None where there is none, or too many wait."""
        if frame is None:
            return None
        if frame.number in self._asked:
            return frame.number
        if self._queue.qsize() >= MAX_WAITING:
            self.num_dropped += 1
            return None
        self._asked.append(frame.number)
        self._queue.put(frame)
        return frame.number

    def finish(self, progress: Callable[[int], None] | None = None) -> None:
        """Wait until all are stored."""
        self._queue.put(None)
        while self._thread.is_alive():
            self._thread.join(0.5)
            if progress is not None:
                progress(self._queue.qsize())

    def _run(self) -> None:
        while (frame := self._queue.get()) is not None:
            try:
                self._store_one(frame)
            except Exception as error:  # a picture that could not be made private is not stored; its text stays out of the log, too
                _LOG.warning("A picture was left out: %s", type(error).__name__)
                self.num_dropped += 1

    def _store_one(self, frame: Frame) -> None:
        snapshot = self._snapshots.of(frame)
        boxes = list(self._snapshots.black(frame))
        hidden = blacken(frame.pixels, [], frame.mask)
        if self._reader is not None:
            boxes += boxes_in_words(self._reader.words(hidden), self._redactor)
        width, height = frame.size_px
        before = snapshot.elements if snapshot is not None else ()
        elements = [cover(element, self._redactor) for element in before]
        boxes += [grown(old.box) for old, new in zip(before, elements, strict=True) if old != new]
        boxes = [cut for box in dict.fromkeys(boxes) if (cut := _inside(box, width, height)) is not None]
        png = png_of(blacken(hidden, boxes))
        screen_id = bytes_id("screen", png)
        self._store.put_screen(screen_id, png)
        record: dict[str, Any] = {
            "type": "screen",
            "frame": frame.number,
            "screen_id": screen_id,
            "width_px": width,
            "height_px": height,
            "redacted": [box.model_dump() for box in [*boxes, *boxes_of_mask(frame.mask)]],
            "elements": [element.model_dump(mode="json") for element in elements] if self._with_elements else [],
        }
        self._store.append(record)


def _inside(box: Box, width: int, height: int) -> Box | None:
    x, y = max(0, box.x), max(0, box.y)
    right, bottom = min(width, box.x + box.width), min(height, box.y + box.height)
    return Box(x=x, y=y, width=right - x, height=bottom - y) if right > x and bottom > y else None


def boxes_of_mask(mask: np.ndarray | None) -> list[Box]:
    """The rectangle around everything that is excluded; where it is several things, around each band of rows that has any."""
    if mask is None or not mask.any():
        return []
    rows = np.flatnonzero(np.diff(np.concatenate([[False], mask.any(axis=1), [False]]).astype(np.int8)))
    boxes = []
    for top, bottom in zip(rows[::2], rows[1::2], strict=True):
        columns = np.flatnonzero(mask[top:bottom].any(axis=0))
        boxes.append(Box(x=int(columns[0]), y=int(top), width=int(columns[-1] - columns[0]) + 1, height=int(bottom - top)))
    return boxes
