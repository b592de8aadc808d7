"""The source "imported": tasks of the task sets in FLYWHEEL_HOME, each set a group of its own (`imported:NAME`).

A task of a set is called `NAME:task`. It has one instance (or rows of parameters, of which the seed draws one), so it is the whole task
that falls into a split: `held_out` where any set says so (holdouts.py), else by the hash of what it asks. A MiniWoB list gives tasks of the
source miniwob.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

from sandbox.tasks.imported.holdouts import Holdouts
from sandbox.tasks.imported.rules import faults
from sandbox.tasks.imported.spec import ImportedTask, TaskSpec, fill
from sandbox.tasks.imported.store import TaskSet, read_set, set_names
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Split, Task
from sandbox.tasks.task_source import SessionKind, TaskSource
from warehouse.core.errors import ConfigError, TaskError
from warehouse.core.home import Home
from warehouse.core.identity import stable_seed
from warehouse.datasets.provenance import UNKNOWN, Source

SOURCE = "imported"
VERSION = "2"
"""Of how goals are checked and steps of a setup are carried out."""


def load_tasks(group: str | None = None) -> dict[str, Task]:
    """The tasks of a set that run here, by name; None means all of every set. Raises ConfigError for a set that is not there, or of which
    nothing runs."""
    if group is None:
        holdouts = Holdouts.read()
        return {name: task for each in set_names() for name, task in _runnable(read_set(each), holdouts).items()}
    found = _runnable(read_set(group), Holdouts.read())
    if not found:
        task_set = read_set(group)
        reasons = Counter(reason for task in task_set.tasks.values() for reason in task.not_runnable)
        listed = "; ".join(f"{reason} ({num})" for reason, num in reasons.most_common(3))
        raise ConfigError(
            f"none of the {len(task_set.tasks)} tasks of the set {group!r} runs here: {listed}. See `flywheel import sets {group}`"
        )
    return found


def _runnable(task_set: TaskSet, holdouts: Holdouts) -> dict[str, Task]:
    tasks = [task_of(task_set, imported, holdouts) for imported in task_set.tasks.values() if imported.is_runnable]
    return {task.name: task for task in tasks}


def task_of(task_set: TaskSet, imported: ImportedTask, holdouts: Holdouts) -> Task:
    """Raises ConfigError for a page that its source does not have."""
    spec = imported.spec
    if spec.kind == "page":
        return page_of(spec)
    return Task(
        source=SOURCE,
        name=f"{task_set.name}:{spec.name}",
        domain=spec.domain or spec.kind,
        max_steps=spec.steps,
        held_out=imported.held_out or holdouts.holder(spec) is not None,
        version=spec.spec_id,
    )


def page_of(spec: TaskSpec) -> Task:
    """The task of an installed source of pages that a page task names."""
    source, _, name = (spec.page or "").partition("/")
    if source not in SOURCES or SOURCES[source].page is None or name not in (tasks := SOURCES[source].load_tasks()):
        raise ConfigError(f"the page task {spec.name!r} names {spec.page!r}, which is not a task of an installed source of pages")
    return tasks[name]


def kind_of(task: Task) -> SessionKind:
    """Which kind of session a task needs. Raises TaskError."""
    return find(task)[1].spec.kind


def find(task: Task) -> tuple[TaskSet, ImportedTask]:
    """The set and the stored task. Raises TaskError for a task that is not there, or has changed since."""
    name, _, rest = task.name.partition(":")
    if task.source != SOURCE:
        raise TaskError(f"task {task.source}/{task.name} is not of the source {SOURCE!r}")
    try:
        task_set = read_set(name)
    except ConfigError as error:
        raise TaskError(f"task {task.name!r} cannot be run: {error}") from error
    imported = task_set.tasks.get(rest)
    if imported is None or imported.spec.spec_id != task.version:
        what = "is not in" if imported is None else "was imported again and is another task now in"
        raise TaskError(f"task {task.name!r} {what} the task set {name!r}: list the tasks of `imported:{name}` again")
    return task_set, imported


def instance_spec(task: Task, seed: int) -> tuple[TaskSet, TaskSpec]:
    """The task with the parameters of its seed filled in. Raises TaskError for a task that does not run here, and for one that was imported
    before its goals were looked at and would always hold, or never."""
    task_set, imported = find(task)
    if not imported.is_runnable:
        raise TaskError(f"task {task.name!r} does not run here: {'; '.join(imported.not_runnable)}")
    spec = filled(imported.spec, seed, f"{task_set.name}:{imported.spec.name}")
    if found := [fault for goal in spec.goals for fault in faults(goal)]:
        raise TaskError(f"task {task.name!r} has a goal that cannot be checked: {found[0]}. Fix its record and import it again")
    return task_set, spec


def filled(spec: TaskSpec, seed: int, name: str) -> TaskSpec:
    """Without parameters the task itself. Only {name} of a parameter is replaced: other braces stay as they are."""
    if not spec.params:
        return spec
    row = Random(stable_seed(SOURCE, name, seed)).choice(spec.params)
    return TaskSpec.model_validate(fill(spec.model_dump(mode="json", exclude={"params"}), row))


def description(task: Task) -> str:
    """Of a task that is never looked at, nothing."""
    return instance_spec(task, 0)[1].instruction if task.split(0) in (Split.TRAIN, Split.EVAL) else ""


def _instance(task: Task, seed: int) -> Any:
    """What sets sessions up is imported with the first one."""
    from sandbox.tasks.imported.sessions import instance_of

    task_set, spec = instance_spec(task, seed)
    return instance_of(task, spec, task_set.asset)


def provenance(home: Home | None = None) -> Iterator[Source]:
    """Of each set what was said when it was imported; nothing of one that cannot be read."""
    for name in set_names(home):
        try:
            manifest = read_set(name, home).manifest
        except ConfigError:
            continue
        said = manifest.get("licence", {})
        yield Source(
            source=f"{SOURCE}:{name}",
            kind="tasks",
            licence=said.get("licence", UNKNOWN),
            origin=said.get("origin", f"tasks of the format {manifest.get('format', UNKNOWN)}"),
            stated_by=said.get("stated_by", ""),
        )


TASK_SOURCE = TaskSource(
    name=SOURCE,
    kind=kind_of,
    provenance=provenance,
    load_tasks=load_tasks,
    instance=_instance,
    environment=f"imported tasks {VERSION}",
    description=description,
    has_one_instance=True,
    has_oracle=lambda task: bool(find(task)[1].spec.oracle),
)
