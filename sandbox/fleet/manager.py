"""Fleet: leases on sessions in worker processes. Workers come with the waiting line and go when idle; what crashes, hangs or wears out is
replaced; a lease that its user forgot, or on which a call hangs, is taken back.

Policy. A lease that has waited `grow_after_s` brings workers, as many as the line needs, up to `max_workers`; a worker unused for
`shrink_after_s` ends, down to `min_workers`. A worn worker (leases, age, memory) gets no new lease and ends when its last one does. A
worker that died or answers nothing takes its leases with it: they get WorkerCrashed, and the caller leases again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sandbox.browser.backend import resolve
from sandbox.fleet.process import WorkerProcess
from sandbox.fleet.remote import FleetSession
from sandbox.fleet.settings import FleetSettings
from sandbox.pool.kinds import limits_at_once
from sandbox.pool.lease_queue import LeaseQueue, Slot
from sandbox.pool.pool import PoolStats, is_fatal
from sandbox.pool.slots import request_of
from sandbox.tasks.task import Task
from warehouse.core.errors import FlywheelError, SandboxError
from warehouse.core.machine import shortage

_LOG = logging.getLogger(__name__)

TICK_S = 0.1
LONGEST_PAUSE_S = 5.0
"""Before a worker is started whose predecessors failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStats(PoolStats):
    """The whole fleet's, ended workers included; `memory_mib` is of workers and browsers as they last reported."""

    num_workers: int
    num_workers_started: int
    num_workers_lost: int
    """Died or hung."""
    num_workers_recycled: int
    num_workers_dismissed: int
    """Ended because nobody needed them."""
    num_reclaimed: int
    """Leases taken back: their users forgot them, or a call on them hung."""


@dataclass(slots=True, kw_only=True, eq=False)
class _FleetSlot(Slot):
    worker: WorkerProcess
    number: int


