"""The collector on a pool of live sessions in this process: many episodes at once, retries, crashes recorded. Satisfies Collector.

How one episode runs is agent/episode/loop.py's business; which browsers are behind a lease is the pool's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from agent.episode import concurrency
from agent.episode.collector import LeaseUse, Requests
from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.episode.loop import UNKNOWN_ENVIRONMENT, EpisodeLimits, Intervene, run_episode
from agent.policy.action_source import ActionSource, PolicyActionSource
from agent.policy.batcher import Batcher
from agent.policy.policy import Policy
from agent.prompts.prompt import PromptBuilder
from sandbox.pool.pool_protocol import Pool, SizedPool
from warehouse.core.errors import SandboxError, SandboxTimeout
from warehouse.evaluation.choosing import require_choosable

Live = Callable[[], AbstractContextManager[None]]
"""Entered while an episode runs on a session; the batcher counts by it."""


class CollectorSettings(BaseModel):
    """How a PoolCollector runs episodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    concurrency: Annotated[int, Field(ge=1, description="episodes under way; a freed session takes one whose page it has")] = 16
    max_retries: Annotated[int, Field(ge=0, description="fresh starts after an infrastructure failure, then `crashed`")] = 2
    episode_timeout_s: Annotated[
        float | None, Field(gt=0, description="wall clock of an episode once it has a session; past it, an infrastructure failure")
    ] = None
    retry_delay_s: Annotated[float, Field(ge=0, description="pause before the first retry; doubles with each")] = 0.2
    max_batch: Annotated[int, Field(ge=1, description="prompts that a policy is asked at once")] = 64
    max_wait_ms: Annotated[float, Field(ge=0, description="longest wait for a fuller batch")] = 50.0
    fixed_batch: Annotated[bool, Field(description="one prompt at a time: bit-exact whatever the concurrency")] = False


class PoolCollector:
    """Runs episodes on a pool of sessions. An episode's result does not depend on which session ran it, nor on its neighbours."""

    def __init__(
        self,
        pool: Pool,
        builder: PromptBuilder,
        limits: EpisodeLimits | None = None,
        settings: CollectorSettings | None = None,
        *,
        to_choose: bool = False,
    ) -> None:
        """`to_choose`: for a stage that learns or chooses. It plays no instance that is only reported, and raises ReportedOnly."""
        self._pool = pool
        self._builder = builder
        self._limits = limits or EpisodeLimits()
        self._settings = settings or CollectorSettings()
        self._to_choose = to_choose
        self._meter = _LeaseMeter()

    @property
    def lease_use(self) -> LeaseUse:
        return LeaseUse(leased_s=self._meter.leased_s, num_sessions=self._pool.size if isinstance(self._pool, SizedPool) else 0)

    async def collect(self, policy: Policy, requests: Requests, *, intervene: Intervene | None = None) -> AsyncIterator[Episode]:
        """Yield each request's episode as it finishes. Leaving the loop early cancels the rest. Raises what the policy's engine raises,
        and what an iterator of requests raises."""
        settings = self._settings
        batcher = Batcher(policy, max_batch=settings.max_batch, max_wait_ms=settings.max_wait_ms, fixed_batch=settings.fixed_batch)
        async with aclosing(self._run_all(PolicyActionSource(batcher.act), requests, batcher.live, intervene)) as episodes:
            async for episode in episodes:
                yield episode

    async def play(self, source: ActionSource, requests: Requests) -> AsyncIterator[Episode]:
        """The same with any action source, e.g. an oracle that demonstrates."""
        async with aclosing(self._run_all(source, requests, nullcontext, None)) as episodes:
            async for episode in episodes:
                yield episode

    async def close(self) -> None:
        await self._pool.close()

    def _run_all(self, source: ActionSource, requests: Requests, live: Live, intervene: Intervene | None) -> AsyncGenerator[Episode, None]:
        def run(request: EpisodeRequest) -> Awaitable[Episode]:
            return self._run_until_done(request, source, live, intervene)

        return concurrency.bounded_map(requests, run, num_workers=self._settings.concurrency, name="collector")

    async def _run_until_done(self, request: EpisodeRequest, source: ActionSource, live: Live, intervene: Intervene | None) -> Episode:
        """The episode, started afresh on another lease after an infrastructure failure; `crashed` when retries run out."""
        if self._to_choose:
            require_choosable({request.split}, f"episode {request.episode_id} of {request.task.name}")
        started_s = time.monotonic()
        num_retries = 0
        while True:
            try:
                async with self._pool.lease(request.task, screenshots=request.screenshots) as session:
                    with live(), self._meter.leased():
                        running = run_episode(request, session, source, self._builder, self._limits, intervene=intervene)
                        episode = await in_time(running, request, self._settings.episode_timeout_s)
            except SandboxError as error:
                if not error.is_retryable:
                    raise
                if num_retries >= self._settings.max_retries:
                    return crashed_episode(request, error, num_retries=num_retries, duration_ms=(time.monotonic() - started_s) * 1000)
                await asyncio.sleep(self._settings.retry_delay_s * 2**num_retries)
                num_retries += 1
            else:
                return episode.model_copy(update={"num_retries": num_retries})


async def in_time(running: Awaitable[Episode], request: EpisodeRequest, timeout_s: float | None) -> Episode:
    """An episode that runs on a session. Raises SandboxTimeout where it has not ended after `timeout_s`, and what it raises itself."""
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            return await running
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise SandboxTimeout(
            f"episode {request.episode_id} of {request.task.name} did not end within {timeout_s:g} s; it is retried, then recorded as "
            "crashed; raise sandbox.episode_timeout_s if its task is that long"
        ) from error


class _LeaseMeter:
    """How long sessions are held by an episode that is under way."""

    def __init__(self) -> None:
        self._leased_s, self._num_leased, self._since_s = 0.0, 0, time.monotonic()

    @contextmanager
    def leased(self) -> Iterator[None]:
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    @property
    def leased_s(self) -> float:
        """Sum over all leases, up to now."""
        self._count(0)
        return self._leased_s

    def _count(self, change: int) -> None:
        now_s = time.monotonic()
        self._leased_s += self._num_leased * (now_s - self._since_s)
        self._since_s = now_s
        self._num_leased += change


def crashed_episode(request: EpisodeRequest, error: SandboxError, *, num_retries: int, duration_ms: float) -> Episode:
    """The record of an episode that the infrastructure never let finish: no reward, neither good nor bad."""
    return Episode(
        request=request,
        instruction=None,
        steps=(),
        outcome=Outcome.CRASHED,
        reward=None,
        num_retries=num_retries,
        error=f"{type(error).__name__}: {error}",
        duration_ms=duration_ms,
        environment=UNKNOWN_ENVIRONMENT,
    )
