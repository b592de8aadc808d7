"""Episodes that a stage plays, kept in its folder as they finish: a stage that resumes after a kill plays only what is missing, and again
what the infrastructure had ended. Only the outcome of each stays in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from agent.episode.collector import Collector
from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.log import EpisodeLog
from agent.policy.policy import Policy
from pipelines.stages.context import WorkerContext


class KeptEpisodes(EpisodeLog):
    """Of one stage, until the warehouse has what it is to have of them. `whole`: with steps and screenshots; else only what became of
    each."""

    def __init__(self, context: WorkerContext, *, whole: bool) -> None:
        super().__init__(context.folder / "episodes")
        self.repair()
        self.drop_crashed()
        self._whole = whole
        self._outcomes = {episode.episode_id: _outcome(episode) for episode in self.without_screenshots()}

    def outcome(self, episode_id: str) -> Episode | None:
        """Without steps; None where it is not played yet."""
        return self._outcomes.get(episode_id)

    def outcomes(self, requests: Sequence[EpisodeRequest]) -> list[Episode]:
        """Of those requests that were played."""
        return [outcome for one in requests if (outcome := self.outcome(one.episode_id)) is not None]

    def missing(self, requests: Sequence[EpisodeRequest]) -> list[EpisodeRequest]:
        return [one for one in requests if self.outcome(one.episode_id) is None]

    async def play(self, collector: Collector, policy: Policy, requests: Sequence[EpisodeRequest]) -> AsyncIterator[Episode]:
        """Play what is missing of the requests; yields what became of each once it is kept."""
        async for episode in collector.collect(policy, self.missing(requests), log=self):
            yield self._outcomes[episode.episode_id]

    def append(self, episode: Episode) -> None:
        outcome = _outcome(episode)
        super().append(episode if self._whole else outcome)
        self._outcomes[episode.episode_id] = outcome


def _outcome(episode: Episode) -> Episode:
    return episode.model_copy(update={"steps": (), "screenshots": {}})
