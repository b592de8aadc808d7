"""How much of what was evaluated is new to the policy: instances whose first screen, and instances whose instruction, no episode that was
played to learn from had. Read from `episodes`; which instances are kept out of training is sandbox/reserved.py's.

A first screen is known by `episodes.content_id`. Homes of before that column are read by the stored text of the first step instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import duckdb

from warehouse.evaluations import REPORTED_SPLIT, evaluations
from warehouse.statistics import TaskCount

TABLES_READ = ("episodes", "evaluations", "steps", "tasks")
SCREEN_IS_CONTENT = ("miniwob",)
"""Sources whose instances are told apart by their first screens. What others ask lies deeper, in files, pages and what a game does next;
instances are kept apart by that, so that all that are evaluated are new."""

_SEEN = """
create or replace temp table seen as
with asked as (
    select e.episode_id, e.policy_id, e.task_id, e.task_name, e.seed, e.outcome, e.purpose = 'evaluation' as is_evaluated, e.content_id,
        coalesce(e.instruction, '') as instruction, coalesce(list_contains({screen_sources}, t.source), true) as is_screen
    from episodes e left join (select task_id, any_value(source) as source from tasks group by task_id) t using (task_id)
    where e.iteration <= $iteration and e.outcome <> 'crashed'
        and case when e.purpose = 'evaluation' then e.iteration = $iteration and e.split = $split else e.split = 'train' end
)
{screens}
"""
_BY_CONTENT = "select *, content_id as screen from asked"
_BY_TEXT = """, first_steps as (
    select episode_id, any_value(observation) as observation from steps
    where step_index = 0 and iteration <= $iteration group by episode_id)
select asked.*, asked.instruction || chr(10) || f.observation as screen from asked left join first_steps f using (episode_id)
"""
_NOVEL = """
create or replace temp table novel as
select distinct task_id, task_name, seed,
    not is_screen or screen is null or screen not in (select screen from seen where not is_evaluated and screen is not null) as is_novel,
    instruction not in (select instruction from seen where not is_evaluated) as is_new_instruction
from seen where is_evaluated
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
where s.is_evaluated and n.is_novel group by all order by all
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
    def told(self) -> str:
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


def novelty(con: duckdb.DuckDBPyConnection, iteration: str, split: str = REPORTED_SPLIT) -> Novelty | None:
    """Against every episode that was played to learn from up to that iteration; None where nothing was evaluated, or none of its episodes
    was kept."""
    _look(con, iteration, split)
    tasks = tuple(
        TaskNovelty(task=task, num_instances=num, num_novel=novel, num_new_instruction=new)
        for task, num, novel, new in con.execute(_TASKS).fetchall()
    )
    return Novelty(iteration=iteration, split=split, tasks=tasks) if tasks else None


def novel_counts(con: duckdb.DuckDBPyConnection, iteration: str, split: str = REPORTED_SPLIT) -> dict[str, list[TaskCount]]:
    """What each policy of an iteration solved of its novel instances, by role."""
    _look(con, iteration, split)
    found: dict[str, list[TaskCount]] = defaultdict(list)
    for role, task, solved, num in con.execute(_COUNTS, {"iteration": iteration, "split": split}).fetchall():
        found[role].append(TaskCount(task=task, num_success=solved, num_episodes=num))
    return dict(found)


def reported_counts(con: duckdb.DuckDBPyConnection) -> Iterator[tuple[str, str, TaskCount]]:
    """Iteration, role and what was solved of each task, of everything that was reported: of novel instances only, and of all where the
    episodes were not kept."""
    every = evaluations(con, split=REPORTED_SPLIT)
    for iteration in dict.fromkeys(one.iteration for one in every):
        novel = novel_counts(con, iteration)
        for one in (each for each in every if each.iteration == iteration):
            for count in novel.get(one.role, one.tasks) if novel else one.tasks:
                yield iteration, one.role, count


def _look(con: duckdb.DuckDBPyConnection, iteration: str, split: str) -> None:
    unknown = "select count(*) from episodes where iteration <= ? and content_id is null and num_steps > 0 and outcome <> 'crashed'"
    (num,) = con.execute(f"{unknown} and not (purpose <> 'evaluation' and policy_id = 'human')", [iteration]).fetchall()[0]
    query = _SEEN.format(screen_sources=list(SCREEN_IS_CONTENT), screens=_BY_TEXT if num else _BY_CONTENT)
    con.execute(query, {"iteration": iteration, "split": split})
    con.execute(_NOVEL)


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else "none"