class Fleet:
    """`async with Fleet(FleetSettings(max_workers=4)) as fleet: async with fleet.lease(task) as session: …`. Belongs to the event loop
    that entered it, and ends with it."""

    def __init__(self, settings: FleetSettings | None = None) -> None:
        self.settings = settings or FleetSettings()
        self._sources = self.settings.page_tasks()
        self._queue: LeaseQueue[_FleetSlot] = LeaseQueue(limits_at_once(self.settings.max_at_once))
        self._workers: list[WorkerProcess] = []
        self._retired: list[WorkerProcess] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._processes: set[WorkerProcess] = set()
        """Every worker whose process may still run, whatever became of it."""
        self._leases: dict[FleetSession, _FleetSlot] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.Task[None] | None = None
        self._is_closed = False
        self._ended: Counter[str] = Counter()
        """Counts of workers that have ended."""
        self._num_leases = self._num_started = self._num_lost = self._num_recycled = self._num_dismissed = self._num_reclaimed = 0
        self._num_failed_starts = 0
        self._start_from_s = 0.0

    async def __aenter__(self) -> Self:
        """Starts `min_workers`, without waiting for them. Raises BrowserMissing, ConfigError."""
        self._loop = asyncio.get_running_loop()
        resolve(self.settings.kind)
        self._watch = asyncio.create_task(self._watch_over(), name="fleet")
        self._start_workers(self.settings.min_workers)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def size(self) -> int:
        """Sessions at most."""
        return self.settings.max_workers * self.settings.sessions_per_worker

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[FleetSession]:
        """As SessionPool.lease. A lease that is not used for `lease_ttl_s`, or has a call under way for `call_limit_s`, is taken back: that
        call, and every later one on its session, raises LeaseLost."""
        slot = await self._take(task)
        session = FleetSession(slot.worker.channel, slot.number, screenshots=screenshots)
        self._leases[session] = slot
        keep, unhealthy = False, None
        try:
            await session.check_out(task)
            slot.worker.num_leases += 1
            yield session
            keep = not session.is_closed
        except SandboxError as error:
            unhealthy = str(error) if is_fatal(error) else None
            raise
        finally:
            await asyncio.shield(self._put_back(slot, session, keep=keep, unhealthy=unhealthy))

    def stats(self) -> FleetStats:
        """As the workers last reported: after a lease of theirs ended, or at the last heartbeat."""
        alive = [worker for worker in (*self._workers, *self._retired) if worker.is_alive]
        counts = self._ended + sum((Counter(worker.report["counts"]) for worker in alive), Counter())
        return FleetStats(
            num_sessions=len(self._workers) * self.settings.sessions_per_worker,
            num_leased=len(self._leases),
            num_waiting=self._queue.num_waiting,
            num_browsers_alive=sum(len(worker.report["browser_pids"]) for worker in alive),
            num_leases=self._num_leases,
            num_resets=counts["num_resets"],
            num_launches=counts["num_launches"],
            num_crashes=counts["num_crashes"],
            num_recycled=counts["num_recycled"],
            memory_mib=round(sum(worker.report["memory_mib"] + worker.report["browsers_memory_mib"] for worker in alive), 1),
            num_workers=len(alive),
            num_workers_started=self._num_started,
            num_workers_lost=self._num_lost,
            num_workers_recycled=self._num_recycled,
            num_workers_dismissed=self._num_dismissed,
            num_reclaimed=self._num_reclaimed,
        )

    def worker_pids(self) -> list[int]:
        """Process ids of the workers that live; each leads a session of processes."""
        return [worker.pid for worker in (*self._workers, *self._retired) if worker.is_alive]

    async def browser_pids(self) -> list[int]:
        """Process ids of the browsers that live now: asks every worker."""
        alive = [worker for worker in (*self._workers, *self._retired) if worker.is_alive]
        await asyncio.gather(*(worker.refresh() for worker in alive), return_exceptions=True)
        return [pid for worker in alive if worker.is_alive for pid in worker.report["browser_pids"]]

    async def close(self) -> None:
        """End every worker with its sessions; those still leased get WorkerCrashed, waiting leases SandboxError. May be called twice."""
        self._is_closed = True
        if stopped := [task for task in (self._watch, *self._starting) if task is not None]:
            for task in stopped:
                task.cancel()
            await asyncio.wait(stopped)
        self._queue.refuse_all(SandboxError("The fleet is closed."))
        for worker in (*self._workers, *self._retired):
            self._forget(worker)
        await asyncio.gather(*(worker.close() for worker in self._processes))
        if self._closing:
            await asyncio.wait(self._closing)

    async def _take(self, task: Task | None) -> _FleetSlot:
        if self._loop is not asyncio.get_running_loop():
            raise SandboxError("The fleet was not entered in this event loop: use `async with Fleet(…)` in the loop that leases.")
        if self._is_closed:
            raise SandboxError("The fleet is closed.")
        if not self._workers and not self._starting:
            self._start_workers(1)
        slot = await self._queue.take(request_of(task, self._sources))
        self._num_leases += 1
        return slot

    async def _put_back(self, slot: _FleetSlot, session: FleetSession, *, keep: bool, unhealthy: str | None) -> None:
        """Once for each lease: its user ends it, or the fleet, because it was forgotten."""
        if self._leases.pop(session, None) is None:
            return
        session.end("The lease is over; take another one.")
        worker = slot.worker
        try:
            if worker.is_alive:
                worker.report = await worker.ask("put_back", slot=slot.number, keep=keep, unhealthy=unhealthy)
                slot.kind, page = worker.report["slots"][slot.number]
                slot.page = None if page is None else (page[0], page[1])
        except SandboxError as error:
            _LOG.info("A session could not be put back: %s", error)  # its worker died, and is replaced
        finally:
            worker.used_s = time.monotonic()
            self._queue.give_back(slot)
            if worker in self._workers and self._is_worn(worker):
                self._num_recycled += 1
                self._retire(worker)
            self._end_retired()

    async def _watch_over(self) -> None:
        """Grow, shrink, recycle and reclaim, until cancelled."""
        try:
            while True:
                await asyncio.sleep(TICK_S)
                self._grow()
                self._shrink()
                self._reclaim()
                self._processes = {worker for worker in self._processes if worker.is_running}
        finally:
            if not self._is_closed:  # the event loop ends, and the fleet with it
                for worker in self._processes:
                    worker.kill("The fleet was abandoned.")

    def _grow(self) -> None:
        num = len(self._workers) + len(self._starting)
        if not self._num_failed_starts or self._queue.num_waiting:
            self._start_workers(self.settings.min_workers - num)
        num_short, longest_wait_s = self._queue.shortage()
        if not self._starting and longest_wait_s >= self.settings.grow_after_s:
            needed = -(-num_short // self.settings.sessions_per_worker)
            self._start_workers(min(needed, self.settings.max_workers - num))

    def _start_workers(self, num: int) -> None:
        if num <= 0 or time.monotonic() < self._start_from_s:
            return
        for _ in range(num):
            task = asyncio.create_task(self._start_worker(), name="start of a worker")
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _start_worker(self) -> None:
        """Once. Where it fails and no other worker lives, those who wait get the error; whoever runs their episodes leases again
        (docs/failures.md). The next start waits, longer after each failure."""
        try:
            worker = WorkerProcess(self.settings, self._lose)
            self._processes.add(worker)
            self._num_started += 1
            await worker.start()
        except (FlywheelError, OSError) as error:
            self._num_failed_starts += 1
            self._start_from_s = time.monotonic() + min(0.1 * 2**self._num_failed_starts, LONGEST_PAUSE_S)
            failure = _failed_start(error)
            if not failure.is_retryable or not (self._workers or self._starting - {asyncio.current_task()}):
                self._queue.refuse_all(failure)
            return
        self._num_failed_starts = 0
        self._workers.append(worker)
        self._queue.add([_FleetSlot(group=worker, worker=worker, number=number) for number in range(self.settings.sessions_per_worker)])

    def _shrink(self) -> None:
        since_s = time.monotonic() - self.settings.shrink_after_s
        for worker in list(self._workers):
            is_idle = worker.used_s < since_s and not self._queue.load(worker)
            if is_idle and self._is_worn(worker):
                self._num_recycled += 1
                self._retire(worker)
            elif is_idle and len(self._workers) > self.settings.min_workers:
                self._num_dismissed += 1
                self._retire(worker)
        self._end_retired()

    def _is_worn(self, worker: WorkerProcess) -> bool:
        return (
            worker.num_leases >= self.settings.recycle_worker_leases
            or time.monotonic() - worker.born_s > self.settings.recycle_worker_age_s
            or worker.report["memory_mib"] > self.settings.recycle_worker_memory_mib
        )

    def _retire(self, worker: WorkerProcess) -> None:
        """No new lease comes to it."""
        self._workers.remove(worker)
        self._retired.append(worker)
        self._queue.remove(worker)

    def _end_retired(self) -> None:
        for worker in [worker for worker in self._retired if not self._queue.load(worker)]:
            self._forget(worker)
            closing = asyncio.create_task(worker.close(), name=f"end of worker {worker.pid}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _lose(self, worker: WorkerProcess) -> None:
        """A worker died, or hung and was killed."""
        if worker in self._workers or worker in self._retired:
            self._num_lost += 1
            self._forget(worker)
            self._queue.remove(worker)

    def _forget(self, worker: WorkerProcess) -> None:
        self._ended.update(worker.report["counts"])
        self._workers = [other for other in self._workers if other is not worker]
        self._retired = [other for other in self._retired if other is not worker]

    def _reclaim(self) -> None:
        """Take back what nobody used for long, and what hangs. Its user learns of it with the call that hangs, or the next one."""
        ttl_s, limit_s = self.settings.lease_ttl_s, self.settings.call_limit_s
        for session, slot in list(self._leases.items()):
            if session.unused_s > ttl_s:
                session.end(f"The session was not used for {ttl_s:g} s and was taken back; lease another one, or raise lease_ttl_s.")
            elif session.call_age_s > limit_s:
                session.end(f"A call took longer than {limit_s:g} s; the session was taken back. Lease another one, or raise call_limit_s.")
            else:
                continue
            self._num_reclaimed += 1
            putting_back = asyncio.create_task(self._put_back(slot, session, keep=False, unhealthy=None), name="reclaim")
            self._closing.add(putting_back)
            putting_back.add_done_callback(self._closing.discard)


def _failed_start(error: FlywheelError | OSError) -> FlywheelError:
    """The error that those who wait for a worker get: what a person must fix as it is, anything else as the sandbox's."""
    known = error if isinstance(error, FlywheelError) else shortage(error)
    if known is not None and not known.is_retryable:
        return known
    failed = SandboxError(f"No sandbox process could be started: {error}")
    failed.__cause__ = error
    return failed
