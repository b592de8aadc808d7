"""Greedy success as it was measured: what each evaluated policy solved of a split, task by task, read from `evaluations`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import duckdb

from warehouse.core import stages
from warehouse.evaluation.statistics import Estimate, TaskCount, macro_average

REPORTED_SPLIT = "holdout"
"""What every figure for people is from: nothing ever chooses by it."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One policy of one iteration on one split. `counts` are its tasks by domain, both in alphabetical order."""

    iteration: str
    role: str
    split: str
    checkpoint_id: str
    counts: Mapping[str, tuple[TaskCount, ...]]

    @property
    def tasks(self) -> tuple[TaskCount, ...]:
        return tuple(count for of in self.counts.values() for count in of)

    @cached_property
    def success(self) -> Estimate:
        """Averaged over all its tasks."""
        return macro_average(self.tasks)


_COUNTS = """
select iteration, checkpoint_role, split, checkpoint_id, domain, task_name, sum(num_success)::bigint, sum(num_episodes)::bigint
from evaluations where num_episodes > 0 and ($iteration is null or iteration = $iteration) and ($split is null or split = $split)
group by all order by all
"""


def evaluations(con: duckdb.DuckDBPyConnection, *, iteration: str | None = None, split: str | None = None) -> list[Evaluation]:
    """Every policy that was evaluated, of one iteration and split or of all, in the order in which iterations make them. Tasks of which no
    episode counts are left out, and so is a policy without any other."""
    found: dict[tuple[str, str, str, str], dict[str, list[TaskCount]]] = defaultdict(lambda: defaultdict(list))
    for *key, domain, task, solved, num in con.execute(_COUNTS, {"iteration": iteration, "split": split}).fetchall():
        found[key[0], key[1], key[2], key[3]][domain].append(TaskCount(task=task, num_success=solved, num_episodes=num))
    made = [
        Evaluation(iteration=of, role=role, split=on, checkpoint_id=checkpoint_id, counts={name: tuple(n) for name, n in counts.items()})
        for (of, role, on, checkpoint_id), counts in found.items()
    ]
    return sorted(made, key=lambda one: (one.iteration, stages.rank(one.role), one.split))


def success_by_domain(con: duckdb.DuckDBPyConnection, iteration: str, split: str = REPORTED_SPLIT) -> dict[tuple[str, str], Estimate]:
    """(policy's role, domain) → success of an iteration's policies, SFT, specialists, joint ones and the merge, in their order."""
    return {
        (one.role, domain): macro_average(counts)
        for one in evaluations(con, iteration=iteration, split=split)
        for domain, counts in one.counts.items()
    }
