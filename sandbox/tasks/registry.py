"""Which task sources there are, by name: SOURCES. How one is registered is warehouse/core/plugins.py; docs/page-tasks.md has one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sandbox.tasks.task_source import TaskSource
from warehouse.core.plugins import Plugins, attribute_of

TASK_FILES = (".yaml", ".yml")
READ_FOLDER = "flywheel.sandbox.adapters.harbor_source:harbor_source"
READ_FILE = "flywheel.sandbox.adapters.web_page_file:source_of_file"
"""By name, as every plug-in: a task looks up its source here, so nothing that has tasks is imported here."""


def _of_path(reference: str) -> TaskSource | None:
    """The source of a file of tasks in web pages, or of a folder of Harbor's tasks."""
    try:
        is_path = bool(reference) and (reference.endswith(TASK_FILES) or Path(reference).is_dir())
    except OSError:  # a name that no file can have
        is_path = False
    return _of_task_file(reference) if is_path else None


@cache
def _of_task_file(reference: str) -> TaskSource:
    path = Path(reference)
    read = attribute_of(READ_FOLDER if path.is_dir() else READ_FILE, "reader of task files", "module:function", callable)
    source: TaskSource = read(path.name, path) if path.is_dir() else read(path)
    return source


SOURCES: Plugins[TaskSource] = Plugins(
    "task_sources",
    noun="task source",
    example="press.py:SOURCE",
    taken_as=_of_path,
    is_one=lambda found: isinstance(found, TaskSource),
    expected="a TaskSource (sandbox/tasks/task_source.py), e.g. `SOURCE = TaskSource(name=…, kind='page', load_tasks=…, page=…)`",
)
