"""A task source of adapted environments: what its tasks, its sessions and its names are made of, whichever interface they speak."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sandbox.adapters.adapted_session import Adapted, AdaptedSession, AdaptedTask, ByName
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import ConfigError
from warehouse.core.identity import content_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Playable:
    """One environment as a task of a source. `version`: part of the task's identity, all that decides what is asked and when it is
    solved; `make` starts one (AdaptedTask)."""

    name: str
    instruction: str
    success_at: float
    version: str
    make: Callable[[], Awaitable[Adapted]]
    domain: str
    max_steps: int
    has_oracle: bool


def adapted_source(name: str, tasks: Sequence[Playable], *, environment: str, has_one_instance: bool = False, **more: Any) -> TaskSource:
    """`environment`: version of what runs them. `has_one_instance`: a reset with another seed gives the same instance. `more`: other parts
    of the TaskSource, such as `licence`. Raises ConfigError for two tasks of one name."""
    by_name = {each.name: each for each in tasks}
    if len(by_name) != len(tasks):
        raise ConfigError(f"The source {name!r} has two tasks of one name: {[each.name for each in tasks]}. Give them a `name`.")

    def load_tasks(group: str | None = None) -> dict[str, Task]:
        if group is not None:
            raise ConfigError(f"The source {name!r} has no task group {group!r}; it has no groups.")
        return {
            key: Task(source=name, name=key, domain=each.domain, max_steps=each.max_steps, version=each.version)
            for key, each in by_name.items()
        }

    adapted = {
        key: AdaptedTask(instruction=each.instruction, success_at=each.success_at, make=each.make, has_one_instance=has_one_instance)
        for key, each in by_name.items()
    }
    find = ByName(name, adapted)
    return TaskSource(
        name=name,
        kind="own",
        load_tasks=load_tasks,
        open_session=lambda open_page, limits: AdaptedSession(find),
        environment=environment,
        description=lambda task: by_name[task.name].instruction,
        has_oracle=lambda task: by_name[task.name].has_oracle,
        has_one_instance=has_one_instance,
        **more,
    )


def name_of(text: str) -> str:
    """A task's name of an environment's id or address."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def version_of(what: str, *parts: Any) -> str:
    """Raises ConfigError for a part that is not JSON, since it may differ in another process."""
    try:
        text = json.dumps(parts, sort_keys=True)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}. What is not JSON goes into a function of yours, given as `make`.") from error
    return f"{what} {content_id('adapted', text)}"
