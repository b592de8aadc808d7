"""RequestOrder: when each request of a window's pages is answered, so that a page sees answers in the order in which it asked for them,
whatever the speed of the server and the machine. What an answer is: tabs.py.

One request at a time is under way; the next is answered when that one has ended. Page time waits for requests, so a page cannot notice that
its requests took turns. Nothing is answered while page time stands still (tab_kinds.py says why). A request that nobody answers delays the
others by TURN_S of wall-clock time, one whose body never ends, or is not read, by QUIET_S after its last piece.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sandbox.browser.cdp.connection import Params

TURN_S = 1.0
QUIET_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`answer` sends the browser how the request goes on; its future fails where the request is gone."""

    session_id: str
    network_id: str
    answer: Callable[[], asyncio.Future[Params]]
    is_awaited: bool = True
    """It ends soon, and the browser says so."""


class RequestOrder:
    """The requests of one window."""

    def __init__(self) -> None:
        self._waiting: deque[Request] = deque()
        self._current: Request | None = None
        self._turn_end: asyncio.TimerHandle | None = None
        self._is_running = False

    def add(self, request: Request) -> None:
        """A redirect is part of the request that is under way."""
        if self._is_current(request.session_id, request.network_id):
            self._current = None
            self._waiting.appendleft(request)
        else:
            self._waiting.append(request)
        self._next()

    def ended(self, session_id: str, network_id: str) -> None:
        """It was answered, or the page wants it no longer."""
        if self._is_current(session_id, network_id):
            self._current = None
            self._next()

    def arriving(self, session_id: str, network_id: str) -> None:
        """A piece of the response has come. The end of a body that the page does not read is reported only when page time has moved on."""
        if self._is_current(session_id, network_id):
            self._limit(QUIET_S)

    def start(self, *, is_spent: bool) -> None:
        """The browser has taken a grant of page time, and may have spent it."""
        self._is_running = not is_spent
        if is_spent:
            self.release()
        self._next()

    def stop(self) -> None:
        self._is_running = False

    def release(self) -> None:
        """Answer all that wait, at once."""
        waiting, self._waiting, self._current = self._waiting, deque(), None
        for request in waiting:
            request.answer()

    def _is_current(self, session_id: str, network_id: str) -> bool:
        return self._current is not None and (self._current.session_id, self._current.network_id) == (session_id, network_id)

    def _next(self) -> None:
        while self._is_running and self._current is None and self._waiting:
            request = self._waiting.popleft()
            answer = request.answer()
            if request.is_awaited:
                self._begin_turn(request)
                answer.add_done_callback(partial(self._answered, request))

    def _begin_turn(self, request: Request) -> None:
        self._current = request
        self._limit(TURN_S)

    def _limit(self, seconds: float) -> None:
        if self._turn_end is not None:
            self._turn_end.cancel()
        if self._current is not None:
            ids = self._current.session_id, self._current.network_id
            self._turn_end = asyncio.get_running_loop().call_later(seconds, self.ended, *ids)

    def _answered(self, request: Request, done: asyncio.Future[Params]) -> None:
        """The browser refuses an answer to a request that was cancelled."""
        if done.cancelled() or done.exception() is not None:
            self.ended(request.session_id, request.network_id)
