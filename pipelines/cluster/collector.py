"""The collector on the nodes of a Ray cluster. Satisfies Collector; where an episode runs is episode_cluster.py's business."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, nullcontext

from agent.episode import concurrency
from agent.episode.collector import LeaseUse, Requests
from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.log import EpisodeLog
from agent.episode.pool_collector import CollectorSettings
from agent.episode.runner import Live
from agent.policy.action_source import ActionSource, PolicyActionSource
from agent.policy.batcher import Batcher
from agent.policy.policy import Policy
from pipelines.cluster.episode_cluster import EpisodeCluster


class RayCollector:
    """As many episodes at once as the nodes of the cluster have places for. The policy answers in this process, as in any other stage."""

    def __init__(self, cluster: EpisodeCluster, settings: CollectorSettings) -> None:
        self._cluster, self._settings = cluster, settings

    @property
    def lease_use(self) -> LeaseUse:
        return self._cluster.lease_use

    async def collect(self, policy: Policy, requests: Requests, *, log: EpisodeLog | None = None) -> AsyncIterator[Episode]:
        """As PoolCollector.collect."""
        settings = self._settings
        batcher = Batcher(policy, max_batch=settings.max_batch, max_wait_ms=settings.max_wait_ms, fixed_batch=settings.fixed_batch)
        async with aclosing(self._run_all(PolicyActionSource(batcher.act), requests, log, batcher.live)) as episodes:
            async for episode in episodes:
                yield episode

    async def play(self, source: ActionSource, requests: Requests, *, log: EpisodeLog | None = None) -> AsyncIterator[Episode]:
        """The same with any action source that can be sent to the nodes, e.g. an oracle that demonstrates."""
        async with aclosing(self._run_all(source, requests, log, nullcontext)) as episodes:
            async for episode in episodes:
                yield episode

    async def close(self) -> None:
        await self._cluster.close()

    def _run_all(self, source: ActionSource, requests: Requests, log: EpisodeLog | None, live: Live) -> AsyncGenerator[Episode, None]:
        def run(request: EpisodeRequest) -> Awaitable[Episode]:
            return self._cluster.run(request, source, live=live, log=log)

        return concurrency.admitted_map(requests, run, admit=self._cluster.free_slot, name="collector")
