"""Slowness: names the places whose calls take much longer than the others', e.g. one sandbox server of several, or one node of a cluster.
A slow one goes on being used: it frees its sessions later, and so gets fewer.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from statistics import median

SLOW_FACTOR = 2.0
"""A place is slow whose median call takes so many times the median of the others' medians …"""
LEAST_DIFFERENCE_S = 0.1
"""… and so much longer."""
RECOVERED_FACTOR = 1.5
"""It is slow until its median is below so many times the others': it is not named again and again at the border."""
NUM_CALLS, FEWEST_CALLS = 30, 8
"""The last calls of a place that its median is of, and how many it needs to be compared."""
LOOK_EVERY_S = 2.0


class Slowness:
    """`noun` is what a place is called in the log, `log` where it is named."""

    def __init__(self, noun: str, log: logging.Logger, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self._noun, self._log, self._look_every_s = noun, log, look_every_s
        self._calls_s: dict[str, deque[float]] = {}
        self._slow: set[str] = set()
        self._looked_s = time.monotonic()

    def note(self, place: str, seconds: float) -> None:
        """A call at the place took so long."""
        self._calls_s.setdefault(place, deque(maxlen=NUM_CALLS)).append(seconds)
        if time.monotonic() - self._looked_s >= self._look_every_s:
            self.look()

    def forget(self, place: str) -> None:
        """It is gone, or was away: what it then does counts alone."""
        self._calls_s.pop(place, None)
        self._slow.discard(place)

    def look(self) -> None:
        """Log a warning for each place that has become slow, and one for each that is slow no more."""
        self._looked_s = time.monotonic()
        medians_s = {place: median(calls_s) for place, calls_s in self._calls_s.items() if len(calls_s) >= FEWEST_CALLS}
        for place, own_s in medians_s.items():
            if len(medians_s) > 1:
                self._compare(place, own_s, (of_s for other, of_s in medians_s.items() if other != place))

    def _compare(self, place: str, own_s: float, others_s: Iterable[float]) -> None:
        other_s = median(others_s)
        figures = f"the median of its last calls is {own_s:.2f} s, that of the others {other_s:.2f} s"
        if place not in self._slow and own_s > SLOW_FACTOR * other_s and own_s - other_s > LEAST_DIFFERENCE_S:
            self._slow.add(place)
            self._log.warning("%s %s is slow: %s. It gets fewer episodes", self._noun, place, figures)
        elif place in self._slow and own_s < max(RECOVERED_FACTOR * other_s, other_s + LEAST_DIFFERENCE_S):
            self._slow.discard(place)
            self._log.warning("%s %s is slow no more: %s", self._noun, place, figures)
