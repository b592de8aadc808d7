"""The instance of a seed, of the families in tasks.yaml."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache

from sandbox.tasks.task import Split, Task
from sandbox.tasks.task_file import TaskFile, read_task_file
from sandbox.tasks.web_apps.compose import instances
from sandbox.tasks.web_apps.drafts import Family
from sandbox.tasks.web_apps.tasks import WebInstance
from warehouse.core.errors import TaskError
from warehouse.core.identity import stable_seed

SOURCE = "web"
VERSION = "1"
"""Of data, instances and verifiers: a change of any is another version."""
MAX_RANKED_SEED = 4_000
"""Seeds up to this one take the instances in turn; larger ones draw."""


@cache
def task_file() -> TaskFile[Family]:
    """Raises ConfigError where it is malformed, or a group names a task that is not there."""
    return read_task_file("sandbox.tasks.web_apps", TaskFile[Family])


@cache
def _ranked(task: Task) -> dict[Split, list[int]]:
    """Seeds of each split, in order."""
    found: dict[Split, list[int]] = {split: [] for split in Split}
    split_of = task.split_of_seeds()
    for seed in range(MAX_RANKED_SEED):
        found[split_of(seed)].append(seed)
    return found


def web_instance(task: Task, seed: int) -> WebInstance:
    """The instance of a seed: the seeds of a split take the split's instances in turn. Raises TaskError for a task that is not this
    source's, ConfigError where a map does not fit."""
    if task.source != SOURCE or task.name not in task_file().tasks:
        raise TaskError(f"A web session cannot run task {task.source}/{task.name}: its tasks are {', '.join(task_file().tasks)}.")
    split = task.split(seed)
    found = instances(task.name, task_file().tasks[task.name], split)
    if 0 <= seed < MAX_RANKED_SEED:
        return found[bisect_left(_ranked(task)[split], seed) % len(found)]
    return found[stable_seed(SOURCE, task.name, seed) % len(found)]
