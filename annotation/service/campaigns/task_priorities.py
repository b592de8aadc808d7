"""Which tasks people are asked for first: those that the policy is weak at, by the warehouse, which also has the newest task pool. Read
again when a table has a new version, so that a running server follows the iterations."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from warehouse.core.home import Home

KEPT = 0.5
"""What an episode of one iteration earlier counts: the newest policy is the one that is annotated."""
UNKNOWN = 0.5
"""Priority of a task that was never played: the mean of a uniform prior."""
TABLES = ("episodes", "evaluations", "task_instances")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPriorities:
    """By task id. `weakness`: 1 minus the share of its episodes that the policy solves, by its posterior mean."""

    weakness: Mapping[str, float] = field(default_factory=dict)
    task_pool: frozenset[str] = frozenset()
    """Tasks that the newest iteration's collection chose to play; empty where none chose."""
    closed: frozenset[str] = frozenset()
    """Contents of instances that are evaluated on: whatever their seed, nobody may learn from them."""

    def of(self, task_id: str) -> float:
        return self.weakness.get(task_id, UNKNOWN)


_TASK_POOL = """
select distinct task_id from task_instances where stage = 'task_pool'
and iteration = (select max(iteration) from task_instances where stage = 'task_pool')
"""


_NEWEST = "select max(iteration) from (select iteration from episodes union all select iteration from evaluations)"


class TaskPriorityReader:
    """Blocks: call it in a thread."""

    def __init__(self, home: Home | None) -> None:
        """None: nothing is known, e.g. on a machine without a warehouse."""
        self._home = home
        self._lock = threading.Lock()
        self._read_at: tuple[int, ...] | None = None
        self._priorities = TaskPriorities()

    def read(self) -> TaskPriorities:
        if self._home is None or not self._home.has_tables:
            return TaskPriorities()
        from warehouse.storage.tables import Warehouse

        with self._lock:
            warehouse = Warehouse(self._home)
            versions = tuple(warehouse.version(table) for table in TABLES)
            if versions != self._read_at:
                self._priorities, self._read_at = _read(self._home, dict(zip(TABLES, versions, strict=True))), versions
            return self._priorities


def _read(home: Home, versions: Mapping[str, int]) -> TaskPriorities:
    from warehouse.evaluation.solve_rates import solve_rates
    from warehouse.storage.sql.query import connect
    from warehouse.storage.tables import Warehouse

    there = {table: version for table, version in versions.items() if version >= 0}
    with connect(Warehouse(home), versions=there, threads=1) as con:
        ((newest,),) = con.execute(_NEWEST).fetchall()
        rates = {} if newest is None else solve_rates(con, f"{int(newest) + 1:04d}", KEPT)
        task_pool = frozenset(task_id for (task_id,) in con.execute(_TASK_POOL).fetchall())
        closed = frozenset(name for (name,) in con.execute("select content_id from task_instances where split <> 'train'").fetchall())
    return TaskPriorities(weakness={task_id: 1 - solved.mean for task_id, solved in rates.items()}, task_pool=task_pool, closed=closed)
