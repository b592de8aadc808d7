"""The source "web": its tasks are families over what the applications' maps have (tasks.yaml)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sandbox.tasks.supply import Facts
from sandbox.tasks.task import Task, first_seed
from sandbox.tasks.task_source import TaskSource
from sandbox.tasks.web_apps.seeds import SOURCE, VERSION, task_file, web_instance
from sandbox.tasks.web_apps.tasks import reference_of
from warehouse.core.errors import ConfigError

if TYPE_CHECKING:
    from sandbox.browser.page_session import Limits, OpenPage
    from sandbox.tasks.web_apps.session import WebAppSession
    from warehouse.core.checks import Check

DOMAIN = "web"


def load_tasks(group: str | None = None) -> dict[str, Task]:
    """Tasks by name, in file order. Groups: `small`, those named after an application, `all`. Raises ConfigError for another."""
    parsed = task_file()
    by_app: dict[str, tuple[str, ...]] = {}
    for name, family in parsed.tasks.items():
        by_app[family.app] = (*by_app.get(family.app, ()), name)
    groups: Mapping[str, tuple[str, ...]] = {"all": tuple(parsed.tasks), **by_app, **parsed.groups}
    if group is not None and group not in groups:
        raise ConfigError(f"The web applications have no task group {group!r}. Groups: {', '.join(groups)}.")
    return {
        name: Task(
            source=SOURCE,
            name=name,
            domain=DOMAIN,
            max_steps=parsed.tasks[name].max_steps,
            held_out=parsed.tasks[name].held_out,
            version=VERSION,
        )
        for name in groups[group or "all"]
    }


def facts(task: Task, seed: int) -> Facts:
    """What is known of an instance without starting anything. Raises TaskError for a task that is not this source's."""
    instance = web_instance(task, seed)
    return Facts(
        instruction=instance.instruction,
        content=instance.content,
        difficulty=instance.difficulty,
        provenance=instance.provenance,
        dropped=instance.dropped,
        reference=reference_of(instance),
    )


def open_session(open_page: OpenPage, limits: Limits) -> WebAppSession:
    """What runs a session is imported with the first one."""
    from sandbox.tasks.web_apps.session import WebAppSession

    return WebAppSession(open_page, limits=limits)


def check() -> Check:
    """What starts an application is imported with the first one."""
    from sandbox.tasks.web_apps.checking import check_web_apps

    return check_web_apps()


TASK_SOURCE = TaskSource(
    name=SOURCE,
    kind="web",
    load_tasks=load_tasks,
    open_session=open_session,
    environment=f"web tasks {VERSION}",
    facts=facts,
    description=lambda task: web_instance(task, first_seed(task)).instruction,
    check=check,
    licence="Apache-2.0; screens of the applications under their own licences",
    origin="tasks of this project, generated, in datasette, sqlite-web and Trac",
)
