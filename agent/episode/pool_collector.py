"""The collector on a pool of live sessions in this process: many episodes at once. Satisfies Collector.

How one episode runs is runner.py's business; which browsers are behind a lease is the pool's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, nullcontext
from typing import Annotated

from pydantic import Field

from agent.episode import concurrency
from agent.episode.collector import LeaseUse, Requests
from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.log import EpisodeLog
from agent.episode.loop import EpisodeLimits, Intervene
from agent.episode.runner import EpisodeRunner, Live, RunnerSettings
from agent.policy.action_source import ActionSource, PolicyActionSource
from agent.policy.batcher import Batcher
from agent.policy.policy import Policy
from agent.prompts.prompt import PromptBuilder
from sandbox.pool.pool_protocol import SessionPoolProtocol, SizedSessionPool


class CollectorSettings(RunnerSettings):
    """How a PoolCollector runs episodes."""

    concurrency: Annotated[int, Field(ge=1, description="episodes under way; a freed session takes one whose page it has")] = 16
    max_batch: Annotated[int, Field(ge=1, description="prompts that a policy is asked at once")] = 64
    max_wait_ms: Annotated[float, Field(ge=0, description="longest wait for a fuller batch")] = 50.0
    fixed_batch: Annotated[bool, Field(description="one prompt at a time: bit-exact whatever the concurrency")] = False


class PoolCollector:
    """Runs episodes on a pool of sessions, each with an EpisodeRunner."""

    def __init__(
        self,
        session_pool: SessionPoolProtocol,
        builder: PromptBuilder,
        limits: EpisodeLimits | None = None,
        settings: CollectorSettings | None = None,
        *,
        to_choose: bool = False,
    ) -> None:
        """`to_choose` as in EpisodeRunner."""
        self._session_pool = session_pool
        self._settings = settings or CollectorSettings()
        self._runner = EpisodeRunner(session_pool, builder, limits, self._settings, to_choose=to_choose)

    @property
    def lease_use(self) -> LeaseUse:
        return LeaseUse(
            leased_s=self._runner.leased_s, num_sessions=self._session_pool.size if isinstance(self._session_pool, SizedSessionPool) else 0
        )

    async def collect(
        self, policy: Policy, requests: Requests, *, log: EpisodeLog | None = None, intervene: Intervene | None = None
    ) -> AsyncIterator[Episode]:
        """Yield each request's episode as it finishes, once it is in the log. Leaving the loop early cancels the rest. Raises what the
        policy's engine raises, and what an iterator of requests raises."""
        settings = self._settings
        batcher = Batcher(policy, max_batch=settings.max_batch, max_wait_ms=settings.max_wait_ms, fixed_batch=settings.fixed_batch)
        source = PolicyActionSource(batcher.act)
        async with aclosing(self._run_all(source, requests, log, batcher.live, intervene)) as episodes:
            async for episode in episodes:
                yield episode

    async def play(self, source: ActionSource, requests: Requests, *, log: EpisodeLog | None = None) -> AsyncIterator[Episode]:
        """The same with any action source, e.g. an oracle that demonstrates."""
        async with aclosing(self._run_all(source, requests, log, nullcontext, None)) as episodes:
            async for episode in episodes:
                yield episode

    async def close(self) -> None:
        await self._session_pool.close()

    def _run_all(
        self, source: ActionSource, requests: Requests, log: EpisodeLog | None, live: Live, intervene: Intervene | None
    ) -> AsyncGenerator[Episode, None]:
        def run(request: EpisodeRequest) -> Awaitable[Episode]:
            return self._runner.run(request, source, intervene=intervene, live=live, log=log)

        return concurrency.bounded_map(requests, run, num_workers=self._settings.concurrency, name="collector")
