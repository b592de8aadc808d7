"""Live sandboxes for the workers: how the profile's sandbox settings become a pool of sessions, a collector, or single episodes by
request.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.loop import EpisodeLimits, run_episode
from agent.episode.pool_collector import CollectorSettings, PoolCollector, in_time
from agent.policy.action_source import PolicyActionSource
from agent.policy.batcher import Batcher
from agent.policy.policy import Policy
from assets.profile import ActingSettings, SandboxSettings
from sandbox.fleet.manager import Fleet
from sandbox.fleet.settings import FleetSettings
from warehouse.core.home import atomic_write

if TYPE_CHECKING:
    from annotation.service.scripted_collector import ServiceCollector

UNFINISHED_AFTER = 2.0
"""An episode that has not ended after so many times the limit of its decisions is an infrastructure failure, in every stage that acts."""
FORGOTTEN_AFTER = 10.0
"""A lease that nobody touched for so many times the limit of an episode is taken back."""


def num_waiting(settings: SandboxSettings) -> int:
    """Episodes under way or waiting for a session: more than there are sessions, so that most find one with their page loaded."""
    return 6 * settings.num_sessions


def limits(acting: ActingSettings) -> EpisodeLimits:
    return EpisodeLimits(policy_timeout_s=acting.sandbox.episode_timeout_s, max_new_tokens=acting.agent.max_new_tokens)


@asynccontextmanager
async def open_pool(settings: SandboxSettings) -> AsyncIterator[Fleet]:
    """A pool of live sessions as the profile asks for, in processes of their own."""
    fleet = FleetSettings(
        kind=settings.session,
        max_workers=settings.num_workers,
        sessions_per_worker=-(-settings.num_sessions // settings.num_workers),
        browsers_per_worker=settings.num_browsers,
        lease_ttl_s=FORGOTTEN_AFTER * settings.episode_timeout_s,
    )
    async with Fleet(fleet) as pool:
        yield pool


@asynccontextmanager
async def open_collector(acting: ActingSettings, *, to_choose: bool = False) -> AsyncIterator[PoolCollector]:
    """A collector on a pool of its own; `to_choose` as in PoolCollector."""
    async with open_pool(acting.sandbox) as pool:
        yield PoolCollector(pool, acting.agent.builder(), limits(acting), collecting(acting.sandbox), to_choose=to_choose)


@asynccontextmanager
async def open_annotator(acting: ActingSettings) -> AsyncIterator[ServiceCollector]:
    """The same for a scripted annotator: its episodes are annotated runs, as people's are."""
    from annotation.service.scripted_collector import ServiceCollector

    async with open_pool(acting.sandbox) as pool:
        collector = ServiceCollector(pool, acting.agent.builder(), limits(acting), collecting(acting.sandbox))
        try:
            yield collector
        finally:
            await collector.close()


def collecting(settings: SandboxSettings) -> CollectorSettings:
    return CollectorSettings(
        concurrency=num_waiting(settings),
        max_retries=settings.max_retries,
        episode_timeout_s=UNFINISHED_AFTER * settings.episode_timeout_s,
        fixed_batch=settings.fixed_batch,
    )


class EpisodeService:
    """Runs single episodes for callers in any thread: one event loop in one thread owns the sessions and the batcher.

    Prefect runs each task in an event loop of its own, and a browser belongs to one loop; so tasks submit here. An infrastructure failure
    is raised to the caller, who retries.
    """

    def __init__(self, acting: ActingSettings, policy: Policy, spool: Path) -> None:
        self._settings, self._policy, self._spool = acting.sandbox, policy, spool
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="episodes", daemon=True)
        self._stack = AsyncExitStack()
        self._builder, self._limits = acting.agent.builder(), limits(acting)
        self._num_running, self._since, self.busy_s = 0, 0.0, 0.0
        """`busy_s`: seconds in which at least one episode ran, which tells the orchestration's share from the episodes'."""

    def __enter__(self) -> EpisodeService:
        self._thread.start()
        self._call(self._open)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._call(self._stack.aclose)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def submit(self, request: EpisodeRequest) -> Future[Episode]:
        """Run one episode once; its result or SandboxError comes with the future."""
        return asyncio.run_coroutine_threadsafe(self._run(request), self._loop)

    def spool_screenshots(self, episode: Episode) -> None:
        """Keep an episode's images on disk, once by content, until they are in the warehouse."""
        for screenshot_id, data in episode.screenshots.items():
            path = self.screenshot_path(screenshot_id)
            if not path.exists():
                atomic_write(path, data)

    def with_screenshots(self, episode: Episode) -> Episode:
        """The episode with its images again, read from the spool."""
        named = {step.screenshot_id for step in episode.steps if step.screenshot_id}
        return episode.model_copy(update={"screenshots": {name: self.screenshot_path(name).read_bytes() for name in sorted(named)}})

    def screenshot_path(self, screenshot_id: str) -> Path:
        return self._spool / f"{screenshot_id}.png"

    async def _open(self) -> None:
        self._pool = await self._stack.enter_async_context(open_pool(self._settings))
        self._batcher = Batcher(self._policy, fixed_batch=self._settings.fixed_batch)

    async def _run(self, request: EpisodeRequest) -> Episode:
        with self._counted():
            return await self._run_once(request)

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

    async def _run_once(self, request: EpisodeRequest) -> Episode:
        async with self._pool.lease(request.task, screenshots=request.screenshots) as session:
            with self._batcher.live():
                running = run_episode(request, session, PolicyActionSource(self._batcher.act), self._builder, self._limits)
                return await in_time(running, request, UNFINISHED_AFTER * self._settings.episode_timeout_s)

    def _call(self, make: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(make(), self._loop).result()  # type: ignore[arg-type]
