"""Rounds without an update because too many episodes crashed: which count as one, how long to wait after it, when to give up.

Such a round is completed, so that a run that gave up resumes with fresh episodes when it is restarted. By then each crashed episode
was requested twice by the pool (pool.py), and retried several times by the collector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.episode.episode import Episode, Outcome
from models.rl.config import PpoConfig
from warehouse.core.errors import NothingToLearn

FRUITLESS = "fruitless"
"""Metric of a round: 1 where it passed without an update because there was too little to learn from."""
NUM_REPORTED = 3


def is_fruitless(episodes: Sequence[Episode], num_learnable: int, config: PpoConfig) -> bool:
    """Whether too little of a batch is left: nothing to learn from, or fewer intact episodes than `min_intact` of it."""
    num_intact = sum(episode.outcome is not Outcome.CRASHED for episode in episodes)
    return not num_learnable or num_intact < config.min_intact * len(episodes)


def num_fruitful(metrics: Sequence[Mapping[str, float]]) -> int:
    """Rounds that were learned from."""
    return sum(not each.get(FRUITLESS) for each in metrics)


class CrashBudget:
    """Counts the fruitless rounds in a row since the run was started."""

    def __init__(self, config: PpoConfig, num_rounds: int) -> None:
        self._config, self._num_rounds = config, num_rounds
        self._num_in_a_row = 0

    def pause_s(self, episodes: Sequence[Episode], metrics: Sequence[Mapping[str, float]]) -> float:
        """Seconds to wait before the next round; `metrics` are those of all rounds so far, whose last batch was `episodes`. Raises
        NothingToLearn when the budget is spent: call this once the round is in the state."""
        if not metrics[-1].get(FRUITLESS):
            self._num_in_a_row = 0
            return 0.0
        self._num_in_a_row += 1
        index, is_barren = len(metrics), not num_fruitful(metrics)
        if self._num_in_a_row >= self._config.max_fruitless_rounds or (index == self._num_rounds and is_barren):
            raise NothingToLearn(self._report(episodes, index, is_barren=is_barren))
        return self._config.fruitless_pause_s * 2 ** (self._num_in_a_row - 1) if index < self._num_rounds else 0.0

    def _report(self, episodes: Sequence[Episode], index: int, *, is_barren: bool) -> str:
        errors = sorted({episode.error or str(episode.outcome) for episode in episodes if episode.outcome is not Outcome.SUCCESS})
        num_crashed = sum(episode.outcome is Outcome.CRASHED for episode in episodes)
        if index < self._num_rounds:
            then = f"it resumes with round {index + 1} and new episodes" + ("" if is_barren else ", with the weights learned so far")
        else:
            then = "it starts over, since nothing was learned" if is_barren else "it ends with the weights learned so far"
        return (
            f"{num_crashed} of {len(episodes)} episodes of round {index} crashed twice, so too few are left to learn from "
            f"({self._num_in_a_row} such rounds in a row; {'; '.join(errors[:NUM_REPORTED])}). Fix the sandbox and start the run again: "
            f"{then}"
        )
