"""Which instances a campaign asks for: the tasks that it selects, more of those that the policy is weak at, in train seeds of its own.

Seeds are far beyond those that iterations use (assets/tasks/instances.py), so that what people annotate is never what a stage collects or
evaluates on; of sources that know an instance's content, none whose content is evaluated on.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count

from annotation.service.campaigns.task_priorities import TaskPriorities
from annotation.storage.run_status import VOID
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import all_tasks, tasks_of
from sandbox.tasks.task import Split, Task, has_one_instance
from warehouse.core.errors import ConfigError, TaskError
from warehouse.core.identity import stable_fraction

TASK_POOL = "pool"
FIRST_SEED = 1_000_000_000
LEAST_WEIGHT = 0.05
"""What the policy always solves is asked for now and then all the same: it may have forgotten it."""
MOST_SEEDS_TRIED = 2_000
"""In a row that a generated source has no new instance for."""


def selected_tasks(selections: Sequence[str], priorities: TaskPriorities) -> dict[str, Task]:
    """By task id, what may be trained on of the selections, each looked up now. Raises ConfigError where one selects nothing."""
    found: dict[str, Task] = {}
    for selection in selections:
        tasks = _selected(selection, priorities)
        found |= {task.task_id: task for task in tasks if not task.held_out}
    return found


def check_selections(selections: Sequence[str], priorities: TaskPriorities) -> int:
    """How many tasks they select. Raises ConfigError for a wrong one, and where nothing may be trained on."""
    if not selections:
        raise ConfigError("a campaign selects at least one source or task, e.g. miniwob:quickstart")
    num = len(selected_tasks(selections, priorities))
    if not num and TASK_POOL not in selections:
        raise ConfigError(f"{', '.join(selections)[:200]} selects held-out tasks only, which nobody may train on: select others")
    return num


def _selected(selection: str, priorities: TaskPriorities) -> Sequence[Task]:
    if selection == TASK_POOL:
        return [task for task in all_tasks() if task.task_id in priorities.task_pool]
    source, slash, name = selection.partition("/")
    if not slash:
        return tasks_of(selection)
    named = [task for task in tasks_of(source) if task.name == name] if source in SOURCES else []
    if not named:
        raise ConfigError(
            f"{selection[:120]!r} is not a task: write source/name, e.g. miniwob/click-link. Sources are {', '.join(SOURCES)}."
        )
    return named


def next_instances(
    tasks: Mapping[str, Task], priorities: TaskPriorities, asked: Mapping[tuple[str, int], str], num: int
) -> list[tuple[Task, int]]:
    """`num` instances that were never asked for (fewer where there are no more), so that the counts of all that is asked for are nearest
    to the tasks' weakness: each goes to the task that has the least beside its weight (D'Hondt). `asked`: states by (task id, seed); what
    was given up, or came to nothing, supplies nothing."""
    counts, used = dict.fromkeys(tasks, 0), {task_id: set[int]() for task_id in tasks}
    for (task_id, seed), state in asked.items():
        if task_id in counts:
            counts[task_id] += state not in ("cancelled", VOID)
            used[task_id].add(seed)
    weights = {task_id: max(priorities.of(task_id), LEAST_WEIGHT) for task_id in tasks}
    heap = [((counts[task_id] + 1) / weights[task_id], stable_fraction(task_id), task_id) for task_id in tasks]
    heapq.heapify(heap)
    seeds = {task_id: fresh_seeds(task, priorities, used[task_id]) for task_id, task in tasks.items()}
    chosen: list[tuple[Task, int]] = []
    while heap and len(chosen) < num:
        _, tie, task_id = heap[0]
        fresh = next(seeds[task_id], None)
        if fresh is None:
            heapq.heappop(heap)
            continue
        chosen.append((tasks[task_id], fresh))
        counts[task_id] += 1
        heapq.heapreplace(heap, ((counts[task_id] + 1) / weights[task_id], tie, task_id))
    return chosen


def fresh_seeds(task: Task, priorities: TaskPriorities, asked: Collection[int]) -> Iterator[int]:
    """Train seeds of a task in which nothing was asked yet, in order."""
    if has_one_instance(task):
        yield from (seed for seed in task.seeds(Split.TRAIN, 1) if seed not in asked)
        return
    facts, num_refused = SOURCES[task.source].facts, 0
    for seed in count(max(asked, default=FIRST_SEED - 1) + 1):
        if task.split(seed) is not Split.TRAIN:
            continue
        try:
            known = facts(task, seed)
        except TaskError:  # the source has no instance for the seed
            known = None
            num_refused += 1
        else:
            if known is None or known.content_id not in priorities.closed:
                num_refused = 0
                yield seed
                continue
            num_refused += 1
        if num_refused >= MOST_SEEDS_TRIED:
            return
