"""Episodes that a stage plays, kept in its folder as they finish: a killed stage plays only what is missing, and no more of them is in
memory than what became of each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from agent.episode import Episode, EpisodeRequest
from agent.episode_log import EpisodeLog
from agent.policy import Policy
from agent.pool_collector import PoolCollector
from pipelines.workers.context import WorkerContext


class KeptEpisodes:
    """Of one stage. `whole`: with steps and screenshots, for the warehouse; else what became of them alone is kept."""

    def __init__(self, context: WorkerContext, *, whole: bool) -> None:
        self._log, self._whole = EpisodeLog(context.folder / "episodes"), whole
        self._log.mend()
        self._outcomes = {episode.episode_id: _outcome(episode) for episode in self._log.without_screenshots()}

    def outcomes(self, requests: Sequence[EpisodeRequest]) -> list[Episode]:
        """Of those requests that were played, without steps."""
        return [self._outcomes[one.episode_id] for one in requests if one.episode_id in self._outcomes]

    def missing(self, requests: Sequence[EpisodeRequest]) -> list[EpisodeRequest]:
        return [one for one in requests if one.episode_id not in self._outcomes]

    async def play(self, collector: PoolCollector, policy: Policy, requests: Sequence[EpisodeRequest]) -> AsyncIterator[Episode]:
        """Play what is missing of the requests; yields what became of each once it is kept."""
        async for episode in collector.collect(policy, self.missing(requests)):
            outcome = _outcome(episode)
            self._log.append(1, episode if self._whole else outcome)
            self._outcomes[episode.episode_id] = outcome
            yield outcome

    def episodes(self) -> Iterator[Episode]:
        """As they were kept, in the order they finished; read one by one."""
        return self._log.episodes()

    def remove(self) -> None:
        """Once the warehouse has what is to be kept of them."""
        self._log.remove()


def _outcome(episode: Episode) -> Episode:
    return episode.model_copy(update={"steps": (), "screenshots": {}})
