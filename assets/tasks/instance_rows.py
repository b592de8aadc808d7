"""Rows of `task_instances`, and which instances a profile evaluates on: known before anything has run, so that the first snapshot and the
first verdicts can be held against them. Only of sources that describe their instances without being run; the others are known from the
first evaluation. Which instances a collection plays is pool.py's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from assets.settings.profile import Profile
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import reported_seeds, tasks_in
from sandbox.tasks.supply import Facts
from sandbox.tasks.task import Split, Task
from warehouse.core.identity import content_id

EVALUATED = "evaluated on"
"""Why such an instance is in the table."""


def evaluated_instances(settings: Profile) -> Iterator[dict[str, Any]]:
    """The first eval and holdout seeds of each task, as an evaluation takes them (pipelines/stages/evaluate.py)."""
    wanted = {Split.EVAL: settings.evaluation.eval_per_task, Split.HOLDOUT: settings.evaluation.holdout_per_task}
    for task in tasks_in(settings.tasks.lists).values():
        if task.domain not in settings.tasks.domains:
            continue
        for seed in (seed for split, num in wanted.items() for seed in reported_seeds(task, split, num)):
            facts = SOURCES[task.source].facts(task, seed)
            if facts is None:
                break
            yield instance_row(task, seed, facts, EVALUATED)


def instance_row(task: Task, seed: int, facts: Facts | None, why: str) -> dict[str, Any]:
    """A row of `task_instances`. Instances of a source that does not describe them differ by seed only."""
    return {
        "task_id": task.task_id,
        "seed": seed,
        "split": str(task.split(seed)),
        "content_id": content_id("instance", [task.task_id, seed]) if facts is None else facts.content_id,
        "instruction": None if facts is None else facts.instruction,
        "difficulty": None if facts is None else facts.difficulty,
        "provenance": json.dumps({"task": task.name} if facts is None else dict(facts.provenance), sort_keys=True),
        "why": why,
    }
