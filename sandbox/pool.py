"""SessionPool: browsers kept alive, and leases on the sessions in them. Which pages run in a session is the sources' business.

A pool belongs to the event loop that entered it. Browsers start when first needed. Loading a page costs as much as several steps, so a
session that comes free goes first to who waits for the task that it has loaded: let more episodes wait than there are sessions. A
browser that crashed or hung is replaced; whoever used it gets the error and may lease again. One that ran many episodes or grew large is
replaced once nobody uses it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from sandbox.browser.host import Host, Kind, launch, resolve
from sandbox.browser.page_session import Limits, PageSession
from sandbox.browser.scratch import reap_profiles
from sandbox.page_task import PageTasks
from sandbox.sources import page_tasks
from sandbox.task import Task
from warehouse.errors import BrowserCrashed, BrowserMissing, ConfigError, SandboxError, SandboxTimeout

MAX_LAUNCHES = 3
MEMORY_CHECK_EVERY = 100
BASE_MEMORY_MIB, SESSION_MEMORY_MIB = 1000.0, 150.0
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """Counts since the pool was entered, and what is so now."""

    num_sessions: int
    num_leased: int
    num_browsers_alive: int
    num_leases: int
    num_resets: int
    num_launches: int
    num_crashes: int
    num_recycled: int
    memory_mib: float


@dataclass(slots=True, kw_only=True, eq=False)
class _Slot:
    """Room for one browser; its seats are the sessions in it."""

    num_seats: int
    host: Host | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_resets: int = 0
    num_failures: int = 0
    num_away: int = 0
    is_draining: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class _Seat:
    slot: _Slot
    host: Host | None = None
    session: PageSession | None = None
    task: tuple[str, str] | None = None
    """Source and name of the task whose page it has, or is about to load."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiter:
    task: tuple[str, str] | None
    seat: asyncio.Future[_Seat]


