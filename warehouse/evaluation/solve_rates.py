"""What a policy solves of each task family, as far as it is known: counts of earlier iterations, and how likely the rate lies between two
bounds. Which tasks are chosen by it is assets/tasks/choice.py's business.

Only what choices may read: rollouts, which are on training instances, and evaluations on the `eval` split of the policies that were
released, for those collect: a candidate that lost to the release before it says nothing of who plays on.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np

GRID = 4001
"""Points between 0 and 1 on which a posterior is summed; its error is far below a percent of a percent for counts up to ten thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """Of one task. `weight_success` of `weight` are the counts with older ones counting less."""

    num_success: int
    num_episodes: int
    weight_success: float
    weight: float

    @property
    def mean(self) -> float:
        """Of the posterior, from a uniform prior."""
        return (self.weight_success + 1) / (self.weight + 2)

    def likelihood_between(self, low: float, high: float) -> float:
        """How likely the solve rate lies in [low, high]."""
        return posterior_mass(self.weight_success, self.weight, low, high)


_COUNTS = """
with seen as (
    select iteration, task_id, num_success as solved, num_episodes as played
    from evaluations e semi join (select iteration, checkpoint_id from checkpoints where stage = 'released_policy')
        using (iteration, checkpoint_id)
    where split = 'eval' and checkpoint_role = 'merged_policy' and iteration < $iteration
    union all
    select iteration, task_id, count(*) filter (where outcome = 'success'), count(*) from episodes
    where purpose = 'rollout' and outcome <> 'crashed' and iteration < $iteration group by iteration, task_id
), aged as (select *, pow($kept, $iteration::int - 1 - iteration::int) as share from seen)
select task_id, sum(solved)::bigint, sum(played)::bigint, sum(solved * share)::double, sum(played * share)::double
from aged group by task_id having sum(played) > 0 order by task_id
"""


def solve_rates(con: duckdb.DuckDBPyConnection, iteration: str, kept: float) -> dict[str, Solved]:
    """By task id, what was played before this iteration. `kept`: what an episode counts one iteration later, in [0, 1]."""
    rows = con.execute(_COUNTS, {"iteration": iteration, "kept": kept}).fetchall()
    return {
        task_id: Solved(num_success=solved, num_episodes=played, weight_success=weight_solved, weight=weight)
        for task_id, solved, played, weight_solved, weight in rows
    }


def posterior_mass(num_success: float, num_episodes: float, low: float, high: float) -> float:
    """The mass in [low, high] of the Beta posterior of a rate, from a uniform prior. Counts may be fractions. Raises ValueError for
    impossible counts."""
    if not 0 <= num_success <= num_episodes:
        raise ValueError(f"{num_success} successes of {num_episodes} episodes: successes must lie between 0 and the number of episodes")
    rate = (np.arange(GRID) + 0.5) / GRID
    log_density = num_success * np.log(rate) + (num_episodes - num_success) * np.log1p(-rate)
    density = np.exp(log_density - log_density.max())
    inside = (rate >= low) & (rate <= high)
    return float(density[inside].sum() / density.sum())
