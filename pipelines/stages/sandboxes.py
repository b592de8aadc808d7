"""Live sandboxes for the stages: a collector where the profile says, or single episodes by request. The sessions of one machine are
pipelines/cluster/sessions.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from agent.episode.collector import Collector, Requests
from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.log import EpisodeLog
from agent.episode.pool_collector import PoolCollector
from agent.episode.runner import EpisodeRunner
from agent.policy.action_source import ActionSource, PolicyActionSource
from agent.policy.batcher import Batcher
from agent.policy.policy import Policy
from assets.settings.profile import ActingSettings
from pipelines.cluster.sessions import collecting, limits, num_waiting, open_pool

if TYPE_CHECKING:
    from pipelines.cluster.episode_cluster import EpisodeCluster


class StageCollector(Collector, Protocol):
    """What stages play episodes on."""

    def play(self, source: ActionSource, requests: Requests, *, log: EpisodeLog | None = None) -> AsyncIterator[Episode]:
        """As PoolCollector.play."""
        ...


@asynccontextmanager
async def open_collector(acting: ActingSettings, *, to_choose: bool = False) -> AsyncIterator[StageCollector]:
    """A collector where the profile says, on sessions of its own; `to_choose` as in PoolCollector."""
    if acting.sandbox.ray is not None:
        from pipelines.cluster.collector import RayCollector
        from pipelines.cluster.episode_cluster import open_cluster

        async with open_cluster(acting, acting.sandbox.ray, to_choose=to_choose) as cluster:
            yield RayCollector(cluster, collecting(acting.sandbox))
    else:
        async with open_local_collector(acting, to_choose=to_choose) as collector:
            yield collector


@asynccontextmanager
async def open_local_collector(acting: ActingSettings, *, to_choose: bool = False) -> AsyncIterator[PoolCollector]:
    """For a stage that looks on while its episodes run: on this machine, whatever the profile says of others."""
    async with open_pool(acting.sandbox) as pool:
        yield PoolCollector(pool, acting.agent.builder(), limits(acting), collecting(acting.sandbox), to_choose=to_choose)


class EpisodeService(ABC):
    """Runs single episodes for callers in any thread: one event loop in one thread owns the sessions and the engine.

    Prefect runs each task in an event loop of its own, and a browser belongs to one loop; so tasks submit here.
    """

    def __init__(self, acting: ActingSettings, log: EpisodeLog) -> None:
        self._acting, self._log = acting, log
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="episodes", daemon=True)
        self._stack = AsyncExitStack()
        self._num_running, self._since, self.busy_s = 0, 0.0, 0.0
        self.num_at_once = 0
        """`num_at_once`: episodes that are worth submitting at once, from when it is entered. `busy_s`: seconds in which at least one
        episode ran, which separates the orchestration's share from the episodes'."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._open)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._call(self._stack.aclose)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def submit(self, request: EpisodeRequest) -> Future[Episode]:
        """Run one episode; it is in the log once the future has it. Raises, with the future, what EpisodeRunner.run raises."""
        return asyncio.run_coroutine_threadsafe(self._run(request), self._loop)

    @abstractmethod
    async def _open(self) -> None:
        """Open what episodes run on, onto the stack; sets `num_at_once`."""

    @abstractmethod
    async def _play(self, request: EpisodeRequest) -> Episode:
        """The episode, once it is in the log."""

    async def _run(self, request: EpisodeRequest) -> Episode:
        with self._counted():
            return await self._play(request)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._num_running == 0:
            self._since = time.monotonic()
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1
            if self._num_running == 0:
                self.busy_s += time.monotonic() - self._since

    def _call(self, make: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(make(), self._loop).result()  # type: ignore[arg-type]


class PolicyService(EpisodeService):
    """Of episodes in which this project's agent asks a policy."""

    def __init__(self, acting: ActingSettings, policy: Policy, log: EpisodeLog) -> None:
        super().__init__(acting, log)
        self._policy = policy
        self._runner: EpisodeRunner | EpisodeCluster

    async def _open(self) -> None:
        settings = self._acting.sandbox
        self._batcher = Batcher(self._policy, fixed_batch=settings.fixed_batch)
        if settings.ray is not None:
            from pipelines.cluster.episode_cluster import GROWTH, open_cluster

            cluster = await self._stack.enter_async_context(open_cluster(self._acting, settings.ray, to_choose=False))
            self._runner, nodes = cluster, settings.ray.workers or GROWTH * cluster.num_nodes
        else:
            pool = await self._stack.enter_async_context(open_pool(settings))
            self._runner, nodes = EpisodeRunner(pool, self._acting.agent.builder(), limits(self._acting), collecting(settings)), 1
        self.num_at_once = nodes * num_waiting(settings)

    async def _play(self, request: EpisodeRequest) -> Episode:
        return await self._runner.run(request, PolicyActionSource(self._batcher.act), live=self._batcher.live, log=self._log)
