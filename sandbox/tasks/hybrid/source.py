"""The tasks of the source "hybrid": their list and limits (tasks.yaml), which function makes their instances, the families that are
composed (generated.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

from sandbox.hybrid.tasks import HybridFactory, HybridInstance
from sandbox.tasks.hybrid import kinds
from sandbox.tasks.hybrid.generated import FAMILIES, GROUPS, composed, composed_facts
from sandbox.tasks.reserved import unreserved
from sandbox.tasks.supply import Facts
from sandbox.tasks.task import Task, first_seed
from sandbox.tasks.task_file import TaskEntry, TaskFile, load_plain, read_task_file
from sandbox.tasks.task_source import TaskSource
from sandbox.terminal.tasks import seeded
from warehouse.core.errors import TaskError
from warehouse.core.identity import content_id

SOURCE = "hybrid"
DOMAIN = "hybrid"
VERSION = "1"
"""Of instances and verifiers: a change of either is another version."""

KINDS: Mapping[str, HybridFactory] = {
    "note-code": kinds.note_code,
    "type-word": kinds.type_word,
    "download-and-sum": kinds.download_and_sum,
    "upload-sorted": kinds.upload_sorted,
    "serve-and-press": kinds.serve_and_press,
    "return-edited": kinds.return_edited,
    "report-log": kinds.report_log,
    "exchange": kinds.exchange,
}


@cache
def task_file() -> TaskFile[TaskEntry]:
    return read_task_file("sandbox.tasks.hybrid", TaskFile[TaskEntry], KINDS)


def load_tasks(group: str | None = None) -> dict[str, Task]:
    """Tasks by name, in file order. Groups: `small`, `generated`, `generated-small`; `all`, the tasks of the file; None is these and the
    generated ones. Raises ConfigError for another."""
    return load_plain(task_file(), group, source=SOURCE, domain=DOMAIN, version=VERSION, families=FAMILIES, family_groups=GROUPS)


def facts(task: Task, seed: int) -> Facts | None:
    """Of a composed instance; None for a task of tasks.yaml. Raises TaskError for a task that is not this source's."""
    _check(task)
    return composed_facts(task, seed) if task.name in FAMILIES else None


def hybrid_instance(task: Task, seed: int) -> HybridInstance:
    """Raises TaskError for a task that is not this source's."""
    _check(task)
    if task.name in FAMILIES:
        return composed(task, seed)[0].instance
    return unreserved(task.source, task.name, seed, task.split(seed), partial(_drawn, task), _content_of)


def content(task: Task, seed: int) -> str:
    """Id of what a seed draws first, for the index of what is reserved."""
    return _content_of(_drawn(task, seed))


def _drawn(task: Task, seed: int) -> HybridInstance:
    return KINDS[task.name](seeded(task, seed))


def _content_of(made: HybridInstance) -> str:
    return content_id("content", [made.work.content, made.page])


def _check(task: Task) -> None:
    if task.source != SOURCE or (task.name not in KINDS and task.name not in FAMILIES):
        known = ", ".join([*KINDS, *FAMILIES])
        raise TaskError(f"A hybrid session cannot run task {task.source}/{task.name}: its tasks are {known}.")


TASK_SOURCE = TaskSource(
    name=SOURCE,
    kind="hybrid",
    load_tasks=load_tasks,
    instance=hybrid_instance,
    environment=f"hybrid tasks {VERSION}",
    facts=facts,
    description=lambda task: hybrid_instance(task, first_seed(task)).work.instruction,
    contents=Path(__file__).with_name("contents.json"),
    content=content,
    licence="Apache-2.0",
    origin="tasks of this project over browser, files and terminal, generated",
)
