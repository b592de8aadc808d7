"""The Collector protocol: episode requests in, finished episodes out. The seam between learning and live sandboxes.

`models` trains through a Collector that is handed to it and so never imports a sandbox. agent/pool_collector.py is the implementation,
on a pool of live sessions in this process. (Collections run each episode as a Prefect task instead: pipelines/collection.py.)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

from agent.episode import Episode, EpisodeRequest
from agent.policy import Policy


@runtime_checkable
class Collector(Protocol):
    def collect(self, policy: Policy, requests: Sequence[EpisodeRequest]) -> AsyncIterator[Episode]:
        """Yield each request's episode as it finishes, in any order, exactly once. An infrastructure failure is retried inside and
        then yielded with outcome `crashed`: never lost, never raised, never a reward of 0."""
        ...

    async def close(self) -> None:
        """Release the sandboxes; may be called twice."""
        ...
