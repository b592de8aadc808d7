"""Whose tasks a desktop session runs: by `Task.source`, a function for a task's entry and one for its instance. A literal table; sources
are imported when first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from sandbox.desktop.instance import Instance
from sandbox.tasks.desktop.source import TaskEntry
from sandbox.tasks.task import Task
from warehouse.core.errors import TaskError

MAKERS: Mapping[str, tuple[str, str, str]] = {
    "desktop": ("sandbox.tasks.desktop.source", "entry", "make_instance"),
    "imported": ("sandbox.tasks.imported.sessions", "desktop_entry", "desktop_task"),
}
"""Module, function of a task, function of a task and a seed."""


def entry(task: Task) -> TaskEntry:
    """Raises TaskError for a task that is of none of these sources."""
    module, name, _ = _maker(task)
    return cast(TaskEntry, getattr(import_module(module), name)(task))


def make_instance(task: Task, seed: int) -> Instance:
    """The same for the same task and seed, everywhere. Raises TaskError for a task that is of none of these sources."""
    module, _, name = _maker(task)
    return cast(Instance, getattr(import_module(module), name)(task, seed))


def _maker(task: Task) -> tuple[str, str, str]:
    if task.source not in MAKERS:
        raise TaskError(f"A desktop cannot run task {task.source}/{task.name}: it has the sources {', '.join(MAKERS)}.")
    return MAKERS[task.source]
