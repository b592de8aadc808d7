"""SessionPool: leases on the sessions of this process, of any kind. Fleet (sandbox/fleet) is the same over many processes.

A pool belongs to the event loop that entered it, and ends with it. Who gets which session is the queue's business (lease_queue.py), how
sessions and browsers live is the slots' (slots.py): let more episodes wait than there are sessions, and page loads are spared. A browser
that crashed or hung is replaced; its user gets the error and may lease again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sandbox.browser.backend import Kind, resolve
from sandbox.browser.isolation.scratch import reap_profiles
from sandbox.browser.page_session import Limits
from sandbox.pool.kinds import PooledSession, limits_at_once
from sandbox.pool.lease_queue import LeaseQueue
from sandbox.pool.slots import LocalSlot, RecyclePolicy, Slots
from sandbox.tasks.page_task import PageTasks
from sandbox.tasks.sources import page_tasks
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import SessionKind
from warehouse.core.errors import BrowserCrashed, ConfigError, SandboxError, SandboxTimeout


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """Counts since the pool was entered, and what is so now."""

    num_sessions: int
    num_leased: int
    num_waiting: int
    num_browsers_alive: int
    num_leases: int
    num_resets: int
    num_launches: int
    num_crashes: int
    num_recycled: int
    memory_mib: float


class SessionPool:
    """`async with SessionPool(size=4, num_browsers=2) as pool: async with pool.lease(task) as session: …`"""

    def __init__(
        self,
        sources: PageTasks | None = None,
        *,
        kind: Kind = "auto",
        size: int = 2,
        num_browsers: int | None = None,
        limits: Limits | None = None,
        recycle: RecyclePolicy | None = None,
        max_at_once: Mapping[SessionKind, int] | None = None,
    ) -> None:
        """`size` sessions spread over `num_browsers` browsers (default: one a core, no more than sessions), for the pages of `sources`
        (default: all). `max_at_once` bounds single kinds further. Raises ConfigError."""
        if num_browsers is None:
            num_browsers = min(size, os.cpu_count() or 1)
        if not 1 <= num_browsers <= size:
            raise ConfigError(f"A pool of {size} sessions in {num_browsers} browsers is not possible: 1 <= num_browsers <= size.")
        sources = sources if sources is not None else page_tasks()
        self._slots = Slots(sources, kind=kind, size=size, num_browsers=num_browsers, limits=limits, recycle=recycle)
        self._queue: LeaseQueue[LocalSlot] = LeaseQueue(limits_at_once(max_at_once))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.Task[None] | None = None
        self._is_closed = False
        self._num_leases = 0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._slots.kind = resolve(self._slots.kind)
        reap_profiles()
        self._queue.add(self._slots.all)
        self._watch = asyncio.create_task(self._watch_over(), name="session pool")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def kind(self) -> Kind:
        """The kind of browser sessions; `auto` is resolved when the pool is entered."""
        return self._slots.kind

    @property
    def size(self) -> int:
        return len(self._slots.all)

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[PooledSession]:
        """A session that can run `task` (without one: a page session), for one user at a time, waiting for one if none is free; one that
        has the task's page loaded is preferred.

        Raises TaskError for a task of an unknown source, SandboxError where no session can be had. A SandboxError that leaves the body
        costs the session its page, a crash or timeout its browser; the error goes on to the caller.
        """
        slot = await self._take(task)
        keep = False
        try:
            yield await self._slots.check_out(slot, task, screenshots=screenshots)
            keep = True
        except SandboxError as error:
            if is_fatal(error):
                self._slots.mark_unhealthy(slot, error)
            raise
        finally:
            await asyncio.shield(self._put_back(slot, keep=keep))

    def stats(self) -> PoolStats:
        """Reads the memory of every browser: milliseconds."""
        backends, counts = self._slots.backends(), self._slots.counts
        return PoolStats(
            num_sessions=self.size,
            num_leased=self._queue.num_in_use,
            num_waiting=self._queue.num_waiting,
            num_browsers_alive=len(backends),
            num_leases=self._num_leases,
            num_resets=counts.num_resets,
            num_launches=counts.num_launches,
            num_crashes=counts.num_crashes,
            num_recycled=counts.num_recycled,
            memory_mib=round(sum(backend.memory_mib() for backend in backends), 1),
        )

    def browser_pids(self) -> list[int]:
        """Process ids of the browsers that live."""
        return [backend.pid for backend in self._slots.backends()]

    async def close(self) -> None:
        """End every session and browser; those still leased get BrowserCrashed, waiting leases SandboxError. May be called twice."""
        self._is_closed = True
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self._slots.close()
        self._queue.refuse_all(SandboxError("The session pool is closed."))

    async def _watch_over(self) -> None:
        try:
            await self._slots.watch()
        finally:
            if not self._is_closed:  # the event loop ends, and the pool with it
                self._slots.kill()

    async def _take(self, task: Task | None) -> LocalSlot:
        if self._loop is not asyncio.get_running_loop():
            raise SandboxError("The pool was not entered in this event loop: use `async with SessionPool(…)` in the loop that leases.")
        if self._is_closed:
            raise SandboxError("The session pool is closed.")
        slot = await self._queue.take(self._slots.request(task))
        self._num_leases += 1
        return slot

    async def _put_back(self, slot: LocalSlot, *, keep: bool) -> None:
        await self._slots.put_back(slot, keep=keep)
        self._queue.give_back(slot)


def is_fatal(error: SandboxError) -> bool:
    """Whether an error marks unhealthy the browser of the session that it came from: it crashed, or did not answer in time."""
    return isinstance(error, BrowserCrashed | SandboxTimeout) or isinstance(error.__cause__, SandboxTimeout)
