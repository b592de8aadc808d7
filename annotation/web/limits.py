"""How often: callers in too much haste. Attempts to log in are counted apart, in the database (storage/attempts.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

MOST_CALLERS = 10_000


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class Rates:
    """A token bucket for each caller. In memory: what it holds is worth seconds."""

    def __init__(self, per_s: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: dict[str, _Bucket] = {}

    def wait_s(self, caller: str) -> float:
        """0 where the caller may go on; else how long they should wait."""
        now_s = self._clock()
        bucket = self._buckets.get(caller)
        if bucket is None:
            if len(self._buckets) >= MOST_CALLERS:
                self._forget(now_s)
            bucket = self._buckets[caller] = _Bucket(float(self._burst), now_s)
        bucket.tokens, bucket.at_s = min(float(self._burst), bucket.tokens + (now_s - bucket.at_s) * self._per_s), now_s
        if bucket.tokens < 1:
            return (1 - bucket.tokens) / self._per_s
        bucket.tokens -= 1
        return 0.0

    def _forget(self, now_s: float) -> None:
        """Those whose bucket is full again; where that makes no room, all: it is better to be kind than to run out of memory."""
        full_s = self._burst / self._per_s
        self._buckets = {caller: bucket for caller, bucket in self._buckets.items() if now_s - bucket.at_s < full_s}
        if len(self._buckets) >= MOST_CALLERS:
            self._buckets.clear()
