"""The task sources that live in web pages, by `Task.source`: the one place where browser sessions and sources meet."""

from __future__ import annotations

from sandbox.miniwob.source import MiniWobSource
from sandbox.page_task import PageTasks


def page_tasks() -> PageTasks:
    """Every source that a browser session can run."""
    return {"miniwob": MiniWobSource()}
