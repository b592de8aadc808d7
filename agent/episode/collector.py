"""The Collector protocol: episode requests in, finished episodes out. The seam between learning and live sandboxes.

`models` trains through a Collector that is handed to it and so never imports a sandbox. agent/episode/pool_collector.py is the
implementation, on a pool of live sessions in this process.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.log import EpisodeLog
from agent.policy.policy import Policy

Requests = Iterable[EpisodeRequest] | AsyncIterable[EpisodeRequest]
"""A collector takes the next request when it has room for one more episode, not before. An asynchronous stream may let it wait, also for
ever, and may still grow while its episodes run. It stays its owner's to close."""


@runtime_checkable
class Collector(Protocol):
    def collect(self, policy: Policy, requests: Requests, *, log: EpisodeLog | None = None) -> AsyncIterator[Episode]:
        """Yield each request's episode as it finishes, in any order, exactly once; where there is a `log`, after it was appended there. An
        infrastructure failure is retried inside and then yielded with outcome `crashed`: never lost, never raised, never a reward of 0.
        Closing the iterator cancels what is under way."""
        ...

    async def close(self) -> None:
        """Release the sandboxes; may be called twice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseUse:
    """Since the collector was made: `leased_s` sums over all leases the seconds that an unfinished episode held one (those that go on are
    counted up to now), `num_sessions` is how many the pool can lend at once; 0 where it does not know."""

    leased_s: float = 0.0
    num_sessions: int = 0


@runtime_checkable
class MeasuresLeases(Protocol):
    """A collector that knows how its sessions are used."""

    @property
    def lease_use(self) -> LeaseUse: ...
