"""How much and how often: bodies that are too large or too slow, and callers in too much haste. Attempts to log in are counted apart, in
the database (storage/attempts.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Message, Receive

MOST_CALLERS = 10_000
DRAIN_BYTES, DRAIN_S = 4 * 1024 * 1024, 5.0


class LimitedBody:
    """`receive` of a request that ends as if the client had gone when its body grows too large, or does not come."""

    def __init__(self, receive: Receive, *, max_bytes: int, timeout_s: float, announced: str) -> None:
        """`announced`: the header Content-Length, empty where there is none."""
        self._receive, self._max_bytes, self._timeout_s = receive, max_bytes, timeout_s
        self._num_bytes, self._is_whole = 0, False
        self.is_too_large = announced.isdecimal() and int(announced) > max_bytes
        self.is_too_slow = False

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()  # from here on it only tells that the client has gone
        message = await self._next()
        if message is None or self._num_bytes > self._max_bytes:
            self.is_too_large, self.is_too_slow = message is not None, message is None
            return {"type": "http.disconnect"}
        return message

    async def _next(self) -> Message | None:
        """The next piece; None where it does not come."""
        try:
            message = await asyncio.wait_for(self._receive(), self._timeout_s)
        except TimeoutError:
            return None
        self._num_bytes += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        return message

    async def drain(self) -> None:
        """Read on past what is too large, within reason: a client that is cut off while it sends never reads why."""
        deadline_s = time.monotonic() + DRAIN_S
        while not self._is_whole and self._num_bytes < self._max_bytes + DRAIN_BYTES and time.monotonic() < deadline_s:
            if await self._next() is None:
                return


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
