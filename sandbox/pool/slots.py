"""Local slots: the sessions of this process and the browsers under them. Started when first needed, replaced when they crash, hang or
wear out, closed when nobody uses them. Who may use which slot, and when, is the queue's business (lease_queue.py).

Several slots share one browser (`_BrowserSlot`). A worn browser gets no new session: who uses it stays on it, the next session gets a
fresh one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sandbox.browser.backend import BrowserBackend, Kind, launch
from sandbox.browser.page import Page
from sandbox.browser.page_session import Limits, PageSession
from sandbox.pool.kinds import FACTORIES, CountsResets, PooledSession, SessionContext
from sandbox.pool.lease_queue import Slot, SlotRequest
from sandbox.tasks.page_task import PageSettings, PageTasks, Surroundings
from sandbox.tasks.sources import kind_of
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import SessionKind
from warehouse.core.errors import SandboxError

_LOG = logging.getLogger(__name__)

LONGEST_PAUSE_S = 5.0
"""Before a browser is started whose predecessors failed."""
BASE_MEMORY_MIB, SESSION_MEMORY_MIB = 1000.0, 150.0
END_MEMORY_FACTOR = 4.0
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecyclePolicy:
    """When browsers and sessions are replaced or closed. Times are wall-clock seconds."""

    recycle_resets: int = 1000
    recycle_age_s: float = 3600.0
    recycle_memory_mib: float | None = None
    """Default: a base and something a session, which a leak exceeds and pages do not."""
    end_memory_mib: float | None = None
    """Of a browser with more the heaviest pages are ended while they are used, or all of it, before the machine runs out. Default: four
    times the above's default."""
    idle_s: float = 300.0
    """A session unused for so long is closed, and then a browser without sessions."""
    heartbeat_s: float = 5.0
    """Between two looks at all browsers."""
    hung_after_s: float = 30.0
    """A browser that answers nothing for so long is ended."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """Since the pool was entered."""

    num_resets: int = 0
    num_launches: int = 0
    num_crashes: int = 0
    num_recycled: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class _Running:
    """A browser that runs."""

    backend: BrowserBackend
    kind: Kind
    browser_slot: _BrowserSlot
    born_s: float = field(default_factory=time.monotonic)
    used_s: float = field(default_factory=time.monotonic)
    num_resets: int = 0
    memory_mib: float = 0.0
    is_retired: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class _BrowserSlot:
    """Room for one browser of a kind at work; those that are retired run beside it until nobody uses them."""

    num_slots: int = 0
    running: dict[Kind, _Running] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_failures: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class LocalSlot(Slot):
    browser_slot: _BrowserSlot
    session: PooledSession | None = None
    session_kind: SessionKind | None = None
    running: _Running | None = None
    """The browser in which the session opened its last page."""
    is_in_use: bool = False


class Slots:
    """All slots of one process; entered by nobody, closed once."""

    def __init__(
        self,
        sources: PageTasks,
        *,
        kind: Kind,
        size: int,
        num_browsers: int,
        limits: Limits | None = None,
        recycle: RecyclePolicy | None = None,
    ) -> None:
        self.kind = kind
        self.recycle = recycle or RecyclePolicy()
        self.counts = Counts()
        self._sources = sources
        self._limits = limits or Limits()
        self._browser_slots = [_BrowserSlot() for _ in range(num_browsers)]
        self.all = [
            LocalSlot(browser_slot=(browser_slot := self._browser_slots[n % num_browsers]), group=browser_slot) for n in range(size)
        ]
        for slot in self.all:
            slot.browser_slot.num_slots += 1
        self._running: list[_Running] = []
        self._ending: list[BrowserBackend] = []
        self._is_closed = False

    def request(self, task: Task | None) -> SlotRequest:
        """What a lease for a task asks for; without a task, any page session. Raises TaskError for an unknown source."""
        return request_of(task, self._sources)

    async def check_out(self, slot: LocalSlot, task: Task | None, *, screenshots: bool) -> PooledSession:
        """The slot's session, of the kind that the task needs. Raises BrowserMissing or BrowserCrashed where it needs a browser and none
        can be started."""
        kind = self.request(task).kind
        slot.is_in_use = True
        if slot.session is not None and (slot.session_kind != kind or not _is_usable(slot)):
            await self._discard(slot)
        if FACTORIES[kind].needs_browser:
            await self._browser(slot.browser_slot, self.kind)  # outside the time that a reset may take
        if slot.session is None:
            context = SessionContext(open_page=partial(self._open_page, slot), page_tasks=self._sources, limits=self._limits, task=task)
            slot.session, slot.session_kind = await FACTORIES[kind].open(context), kind
        slot.session.screenshots = screenshots
        return slot.session

    async def put_back(self, slot: LocalSlot, *, keep: bool) -> None:
        """After use. `keep`: the session is well, and may be lent again."""
        running, browser_slot = slot.running, slot.browser_slot
        if isinstance(slot.session, CountsResets):
            num_resets, slot.session.num_resets = slot.session.num_resets, 0
            self.counts.num_resets += num_resets
            if running is not None:
                running.num_resets += num_resets
        if keep:
            browser_slot.num_failures = 0
        if running is not None and self._is_worn(running):
            self._retire(running)
            self.counts.num_recycled += 1
        is_kept = slot.session_kind is None or FACTORIES[slot.session_kind].is_kept
        if not (keep and is_kept and _is_usable(slot)):
            await self._discard(slot)
        slot.kind = slot.session_kind
        slot.page = slot.session.loaded_task if isinstance(slot.session, PageSession) else None
        slot.free_since_s = time.monotonic()
        slot.is_in_use = False
        if running is not None:
            running.used_s = time.monotonic()
        await self._end_retired()

    def mark_unhealthy(self, slot: LocalSlot, error: BaseException) -> None:
        """A browser that hung is of no use to its other sessions either: they get BrowserCrashed."""
        if slot.running is not None and slot.running.backend.is_alive:
            slot.running.backend.kill(f"The browser was ended because a session in it failed: {error}")

    def backends(self) -> list[BrowserBackend]:
        """Browsers that live."""
        return [running.backend for running in self._running if running.backend.is_alive]

    def memory_mib(self) -> float:
        """Of all browsers that live, as last measured."""
        return sum(running.memory_mib for running in self._running if running.backend.is_alive)

    async def watch(self) -> None:
        """Look after the browsers and sessions for as long as it is not cancelled."""
        while True:
            await asyncio.sleep(self.recycle.heartbeat_s)
            try:
                await self.look()
            except Exception:
                _LOG.exception("Looking after the browsers failed; it is retried.")

    async def look(self) -> None:
        """End what hangs, clean up after what died, measure memory, close what nobody used for long."""
        await asyncio.gather(*(self._end_if_hung(running) for running in self._running if running.backend.is_alive))
        for running in [running for running in self._running if running.backend.is_alive]:
            running.memory_mib = await asyncio.to_thread(running.backend.memory_mib)
            await self._hold_memory(running)
        since_s = time.monotonic() - self.recycle.idle_s
        for slot in self.all:
            if not slot.is_in_use and slot.session is not None and slot.free_since_s < since_s:
                slot.kind = slot.page = None
                await self._discard(slot)
        for running in [
            running for browser_slot in self._browser_slots for running in browser_slot.running.values() if not browser_slot.lock.locked()
        ]:
            if not running.backend.is_alive:
                async with running.browser_slot.lock:
                    await self._lose(running)
            elif self._is_worn(running):
                self._retire(running)
                self.counts.num_recycled += 1
            elif running.used_s < since_s and not self._is_in_use(running):
                self._retire(running)
        await self._end_retired()

    async def close(self) -> None:
        """End every session and browser; those in use get BrowserCrashed. May be called twice."""
        self._is_closed = True
        others = [slot.session for slot in self.all if slot.session is not None and slot.session_kind != "page"]
        await asyncio.gather(*(_close_quietly(session) for session in others))
        running, self._running = self._running, []
        for browser_slot in self._browser_slots:
            browser_slot.running.clear()
        await asyncio.gather(*(each.backend.close() for each in running), *(backend.close() for backend in self._ending))
        pages = [slot.session for slot in self.all if slot.session is not None and slot.session_kind == "page"]
        await asyncio.gather(*(_close_quietly(session) for session in pages))  # a web session's proxy outlives its browser

    def kill(self) -> None:
        """End every browser at once, without waiting: for when the event loop goes away."""
        self._is_closed = True
        for backend in [*(running.backend for running in self._running), *self._ending]:
            backend.kill("The session pool was abandoned.")

    async def _open_page(self, slot: LocalSlot, settings: PageSettings, root: Path, surroundings: Surroundings | None) -> Page:
        # A browser whose frames are ours cannot let them run by themselves.
        running = await self._browser(slot.browser_slot, "plain" if settings.real_time and self.kind == "beginframe" else self.kind)
        slot.running = running
        return await running.backend.open_page(settings, root, surroundings)

    async def _browser(self, browser_slot: _BrowserSlot, kind: Kind) -> _Running:
        """The browser of a slot, started if missing: once, and the episode's owner retries (docs/failures.md). After
        failures it waits first, longer each time."""
        async with browser_slot.lock:
            self._require_open()
            running = browser_slot.running.get(kind)
            if running is not None and running.backend.is_alive:
                running.used_s = time.monotonic()
                return running
            if running is not None:
                await self._lose(running)
            if browser_slot.num_failures:
                await asyncio.sleep(min(0.05 * 2**browser_slot.num_failures, LONGEST_PAUSE_S))
            self.counts.num_launches += 1
            try:
                backend = await launch(kind)
            except SandboxError as error:
                browser_slot.num_failures += error.is_retryable
                raise
            if self._is_closed:
                await backend.close()
            self._require_open()
            browser_slot.running[kind] = running = _Running(backend=backend, kind=kind, browser_slot=browser_slot)
            self._running.append(running)
            return running

    def _require_open(self) -> None:
        if self._is_closed:
            raise SandboxError("The session pool is closed.")

    async def _lose(self, running: _Running) -> None:
        """Clean up after a browser that died."""
        self._retire(running)
        if running in self._running:
            running.browser_slot.num_failures += 1
            self.counts.num_crashes += 1
            await self._end(running)

    async def _end(self, running: _Running) -> None:
        """Close a browser and the sessions left in it. Where this is cancelled, the end of all does it."""
        self._running.remove(running)
        self._ending.append(running.backend)
        for slot in self.all:
            if slot.running is running and not slot.is_in_use:
                slot.kind = slot.page = None
                await self._discard(slot)
        await running.backend.close()
        self._ending.remove(running.backend)

    async def _end_if_hung(self, running: _Running) -> None:
        ping = asyncio.ensure_future(running.backend.ping())
        try:
            # Not a timeout that cancels: if our own loop stood still, the answer is there before the time is seen to be up.
            await asyncio.wait([ping], timeout=self.recycle.hung_after_s)
            if not ping.done():
                running.backend.kill(f"The browser answered nothing for {self.recycle.hung_after_s:g} s and was ended.")
        finally:
            ping.add_done_callback(_retrieve)  # where the browser died, the look that follows sees it
            ping.cancel()

    async def _hold_memory(self, running: _Running) -> None:
        """Above the limit the heaviest pages end, which costs their sessions alone; where that is not enough, the browser."""
        limit_mib = self.recycle.end_memory_mib or END_MEMORY_FACTOR * _usual_memory_mib(running.browser_slot)
        excess_mib = running.memory_mib - limit_mib
        if excess_mib <= 0:
            return
        ended_mib = await asyncio.to_thread(running.backend.end_heavy_pages, excess_mib, above_mib=SESSION_MEMORY_MIB)
        said = f"The browser had {running.memory_mib:.0f} MiB of memory, more than the {limit_mib:.0f} MiB allowed."
        if ended_mib < excess_mib:
            running.backend.kill(said)
        else:
            _LOG.warning("%s Pages of %.0f MiB were ended.", said, ended_mib)
            running.memory_mib -= ended_mib

    def _is_in_use(self, running: _Running) -> bool:
        return any(slot.is_in_use and slot.running is running for slot in self.all)

    def _is_worn(self, running: _Running) -> bool:
        if running.is_retired or not running.backend.is_alive:
            return False
        allowed_mib = self.recycle.recycle_memory_mib or _usual_memory_mib(running.browser_slot)
        return (
            running.num_resets >= self.recycle.recycle_resets
            or time.monotonic() - running.born_s > self.recycle.recycle_age_s
            or running.memory_mib > allowed_mib
        )

    @staticmethod
    def _retire(running: _Running) -> None:
        """No new session comes to it."""
        running.is_retired = True
        if running.browser_slot.running.get(running.kind) is running:
            del running.browser_slot.running[running.kind]

    async def _end_retired(self) -> None:
        """End the retired browsers that nobody uses any more."""
        for running in list(self._running):
            if running.is_retired and running in self._running and not self._is_in_use(running):
                await self._end(running)

    async def _discard(self, slot: LocalSlot) -> None:
        """Close the slot's session. Where that fails or takes long, its browser goes with it."""
        session, slot.session, slot.session_kind = slot.session, None, None
        running, slot.running = slot.running, None
        if session is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await session.close()
        except (SandboxError, TimeoutError) as error:
            if running is not None and running.backend.is_alive:
                running.backend.kill(f"The browser was ended because a page of it could not be closed: {error}")


def request_of(task: Task | None, sources: PageTasks) -> SlotRequest:
    """What a lease for a task asks for, where `sources` are the pages there are. Raises TaskError for an unknown source."""
    if task is None:
        return SlotRequest(kind="page")
    kind = "page" if task.source in sources else kind_of(task)
    return SlotRequest(kind=kind, page=(task.source, task.name) if kind == "page" else None)


def _usual_memory_mib(browser_slot: _BrowserSlot) -> float:
    return BASE_MEMORY_MIB + SESSION_MEMORY_MIB * browser_slot.num_slots


def _is_usable(slot: LocalSlot) -> bool:
    """Its session's browser, if it has one, lives and is not retired."""
    return slot.running is None or (slot.running.backend.is_alive and not slot.running.is_retired)


async def _close_quietly(session: PooledSession) -> None:
    with suppress(SandboxError, TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await session.close()


def _retrieve(task: asyncio.Future[None]) -> None:
    if not task.cancelled():
        task.exception()
