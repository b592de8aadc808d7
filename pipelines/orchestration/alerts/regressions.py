"""Whether the policies get worse from iteration to iteration on the `eval` split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalDrop:
    """Success of the merged policy of an iteration, mean over tasks, and of the closed iteration before it."""

    iteration: str
    now: float
    before: float

    @property
    def drop(self) -> float:
        return self.before - self.now


def eval_drop(warehouse: Warehouse, closed: Sequence[str]) -> EvalDrop | None:
    """Of the newest two among the closed iterations; None where fewer are evaluated."""
    with connect(warehouse, tables=["evaluations"]) as con:
        rates = con.execute(
            """select iteration, avg(rate) from (
                 select iteration, task_id, sum(num_success) / nullif(sum(num_episodes), 0) as rate from evaluations
                 where split = 'eval' and checkpoint_role = 'merged_policy' and list_contains(?, iteration) group by all)
               group by iteration order by iteration""",
            [list(closed)],
        ).fetchall()
    return EvalDrop(iteration=rates[-1][0], now=rates[-1][1], before=rates[-2][1]) if len(rates) > 1 else None
