"""All leases of a server: who has which session, who waits for one, what ends them. What one lease does is lease.py's business."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass

from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.server.disk import Disk
from sandbox.server.lease import EXPLANATIONS, End, Lease
from sandbox.server.metrics import Metrics
from sandbox.server.settings import ServerSettings
from sandbox.tasks.task import Task
from warehouse.core.errors import ConfigError, LeaseLost, SandboxBusy

ENDS_REMEMBERED = 10_000
CLOSING = "The server is shutting down."
DRAINING = "The server is draining: it grants no new session. Ask another server."
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    client: str
    place: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class _Making:
    """A lease that was asked for under a key, and how many requests wait for it."""

    task: asyncio.Task[Lease]
    num_asking: int = 0


class Leases:
    """Grants, finds and ends leases, within the limits of the settings: so many in all, so many a client, the others wait in line."""

    def __init__(self, session_pool: SessionPoolProtocol, settings: ServerSettings, metrics: Metrics) -> None:
        self.settings = settings
        self._session_pool, self._metrics = session_pool, metrics
        self._live: dict[str, Lease] = {}
        self._by_key: dict[tuple[str, str], _Making] = {}
        self._num_held: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []
        self._ends: OrderedDict[tuple[str, str], End] = OrderedDict()
        self.disk = Disk(settings.min_free_disk_mib)
        self.is_closing = self.is_draining = False

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_live(self) -> int:
        return len(self._live)

    def num_free(self, client: str) -> int:
        """Sessions that `client` would get without waiting."""
        if self.is_closing or self.is_draining or self.disk.is_short:
            return 0
        most, of_client = self.settings.max_sessions, self.settings.max_sessions_per_client
        return max(0, min(most - self._num_held.total(), of_client - self._num_held[client]) - self.num_waiting)

    async def create(
        self, client: str, task: Task | None, *, screenshots: bool, ttl_s: float | None, wait_s: float | None, key: str | None = None
    ) -> Lease:
        """A lease on a session; the same one again for the same `key`. Raises SandboxBusy when none comes free in time, ConfigError for
        limits that are not allowed, and what the pool raises. Cancelled before it is granted, it leaves nothing behind, unless another
        request with the same key waits for it."""
        ttl_s = self.settings.ttl_s if ttl_s is None else ttl_s
        if ttl_s > self.settings.max_ttl_s:
            raise ConfigError(f"A time to live of {ttl_s:g} s is too long: at most {self.settings.max_ttl_s:g} s; send heartbeats.")
        wait_s = self.settings.max_wait_s if wait_s is None else min(wait_s, self.settings.max_wait_s)
        if key is None:
            return await self._create(client, task, screenshots, ttl_s, wait_s)
        making = self._by_key.get((client, key))
        if making is None:
            making = _Making(asyncio.create_task(self._create(client, task, screenshots, ttl_s, wait_s)))
            self._by_key[client, key] = making
            making.task.add_done_callback(lambda made: self._forget_failed(client, key, made))
        making.num_asking += 1
        try:
            return await asyncio.shield(making.task)
        finally:
            making.num_asking -= 1
            if not making.num_asking and not making.task.done():
                making.task.cancel()
                self._by_key.pop((client, key), None)

    def get(self, client: str, session_id: str) -> Lease:
        """Raises LeaseLost, for a session that never was as for one that is another client's."""
        lease = self._live.get(session_id)
        if lease is not None and lease.client == client and lease.end is None:
            return lease
        end = self._ends.get((client, session_id)) or (lease.end if lease is not None and lease.client == client else None)
        raise LeaseLost(
            f"Session {session_id} is no longer yours: {EXPLANATIONS[end]}. Lease another one."
            if end is not None
            else f"You have no session {session_id}. `GET /v1/sessions` lists yours."
        )

    def of(self, client: str) -> list[Lease]:
        return [lease for lease in self._live.values() if lease.client == client and lease.end is None]

    def drain(self, is_draining: bool) -> None:
        """Grant nothing any more and turn away those who wait, or grant again. What is on lease goes on."""
        self.is_draining = is_draining
        if is_draining:
            self._refuse_line(DRAINING)

    def begin_close(self) -> None:
        """Grant nothing any more, and let viewers go."""
        self.is_closing = True
        self._refuse_line(CLOSING)
        for lease in self._live.values():
            lease.journal.notify()

    async def close(self) -> None:
        """Release every session; may be called twice."""
        self.begin_close()
        for lease in list(self._live.values()):
            lease.release("shutdown", distrusted=True)
        await asyncio.gather(*(lease.ended() for lease in list(self._live.values())))

    def _refuse_line(self, why: str) -> None:
        while self._waiting:
            waiter = self._waiting.pop(0)
            if not waiter.place.done():
                waiter.place.set_exception(SandboxBusy(why))

    async def _create(self, client: str, task: Task | None, screenshots: bool, ttl_s: float, wait_s: float) -> Lease:
        deadline_s = time.monotonic() + wait_s
        await self._place(client, wait_s)
        lease = Lease(
            "session-" + secrets.token_hex(12), client, task, screenshots=screenshots, ttl_s=ttl_s, settings=self.settings, disk=self.disk
        )
        self._live[lease.session_id] = lease
        lease.keep(self._session_pool).add_done_callback(lambda keeper: self._ended(lease, keeper))
        try:
            async with asyncio.timeout(max(deadline_s - time.monotonic(), 0.05)) as waiting:
                await lease.granted()
        except BaseException as error:
            lease.release("unanswered")
            if isinstance(error, TimeoutError) and waiting.expired():
                raise SandboxBusy(f"No session came free within {wait_s:g} s; retry.") from error
            raise
        self._metrics.created.inc()
        return lease

    async def _place(self, client: str, wait_s: float) -> None:
        """Wait in line until the limits let `client` have one more; it is then counted as having it. Raises SandboxBusy."""
        if self.is_closing or self.is_draining:
            raise SandboxBusy(CLOSING if self.is_closing else DRAINING)
        self.disk.check_for_lease()
        waiter = _Waiter(client, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._serve_line()
        if not waiter.place.done() and len(self._waiting) > self.settings.max_waiting:
            self._waiting.remove(waiter)
            raise SandboxBusy(f"{self.settings.max_waiting} requests for a session are waiting already; retry later.")
        try:
            async with asyncio.timeout(wait_s) as waiting:
                await waiter.place
        except BaseException as error:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.place.done() and not waiter.place.cancelled() and waiter.place.exception() is None:
                self._give_place_back(client)
            if isinstance(error, TimeoutError) and waiting.expired():
                raise SandboxBusy(
                    f"No session came free within {wait_s:g} s: {self.num_live} of {self.settings.max_sessions} are on lease, "
                    f"{self._num_held[client]} of {self.settings.max_sessions_per_client} by {client}. Ask again, or release some."
                ) from error
            raise

    def _serve_line(self) -> None:
        for waiter in list(self._waiting):
            if self._num_held.total() >= self.settings.max_sessions:
                return
            if self._num_held[waiter.client] < self.settings.max_sessions_per_client:
                self._waiting.remove(waiter)
                if not waiter.place.done():
                    self._num_held[waiter.client] += 1
                    waiter.place.set_result(None)

    def _give_place_back(self, client: str) -> None:
        self._num_held[client] -= 1
        if not self._num_held[client]:
            del self._num_held[client]
        self._serve_line()

    def _ended(self, lease: Lease, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            LOG.error("The lease %s ended by an error that is none of the sandbox's", lease.session_id, exc_info=error)
        del self._live[lease.session_id]
        end = lease.end or "failed"
        self._ends[lease.client, lease.session_id] = end
        while len(self._ends) > ENDS_REMEMBERED:
            self._ends.popitem(last=False)
        self._metrics.ended.labels(reason=end).inc()
        self._give_place_back(lease.client)
        for name, making in list(self._by_key.items()):
            made = making.task
            if made.done() and not made.cancelled() and made.exception() is None and made.result() is lease:
                del self._by_key[name]

    def _forget_failed(self, client: str, key: str, made: asyncio.Task[Lease]) -> None:
        making = self._by_key.get((client, key))
        if making is not None and making.task is made and (made.cancelled() or made.exception() is not None):
            del self._by_key[client, key]
