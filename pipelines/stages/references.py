"""The reference that an LLM judge gets for stored episodes: what the source of the task says of the instance (sandbox/tasks/supply.py),
whichever split it is of, else the rubric of the domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import duckdb

from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Task
from warehouse.core.errors import ConfigError, SandboxError, TaskError

_TASKS = "select distinct task_id, source, name, domain, max_steps, held_out, version from tasks where list_contains(?, task_id)"


def references(
    con: duckdb.DuckDBPyConnection, episodes: Iterable[Mapping[str, Any]], rubrics: Mapping[str, str]
) -> tuple[dict[str, str], Counter[str]]:
    """Episode id -> reference, of rows of `episodes`; and of how many instances the source has none, by its message. A source that
    has changed since an episode was played, or whose data is not on this machine, gives none."""
    rows = list(episodes)
    tasks = _tasks(con, sorted({row["task_id"] for row in rows}))
    known: dict[tuple[str, int], str | None] = {}
    untold: Counter[str] = Counter()
    for task_id, seed in sorted({(row["task_id"], row["seed"]) for row in rows}):
        if task_id not in tasks:
            continue
        try:
            facts = SOURCES[tasks[task_id].source].facts(tasks[task_id], seed)
        except (TaskError, SandboxError, ConfigError) as error:
            untold[str(error)] += 1
            continue
        known[task_id, seed] = None if facts is None else facts.reference
    found = {row["episode_id"]: known.get((row["task_id"], row["seed"])) or rubrics.get(row["domain"]) for row in rows}
    return {episode_id: text for episode_id, text in found.items() if text}, untold


def _tasks(con: duckdb.DuckDBPyConnection, ids: list[str]) -> dict[str, Task]:
    """Of these tasks those that are as they were stored and of a known source."""
    found = con.sql(_TASKS, params=[ids]).to_arrow_table().to_pylist()
    tasks = {row.pop("task_id"): Task.model_validate(row) for row in found}
    return {task_id: task for task_id, task in tasks.items() if task.task_id == task_id and task.source in SOURCES}
