"""One lease: a session of the pool in the hands of one client, and the task that keeps it. Who may have one is leases.py's business.

The keeper enters the pool's lease, carries out the client's calls one after another, and leaves the lease again when the client releases
it, falls silent for longer than its time to live, or reaches the longest lifetime. It is the only code that touches the session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.server.disk import Disk
from sandbox.server.journal import Journal
from sandbox.server.problems import OutOfOrder
from sandbox.server.settings import ServerSettings
from sandbox.session import Session
from sandbox.tasks.task import Task
from warehouse.core.errors import LeaseLost, SandboxError, TaskError

End = Literal["released", "overdue", "lifetime", "failed", "shutdown", "unanswered"]
"""Why a lease ended. `unanswered`: its client went away before it was granted."""
ENDS: tuple[End, ...] = ("released", "overdue", "lifetime", "failed", "shutdown", "unanswered")
CLOSE_TIMEOUT_S = 20.0

Work = Callable[[Session], Awaitable[Any]]


class _Distrusted(Exception):
    """Leaves the pool's lease so that the pool does not reuse the page of a session whose client failed in the middle."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Call:
    work: Work
    answer: asyncio.Future[Any]


class Lease:
    """A client's hold on a session. Its methods are called by the server's request handlers, in the loop of the pool."""

    def __init__(
        self, session_id: str, client: str, task: Task | None, *, screenshots: bool, ttl_s: float, settings: ServerSettings, disk: Disk
    ) -> None:
        self.session_id, self.client, self.ttl_s = session_id, client, ttl_s
        self.journal = Journal()
        self.num_calls = 0
        """Number of the last numbered call."""
        self.end: End | None = None
        self._task, self._screenshots, self._settings, self._disk = task, screenshots, settings, disk
        self._calls: asyncio.Queue[_Call | None] = asyncio.Queue()
        self._granted: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._last_answer: asyncio.Future[Any] | None = None
        self._failure: BaseException | None = None
        self._is_busy = False
        self._born_s = self._seen_s = time.monotonic()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._born_s

    @property
    def left_s(self) -> float:
        """Until it is reclaimed, if no sign of life comes."""
        return self._seen_s + self.ttl_s - time.monotonic()

    def keep(self, session_pool: SessionPoolProtocol) -> asyncio.Task[None]:
        """Start the keeper."""
        self._keeper = asyncio.create_task(self._keep(session_pool), name=f"lease {self.session_id}")
        return self._keeper

    async def granted(self) -> Session:
        """Wait until the pool has lent the session. Raises what the pool raises."""
        return await asyncio.shield(self._granted)

    def touch(self) -> None:
        """A sign of life."""
        self._seen_s = time.monotonic()

    async def call(self, work: Work) -> Any:
        """Carry out `work` on the session after the calls before it; its result or error. Goes on when the caller is cancelled."""
        self.touch()
        return await asyncio.shield(self._put(work))

    async def call_numbered(self, number: int | None, work: Work) -> Any:
        """The same at most once for each number, which counts the resets and steps of the lease from 1: the number of the last call
        gets that call's answer again. Without a number it is the next call. Raises OutOfOrder for any other number."""
        self.touch()
        if number is not None and number == self.num_calls and self._last_answer is not None:
            return await asyncio.shield(self._last_answer)
        if number is not None and number != self.num_calls + 1:
            raise OutOfOrder(
                f"Call {number} of session {self.session_id} cannot be next: the last one was {self.num_calls}. "
                f"Send {self.num_calls + 1}, or {self.num_calls} to have the last answer again."
            )
        self.num_calls += 1
        self._last_answer = self._put(work)
        return await asyncio.shield(self._last_answer)

    def release(self, end: End, *, distrusted: bool = False) -> None:
        """Have the keeper leave. `distrusted`: what the session shows is not to be built on; also so where a call is cut off."""
        if self.end is not None or self._keeper is None:
            return
        self.end = end
        if self._is_busy or not self._granted.done():
            self._keeper.cancel()
            return
        if distrusted and self._failure is None:
            self._failure = _Distrusted()
        self._calls.put_nowait(None)

    async def ended(self) -> None:
        """Wait until the session is back in the pool; after a while the keeper is cancelled, whatever it is at."""
        if self._keeper is not None and not (await asyncio.wait({self._keeper}, timeout=CLOSE_TIMEOUT_S))[0]:
            self._keeper.cancel()
            await asyncio.wait({self._keeper}, timeout=CLOSE_TIMEOUT_S)

    def _put(self, work: Work) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieved)
        if self.end is not None:
            answer.set_exception(self._lost())
        else:
            self._calls.put_nowait(_Call(work=work, answer=answer))
        return answer

    def _lost(self, why: End = "failed") -> LeaseLost:
        return LeaseLost(f"Session {self.session_id} is no longer yours: {EXPLANATIONS[self.end or why]}. Lease another one.")

    async def _keep(self, session_pool: SessionPoolProtocol) -> None:
        try:
            async with session_pool.lease(self._task, screenshots=self._screenshots) as session:
                self.touch()
                self._granted.set_result(session)
                await self._serve(session)
                if self._failure is not None:
                    raise self._failure
        except Exception as error:
            if not self._granted.done():
                self._granted.set_exception(error)
            elif not isinstance(error, _Distrusted | SandboxError):
                raise
        except asyncio.CancelledError:
            if self.end is None:
                raise
        finally:
            self._close()

    async def _serve(self, session: Session) -> None:
        """Carry out calls until there is a reason to end, which is then in `end`."""
        lifetime = asyncio.timeout(self._settings.max_lifetime_s)
        try:
            async with lifetime:
                while (call := await self._next_call()) is not None:
                    await self._carry_out(call, session)
        except TimeoutError:
            if not lifetime.expired():
                raise
            self.end = self.end or "lifetime"
            self._failure = self._failure or _Distrusted()

    async def _next_call(self) -> _Call | None:
        while True:
            try:
                async with asyncio.timeout(max(self.left_s, 0.001)):
                    return await self._calls.get()
            except TimeoutError:
                if self.left_s <= 0 and self._calls.empty():
                    self.end = self.end or "overdue"
                    self._failure = self._failure or _Distrusted()
                    return None

    async def _carry_out(self, call: _Call, session: Session) -> None:
        """One call. An error of the sandbox is the caller's to know and, unless a later call succeeds, the pool's when the lease ends."""
        self._is_busy = True
        try:
            answer = await call.work(session)
            self._disk.check_for_call()
            call.answer.set_result(answer)
            self._failure = None
        except Exception as error:
            if not isinstance(error, TaskError):  # which says nothing about the session
                self._failure = error if isinstance(error, SandboxError) else _Distrusted()
            call.answer.set_exception(error)
        except BaseException:
            call.answer.set_exception(self._lost("lifetime"))
            raise
        finally:
            self._is_busy = False
            self.touch()

    def _close(self) -> None:
        """Nobody waits for an answer that will not come."""
        self.end = self.end or "failed"
        if not self._granted.done():
            self._granted.set_exception(self._lost())
        _retrieved(self._granted)
        while not self._calls.empty():
            call = self._calls.get_nowait()
            if call is not None:
                call.answer.set_exception(self._lost())
        self.journal.notify()


EXPLANATIONS: dict[End, str] = {
    "released": "it was released",
    "overdue": "it was reclaimed because no call and no heartbeat came within its time to live",
    "lifetime": "it was reclaimed because it reached the longest lifetime",
    "failed": "the sandbox behind it failed",
    "shutdown": "the server is shutting down",
    "unanswered": "the client that asked for it went away",
}


def _retrieved(answer: asyncio.Future[Any]) -> None:
    """An answer's error may find nobody who waits; that is not worth a warning."""
    if not answer.cancelled():
        answer.exception()
