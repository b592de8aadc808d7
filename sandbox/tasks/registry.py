"""Which task sources there are, by name: SOURCES. How one is registered is warehouse/core/plugins.py; docs/page-tasks.md has one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sandbox.tasks.task_source import TaskSource
from warehouse.core.plugins import Plugins

TASK_FILES = (".yaml", ".yml")


def _of_path(reference: str) -> TaskSource | None:
    """The source of a file of tasks in web pages, or of a folder of Harbor's tasks."""
    try:
        is_path = bool(reference) and (reference.endswith(TASK_FILES) or Path(reference).is_dir())
    except OSError:  # a name that no file can have
        is_path = False
    return _of_task_file(reference) if is_path else None


@cache
def _of_task_file(reference: str) -> TaskSource:
    from sandbox.adapters.harbor_source import harbor_source
    from sandbox.adapters.web_page_file import source_of_file

    path = Path(reference)
    return harbor_source(path.name, path) if path.is_dir() else source_of_file(path)


SOURCES: Plugins[TaskSource] = Plugins(
    "task_sources",
    noun="task source",
    example="press.py:SOURCE",
    taken_as=_of_path,
    is_one=lambda found: isinstance(found, TaskSource),
    expected="a TaskSource (sandbox/tasks/task_source.py), e.g. `SOURCE = TaskSource(name=…, kind='page', load_tasks=…, page=…)`",
)
