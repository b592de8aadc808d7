"""The tasks of the source "web": families over what the applications' maps have (tasks.yaml), and the instance of a seed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.tasks.page_task import PageSettings, WebSettings
from sandbox.tasks.supply import Facts
from sandbox.tasks.task import Split, Task, first_seed
from sandbox.tasks.task_file import TaskFile, read_task_file
from sandbox.tasks.task_source import TaskSource
from sandbox.tasks.web_apps.compose import instances
from sandbox.tasks.web_apps.drafts import Family
from sandbox.tasks.web_apps.tasks import WebInstance, reference_of
from warehouse.core.errors import ConfigError, TaskError
from warehouse.core.identity import stable_seed

if TYPE_CHECKING:
    from sandbox.browser.page_session import Limits, OpenPage
    from sandbox.tasks.web_apps.session import WebAppSession

SOURCE = "web"
DOMAIN = "web"
VERSION = "1"
"""Of data, instances and verifiers: a change of any is another version."""
PAGES = Path(__file__).with_name("pages")
"""What a page may open beside its application: a blank one."""
SIZE_PX = (800, 640)
SETTINGS = PageSettings(viewport_px=SIZE_PX, area_px=SIZE_PX, step_time_ms=100.0, frame_time_ms=50.0, web=WebSettings())
MAX_RANKED_SEED = 4_000
"""Seeds up to this one take the instances in turn; larger ones draw."""


@cache
def task_file() -> TaskFile[Family]:
    """Raises ConfigError where it is malformed, or a group names a task that is not there."""
    return read_task_file("sandbox.tasks.web_apps", TaskFile[Family])


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


@cache
def _ranked(task: Task) -> dict[Split, list[int]]:
    """Seeds of each split, in order."""
    found: dict[Split, list[int]] = {split: [] for split in Split}
    split_of = task.split_of_seeds()
    for seed in range(MAX_RANKED_SEED):
        found[split_of(seed)].append(seed)
    return found


def web_instance(task: Task, seed: int) -> WebInstance:
    """The instance of a seed: the seeds of a split take the split's instances in turn. Raises TaskError for a task that is not this
    source's, ConfigError where a map does not fit."""
    if task.source != SOURCE or task.name not in task_file().tasks:
        raise TaskError(f"A web session cannot run task {task.source}/{task.name}: its tasks are {', '.join(task_file().tasks)}.")
    split = task.split(seed)
    found = instances(task.name, task_file().tasks[task.name], split)
    if 0 <= seed < MAX_RANKED_SEED:
        return found[bisect_left(_ranked(task)[split], seed) % len(found)]
    return found[stable_seed(SOURCE, task.name, seed) % len(found)]


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


TASK_SOURCE = TaskSource(
    name=SOURCE,
    kind="web",
    load_tasks=load_tasks,
    open_session=open_session,
    environment=f"web tasks {VERSION}",
    facts=facts,
    description=lambda task: web_instance(task, first_seed(task)).instruction,
    licence="Apache-2.0; screens of the applications under their own licences",
    origin="tasks of this project, generated, in datasette, sqlite-web and Trac",
)
