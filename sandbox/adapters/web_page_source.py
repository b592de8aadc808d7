"""Any web page or application as a task source, by its address and a function that says whether a task is done:

    SOURCE = web_page_source("notes", [WebPageTask(name="add", url="http://localhost:8000/", instruction="Add the note {text}.",
                                                   facts=draw, verifier=has_note, reset=empty, database=Path("notes.sqlite"))])

What runs the page is not ours: a session opens it in a browser of its own, which reaches this address and no other, and before that calls
`reset`. web_page_task.py says what a task has, web_page_session.py is the session, page_view.py what `verifier` looks at, web_page_file.py
the same in YAML.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sandbox.adapters.adapted_source import version_of
from sandbox.adapters.web_page_task import VERSION, PageInstance, Values, WebPageTask
from sandbox.tasks.supply import Facts, draw
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import ConfigError, TaskError
from warehouse.core.identity import canonical_json

if TYPE_CHECKING:
    from sandbox.adapters.web_page_session import WebPageSession
    from sandbox.browser.page_session import Limits, OpenPage


def web_page_source(name: str, tasks: Sequence[WebPageTask], *, edition: str = "1", **more: Any) -> TaskSource:
    """`edition`: part of the tasks' identity; goes up with what the functions do. `more`: other parts of the TaskSource, such as `licence`.
    Raises ConfigError for two tasks of one name, and where only some draw facts."""
    by_name = {each.name: each for each in tasks}
    if len(by_name) != len(tasks):
        raise ConfigError(f"The source {name!r} has two tasks of one name: {[each.name for each in tasks]}. Give them others.")
    draws = {each.facts is not None for each in tasks}
    if len(draws) > 1:
        without = [each.name for each in tasks if each.facts is None]
        raise ConfigError(
            f"Of the tasks of {name!r}, {without} draw no `facts` and the others do: those that "
            "are one instance each are a source of their own."
        )

    def load_tasks(group: str | None = None) -> dict[str, Task]:
        if group is not None:
            raise ConfigError(f"The source {name!r} has no task group {group!r}; it has no groups.")
        return {
            key: Task(source=name, name=key, domain=each.domain, max_steps=each.max_steps, version=_version(each, edition))
            for key, each in by_name.items()
        }

    def find(task: Task) -> WebPageTask:
        if task.source != name or task.name not in by_name:
            raise TaskError(f"Task {task.source}/{task.name} is none of the source {name!r}, which has {', '.join(by_name)}.")
        return by_name[task.name]

    def instance(task: Task, seed: int) -> PageInstance:
        found = find(task)
        if found.facts is None:
            return PageInstance(task=found, content={})
        drawing = found.facts
        return draw(task, seed, lambda dice: PageInstance(task=found, content=_drawn(found.name, drawing, dice)))[0]

    def facts(task: Task, seed: int) -> Facts:
        drawn = instance(task, seed)
        content = [drawn.task.instruction, dict(drawn.content)]
        return Facts(instruction=drawn.instruction, content=content, difficulty=0.5, provenance={"page": task.name})

    def open_session(open_page: OpenPage, limits: Limits) -> WebPageSession:
        from sandbox.adapters.web_page_session import WebPageSession

        return WebPageSession(open_page, instance, limits=limits)

    return TaskSource(
        name=name,
        kind="web",
        load_tasks=load_tasks,
        instance=instance,
        open_session=open_session,
        environment=f"web page {VERSION}",
        facts=facts,
        description=lambda task: " ".join(find(task).instruction.split()),
        has_oracle=lambda task: find(task).oracle is not None,
        has_one_instance=draws == {False},
        **more,
    )


def _drawn(name: str, drawing: Callable[[random.Random], Values], dice: random.Random) -> Values:
    """Raises TaskError where it is none that draws facts."""
    try:
        drawn = dict(drawing(dice))
        canonical_json(drawn)  # what an instance is known by
    except Exception as error:
        raise TaskError(
            f"`facts` of the task {name!r} failed: {type(error).__name__}: {error}. It has to return facts by name, as JSON: no infinity."
        ) from error
    return drawn


def _version(task: WebPageTask, edition: str) -> str:
    """No host: the same application runs at other addresses elsewhere."""
    parts = urlsplit(task.url)
    return version_of("web-page", VERSION, edition, task.instruction, f"{parts.path}?{parts.query}", task.size_px)
