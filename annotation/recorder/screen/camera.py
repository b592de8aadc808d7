"""Pictures of the screen, several a second, in memory: so that there is one from before each action. Nothing is stored here.

A frame carries what is excluded of it: looked up before and after the picture was taken, so that a window that just moved is hidden in
both places. While recording is paused no picture is taken.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from annotation.recorder.screen.exclusions import Exclusions, fill
from annotation.recorder.screen.windows import SeenWindow, WindowReader
from annotation.recordings.bundle import Box
from warehouse.core.errors import RecorderUnavailable

FRAMES_KEPT = 12
LOOKS_KEPT_S = 120.0


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class Frame:
    """A picture, shape (height, width, 3), that the screen showed from `since_s` on, and still at `until_s`. `mask`: what is excluded."""

    number: int
    since_s: float
    until_s: float
    pixels: np.ndarray = field(repr=False)
    mask: np.ndarray | None = field(repr=False, default=None)

    @property
    def size_px(self) -> tuple[int, int]:
        return self.pixels.shape[1], self.pixels.shape[0]


def check_screen() -> None:
    """Whether the screen can be read: one pixel of it is, and dropped. Raises RecorderUnavailable."""
    try:
        with _grabber() as grabber:
            area = grabber.monitors[0]
            grabber.grab({"left": area["left"], "top": area["top"], "width": 1, "height": 1})
    except Exception as error:  # of mss, or of the system below it
        raise RecorderUnavailable(f"The screen cannot be read: {type(error).__name__}: {error}.") from error


def _grabber() -> Any:
    import mss

    return getattr(mss, "MSS", mss.mss)()  # the older name is deprecated since 10.2


class Camera:
    """Grabs the whole screen on a thread of its own."""

    def __init__(
        self, windows: WindowReader, exclusions: Exclusions, covered: Callable[[], Box | None], *, per_second: float = 8.0
    ) -> None:
        """`covered`: where the recording sign is."""
        self._windows, self._exclusions, self._covered = windows, exclusions, covered
        self._every_s = 1.0 / per_second
        self._frames: deque[Frame] = deque(maxlen=FRAMES_KEPT)
        self._looks: deque[tuple[float, tuple[SeenWindow, ...]]] = deque()
        self._numbers = count(1)
        self._stop, self._is_paused = threading.Event(), False
        self._raw: bytes = b""
        self._ready = threading.Event()
        self.failure: str | None = None
        self.offset_px = (0, 0)
        self.scale = (1.0, 1.0)
        self._size = (1, 1)
        self._thread = threading.Thread(target=self._run, name="camera", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait(10.0)

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def placed(self, x: int, y: int) -> tuple[int, int]:
        """A point of the system's coordinates as pixels of the pictures: screens to the left of the first one have negative ones, and
        some systems count in points of several pixels."""
        (left, top), (across, down) = self.offset_px, self.scale
        return round((x - left) * across), round((y - top) * down)

    def pause(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        if is_paused:
            self._frames.clear()

    def before(self, time_s: float) -> Frame | None:
        """The newest picture that was taken before a moment."""
        return next((frame for frame in reversed(list(self._frames)) if frame.since_s <= time_s), None)

    def newest(self) -> Frame | None:
        frames = list(self._frames)
        return frames[-1] if frames else None

    def looks(self, start_s: float, end_s: float) -> list[tuple[SeenWindow, ...]]:
        """How the windows were in a stretch of time: when it began, and each time they were looked at in it."""
        looks = list(self._looks)
        before = [windows for time_s, windows in looks if time_s <= start_s]
        return [*before[-1:], *(windows for time_s, windows in looks if start_s < time_s <= end_s)]

    def _run(self) -> None:
        try:
            with _grabber() as grabber:
                area = grabber.monitors[0]
                self.offset_px = (int(area["left"]), int(area["top"]))
                self._size = (int(area["width"]), int(area["height"]))
                last_look = self._look()
                while not self._stop.wait(self._every_s if self._ready.is_set() else 0):
                    if not self._is_paused:
                        last_look = self._grab(grabber, area, last_look)
                    else:
                        last_look = self._look()
                    self._ready.set()
        except Exception as error:  # any error must reach the recorder, which must not take silence for a still screen
            self.failure = f"{type(error).__name__}: {error}"
            self._ready.set()

    def _look(self) -> tuple[SeenWindow, ...]:
        windows, now_s = self._windows.look(), time.monotonic()
        if self.offset_px != (0, 0) or self.scale != (1.0, 1.0):
            windows = tuple(replace(window, box=self._placed(window.box), inner=self._placed(window.inner)) for window in windows)
        # While nothing changes one entry and its time are enough.
        if len(self._looks) > 1 and self._looks[-1][1] == windows == self._looks[-2][1]:
            self._looks.pop()
        self._looks.append((now_s, windows))
        while self._looks and now_s - self._looks[0][0] > LOOKS_KEPT_S:
            self._looks.popleft()
        return windows

    def _placed(self, box: Box) -> Box:
        x, y = self.placed(box.x, box.y)
        right, bottom = self.placed(box.x + box.width, box.y + box.height)
        return Box(x=x, y=y, width=right - x, height=bottom - y)

    def _grab(self, grabber: Any, area: object, before: tuple[SeenWindow, ...]) -> tuple[SeenWindow, ...]:
        taken_s = time.monotonic()
        shot = grabber.grab(area)
        raw = bytes(shot.raw)
        self.scale = (shot.width / self._size[0], shot.height / self._size[1])
        after = self._look()
        last = self._frames[-1] if self._frames else None
        if last is not None and raw == self._raw and before == after:
            last.until_s = taken_s
            return after
        self._raw = raw
        pixels = np.frombuffer(raw, dtype=np.uint8).reshape(shot.height, shot.width, 4)[:, :, 2::-1].copy()
        mask = self._mask((before, after), shot.width, shot.height)
        if not self._is_paused:
            self._frames.append(Frame(number=next(self._numbers), since_s=taken_s, until_s=taken_s, pixels=pixels, mask=mask))
        return after

    def _mask(self, looks: Sequence[tuple[SeenWindow, ...]], width_px: int, height_px: int) -> np.ndarray | None:
        mask = self._exclusions.mask(looks, width_px, height_px)
        sign = self._covered()
        if sign is not None:
            sign = self._placed(sign)
            mask = np.zeros((height_px, width_px), dtype=bool) if mask is None else mask
            fill(mask, sign, True)
        return mask
