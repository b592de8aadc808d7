"""How much of what was evaluated is new to the policy: instances whose first screen, and instances whose instruction, no episode that was
played to learn from had (learned_contents.py). Which instances are kept out of training is sandbox/tasks/reserved.py's.

That a first screen makes an instance is what its source says (`tasks.is_known_by_first_screen`). Instances of others differ deeper, in
files, pages and what a game does next; their splits are disjoint by that content, so that all evaluated instances are new.

A first screen is known by `episodes.content_id`. Homes of before that column are read by the stored text of the first step instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from warehouse.evaluation.evaluations import REPORTED_SPLIT, evaluations
from warehouse.evaluation.learned_contents import EPISODES, EPISODES_AND_TEXT, FIRST_SCREENS, Hashes, learned_contents
from warehouse.evaluation.statistics import TaskCount
from warehouse.storage.files.table_files import Listing
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

_SEEN = """
create temp table seen as
select e.policy_id, e.task_id, e.task_name, e.seed, e.outcome, screen, asked, coalesce(t.is_screen, true) as is_screen
from ({episodes}) e left join known_tasks t using (task_id)
where e.iteration = $iteration and e.outcome <> 'crashed' and e.purpose = 'evaluation' and e.split = $split
"""
_NOVEL = """
create temp table novel as
select distinct task_id, task_name, seed,
    not is_screen or screen is null or md5_number_lower(screen) not in (select hash from learned_screens) as is_novel,
    md5_number_lower(asked) not in (select hash from learned_instructions) as is_new_instruction
from seen
"""
_TASKS = """
select task_name, count(*), count(*) filter (is_novel), count(*) filter (is_new_instruction) from novel
group by task_name order by task_name
"""
_COUNTS = """
select v.checkpoint_role, s.task_name, count(*) filter (s.outcome = 'success'), count(*)
from seen s join novel n using (task_id, seed)
join (select distinct checkpoint_id, checkpoint_role, task_id from evaluations where iteration = $iteration and split = $split) v
    on v.checkpoint_id = s.policy_id and v.task_id = s.task_id
where n.is_novel group by all order by all
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNovelty:
    """Of one task's instances that an iteration evaluated."""

    task: str
    num_instances: int
    num_novel: int
    """Whose first screen was not learned from."""
    num_new_instruction: int
    """Whose instruction was not learned from: what is left is the same words before another page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Novelty:
    """Of one iteration and split."""

    iteration: str
    split: str
    tasks: tuple[TaskNovelty, ...]

    @property
    def num_instances(self) -> int:
        return sum(task.num_instances for task in self.tasks)

    @property
    def num_novel(self) -> int:
        return sum(task.num_novel for task in self.tasks)

    @property
    def num_new_instruction(self) -> int:
        return sum(task.num_new_instruction for task in self.tasks)

    @property
    def summary(self) -> str:
        """A sentence for people."""
        novel, new = _share(self.num_novel, self.num_instances), _share(self.num_new_instruction, self.num_instances)
        return (
            f"of {self.num_instances} {self.split} instances of {len(self.tasks)} tasks {novel} are novel: no first screen like theirs was "
            f"learned from; {new} have an instruction that was not learned from"
        )

    @property
    def table(self) -> str:
        """A row a task, as Markdown."""
        rows = [f"| {each.task} | {each.num_instances} | {each.num_novel} | {each.num_new_instruction} |" for each in self.tasks]
        return "\n".join(["| task | instances | novel | of new instruction |", "|---|---|---|---|", *rows])


def novelty(warehouse: Warehouse, iteration: str, split: str = REPORTED_SPLIT, listing: Listing | None = None) -> Novelty | None:
    """Against every episode that was played to learn from up to that iteration; None where nothing was evaluated, or none of its episodes
    was kept. `listing`: of `episodes` at least, where the caller has one."""
    with _look(warehouse, iteration, split, listing) as con:
        tasks = tuple(
            TaskNovelty(task=task, num_instances=num, num_novel=novel, num_new_instruction=new)
            for task, num, novel, new in con.execute(_TASKS).fetchall()
        )
    return Novelty(iteration=iteration, split=split, tasks=tasks) if tasks else None


def novel_counts(
    warehouse: Warehouse, iteration: str, split: str = REPORTED_SPLIT, listing: Listing | None = None
) -> dict[str, list[TaskCount]]:
    """What each policy of an iteration solved of its novel instances, by role."""
    found: dict[str, list[TaskCount]] = defaultdict(list)
    with _look(warehouse, iteration, split, listing) as con:
        for role, task, solved, num in con.execute(_COUNTS, {"iteration": iteration, "split": split}).fetchall():
            found[role].append(TaskCount(task=task, num_success=solved, num_episodes=num))
    return dict(found)


def reported_counts(warehouse: Warehouse) -> Iterator[tuple[str, str, TaskCount]]:
    """Iteration, role and what was solved of each task, of everything that was reported: of novel instances only, and of all where the
    episodes were not kept."""
    with connect(warehouse, tables=["evaluations"], natively=True) as con:
        every = evaluations(con, split=REPORTED_SPLIT)
    for iteration in dict.fromkeys(one.iteration for one in every):
        novel = novel_counts(warehouse, iteration)
        for one in (each for each in every if each.iteration == iteration):
            for count in novel.get(one.role, one.tasks) if novel else one.tasks:
                yield iteration, one.role, count


@contextmanager
def _look(warehouse: Warehouse, iteration: str, split: str, listing: Listing | None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with what that iteration evaluated, and which of it is novel. Of earlier iterations it reads the notes alone."""
    learned = learned_contents(warehouse, iteration, listing)
    with connect(warehouse, tables=["tasks"], natively=True) as con:
        tasks = con.sql("select task_id, bool_or(is_known_by_first_screen) as is_screen from tasks group by task_id").to_arrow_table()
    tables = ("evaluations", *(EPISODES_AND_TEXT if learned.by_text else EPISODES))
    with connect(warehouse, tables=tables, iterations=[iteration], natively=True) as con:
        con.register("known_tasks", tasks)
        for name in ("screens", "instructions"):
            con.register(f"learned_{name}", pa.table({"hash": _arrow(getattr(learned, name))}))
        con.execute(_SEEN.format(episodes=FIRST_SCREENS[learned.by_text]), {"iteration": iteration, "split": split})
        con.execute(_NOVEL)
        yield con


def _arrow(hashes: Hashes) -> pa.Array:
    """The same numbers, by their memory: `pa.array` imports pandas to see whether it was given some of it."""
    return pa.Array.from_buffers(pa.uint64(), len(hashes), [None, pa.py_buffer(np.ascontiguousarray(hashes))])


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else "none"