class SessionPool:
    """`async with SessionPool(size=4, num_browsers=2) as pool: async with pool.lease() as session: …`"""

    def __init__(
        self,
        sources: PageTasks | None = None,
        *,
        kind: Kind = "auto",
        size: int = 2,
        num_browsers: int | None = None,
        limits: Limits | None = None,
        recycle_resets: int = 1000,
        recycle_memory_mib: float | None = None,
    ) -> None:
        """`size` sessions spread over `num_browsers` browsers (default: one a core, no more than sessions), for `sources` (default: all
        that there are). Raises ConfigError."""
        if num_browsers is None:
            num_browsers = min(size, os.cpu_count() or 1)
        if not 1 <= num_browsers <= size:
            raise ConfigError(f"A pool of {size} sessions in {num_browsers} browsers is not possible: 1 <= num_browsers <= size.")
        self._kind = kind
        self._sources = sources if sources is not None else page_tasks()
        self._limits = limits or Limits()
        self._recycle_resets, self._recycle_memory_mib = recycle_resets, recycle_memory_mib
        """A browser is worn above this; by default a base and something a session, which a leak exceeds and pages do not."""
        self._slots = [_Slot(num_seats=len(range(n, size, num_browsers))) for n in range(num_browsers)]
        self._seats = [_Seat(slot=self._slots[n % num_browsers]) for n in range(size)]
        self._free: list[_Seat] = []
        self._waiting: list[_Waiter] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._num_leases = self._num_launches = self._num_crashes = self._num_recycled = self._num_resets = 0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._kind = resolve(self._kind)
        reap_profiles()
        self._free = list(self._seats)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def kind(self) -> Kind:
        """The kind of sessions; `auto` is resolved when the pool is entered."""
        return self._kind

    @property
    def size(self) -> int:
        return len(self._seats)

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[PageSession]:
        """A session for one user at a time, waiting for one if none is free; one that has `task`'s page loaded is preferred.

        Raises BrowserMissing or BrowserCrashed where no browser can be started. A SandboxError that leaves the body costs the session
        its page, a crash or timeout its browser; the error goes on to the caller.
        """
        seat = await self._take(task)
        keep = False
        try:
            session = await self._session(seat)
            session.screenshots = screenshots
            yield session
            keep = True
        except (BrowserCrashed, SandboxTimeout) as error:
            self._condemn(seat, error)
            raise
        except SandboxError as error:
            if isinstance(error.__cause__, SandboxTimeout):
                self._condemn(seat, error)
            raise
        finally:
            await asyncio.shield(self._put_back(seat, keep=keep))

    def stats(self) -> PoolStats:
        """Reads the memory of every browser: milliseconds."""
        alive = [slot.host for slot in self._slots if slot.host is not None and slot.host.is_alive]
        return PoolStats(
            num_sessions=len(self._seats),
            num_leased=sum(slot.num_away for slot in self._slots),
            num_browsers_alive=len(alive),
            num_leases=self._num_leases,
            num_resets=self._num_resets,
            num_launches=self._num_launches,
            num_crashes=self._num_crashes,
            num_recycled=self._num_recycled,
            memory_mib=round(sum(host.memory_mib() for host in alive), 1),
        )

    def browser_pids(self) -> list[int]:
        """Process ids of the browsers that live."""
        return [slot.host.pid for slot in self._slots if slot.host is not None and slot.host.is_alive]

    async def close(self) -> None:
        """End every browser; sessions still leased get BrowserCrashed, waiting leases SandboxError. May be called twice."""
        self._is_closed = True
        hosts = [slot.host for slot in self._slots if slot.host is not None]
        for slot in self._slots:
            slot.host = None
        await asyncio.gather(*(host.close() for host in hosts))
        self._serve()

    async def _take(self, task: Task | None) -> _Seat:
        if self._loop is not asyncio.get_running_loop():
            raise SandboxError("The pool was not entered in this event loop: use `async with SessionPool(…)` in the loop that leases.")
        waiter = _Waiter(task=(task.source, task.name) if task is not None else None, seat=self._loop.create_future())
        self._waiting.append(waiter)
        self._serve()
        try:
            return await waiter.seat
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif not waiter.seat.cancelled() and waiter.seat.exception() is None:
                await self._put_back(waiter.seat.result(), keep=True)
            raise

    def _serve(self) -> None:
        """Hand free seats to those who wait, sparing page loads: first to who waits for a page that a free seat has; then to who waits
        for a page that no seat has; to others only while less than half of the seats are in use, else their page will come free."""
        while self._waiting and self._is_closed:
            self._waiting.pop(0).seat.set_exception(SandboxError("The session pool is closed."))
        while self._waiting:
            free = [seat for seat in self._free if not seat.slot.is_draining]
            if not free:
                return
            loaded = {seat.task: seat for seat in free if seat.task is not None}
            everywhere = {seat.task for seat in self._seats}
            is_idle = 2 * (len(self._seats) - len(self._free)) < len(self._seats)
            waiter = (
                next((waiter for waiter in self._waiting if waiter.task in loaded), None)
                or next((waiter for waiter in self._waiting if waiter.task is None or waiter.task not in everywhere), None)
                or (self._waiting[0] if is_idle else None)
            )
            if waiter is None:
                return
            fitting = loaded.get(waiter.task) if waiter.task is not None else None
            self._hand_over(fitting or min(free, key=lambda seat: (seat.task is not None, seat.slot.num_away)), waiter)

    def _hand_over(self, seat: _Seat, waiter: _Waiter) -> None:
        self._waiting.remove(waiter)
        self._free.remove(seat)
        seat.task = waiter.task
        seat.slot.num_away += 1
        self._num_leases += 1
        waiter.seat.set_result(seat)

    async def _session(self, seat: _Seat) -> PageSession:
        host = await self._host(seat.slot)
        if seat.session is None or seat.host is not host:
            seat.host, seat.session = host, PageSession(host.open_page, self._sources, limits=self._limits)
        return seat.session

    async def _host(self, slot: _Slot) -> Host:
        """The slot's browser, started if there is none. After failures it waits, longer each time."""
        async with slot.lock:
            for attempt in range(MAX_LAUNCHES):
                if self._is_closed:
                    raise SandboxError("The session pool is closed.")
                if slot.host is not None and slot.host.is_alive:
                    return slot.host
                if slot.host is not None:
                    await self._lose_host(slot)
                if slot.num_failures:
                    await asyncio.sleep(min(0.05 * 2**slot.num_failures, 5.0))
                try:
                    self._num_launches += 1
                    slot.host = await launch(self._kind)
                    slot.num_resets = 0
                except BrowserMissing:
                    raise
                except SandboxError:
                    slot.num_failures += 1
                    if attempt == MAX_LAUNCHES - 1:
                        raise
            raise BrowserCrashed(f"A browser was started {MAX_LAUNCHES} times and died each time. Run `flywheel doctor` to see why.")

    async def _lose_host(self, slot: _Slot) -> None:
        host, slot.host = slot.host, None
        if host is not None:
            self._num_crashes += 1
            slot.num_failures += 1
            await host.close()

    def _condemn(self, seat: _Seat, error: BaseException) -> None:
        """A browser that hung is of no use to its other sessions either: they get BrowserCrashed."""
        if seat.host is not None and seat.host.is_alive:
            seat.host.kill(f"The browser was ended because a session in it failed: {error}")

    async def _put_back(self, seat: _Seat, *, keep: bool) -> None:
        slot, session = seat.slot, seat.session
        if session is not None:
            slot.num_resets += session.num_resets
            self._num_resets += session.num_resets
            session.num_resets = 0
        if keep:
            slot.num_failures = 0
            seat.task = session.loaded_task if session is not None else None
        else:
            seat.session, seat.task = None, None
            if session is not None:
                await self._close_session(seat, session)
        slot.num_away -= 1
        slot.is_draining = slot.is_draining or self._is_worn(slot)
        if slot.is_draining and slot.num_away == 0:
            await self._recycle(slot)
        self._free.append(seat)
        self._serve()

    async def _close_session(self, seat: _Seat, session: PageSession) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await session.close()
        except (SandboxError, TimeoutError) as error:
            self._condemn(seat, error)

    def _is_worn(self, slot: _Slot) -> bool:
        if slot.host is None or not slot.host.is_alive:
            return False
        if slot.num_resets >= self._recycle_resets:
            return True
        allowed_mib = self._recycle_memory_mib or BASE_MEMORY_MIB + SESSION_MEMORY_MIB * slot.num_seats
        return slot.num_resets % MEMORY_CHECK_EVERY == 0 and slot.host.memory_mib() > allowed_mib

    async def _recycle(self, slot: _Slot) -> None:
        host, slot.host = slot.host, None
        slot.is_draining = False
        if host is not None:
            self._num_recycled += 1
            await host.close()
