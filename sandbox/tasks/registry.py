"""Which task sources there are, by name: SOURCES. How one is registered is warehouse/core/plugins.py; docs/page-tasks.md has one."""

from __future__ import annotations

from sandbox.tasks.task_source import TaskSource
from warehouse.core.plugins import Plugins

SOURCES: Plugins[TaskSource] = Plugins(
    "task_sources",
    noun="task source",
    example="press.py:SOURCE",
    is_one=lambda found: isinstance(found, TaskSource),
    expected="a TaskSource (sandbox/tasks/task_source.py), e.g. `SOURCE = TaskSource(name=…, kind='page', load_tasks=…, page=…)`",
)
