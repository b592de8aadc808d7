"""A source's tasks.yaml: read, its groups held to its tasks, and its tasks to what makes them. What an entry says beside its limit of steps
is the source's own business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import resources
from types import MappingProxyType
from typing import Annotated, Any, Generic, Protocol, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.tasks.task import Task
from warehouse.core.errors import ConfigError
from warehouse.core.plain_yaml import read_yaml


class TaskEntry(BaseModel):
    """One task's line in tasks.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_steps: Annotated[int, Field(ge=1, le=100)]
    held_out: bool = False


class HasLimit(Protocol):
    """A family of composed tasks, as far as its list goes."""

    @property
    def max_steps(self) -> int: ...


NONE: Mapping[str, Any] = MappingProxyType({})
Entry = TypeVar("Entry", bound=BaseModel)
PlainEntry = TypeVar("PlainEntry", bound=TaskEntry)


class TaskFile(BaseModel, Generic[Entry]):
    """A tasks.yaml as a whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: dict[str, tuple[str, ...]]
    tasks: dict[str, Entry]

    def members(self, group: str | None, owner: str, *, everything: str = "all", also: Iterable[str] = ()) -> tuple[str, ...]:
        """Names of a group's tasks in file order; None and the group `everything` mean all. Raises ConfigError for an unknown group, with
        `owner` and the groups that it has `also`, beside the file's."""
        if group is None or group == everything:
            return tuple(self.tasks)
        if group not in self.groups:
            raise ConfigError(f"{owner} has no task group {group!r}. Its groups: {', '.join([*self.groups, everything, *also])}.")
        return self.groups[group]


File = TypeVar("File", bound=TaskFile)  # type: ignore[type-arg]


def read_task_file(package: str, model: type[File], makers: Collection[str] | None = None) -> File:
    """The parsed tasks.yaml of a package. Raises ConfigError where it is malformed, a group names a task without an entry, or the tasks are
    not those that `makers` make."""
    where = f"{package.replace('.', '/')}/tasks.yaml"
    try:
        parsed = model.model_validate(read_yaml((resources.files(package) / "tasks.yaml").read_text(encoding="utf-8")))
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"{where} is malformed: {error}") from error
    for group, names in parsed.groups.items():
        if unknown := sorted(set(names) - set(parsed.tasks)):
            raise ConfigError(f"Group {group!r} of {where} names tasks without an entry: {', '.join(unknown)}.")
    if makers is not None and (strays := sorted(set(parsed.tasks) ^ set(makers))):
        raise ConfigError(f"{where} and the functions that make its tasks do not fit together: {', '.join(strays)}.")
    return parsed


def load_plain(
    file: TaskFile[PlainEntry],
    group: str | None,
    *,
    source: str,
    domain: str,
    version: str,
    families: Mapping[str, HasLimit] = NONE,
    family_groups: Mapping[str, Sequence[str]] = NONE,
) -> dict[str, Task]:
    """A group's tasks by name, in file order, of a source with one domain; None means those of the file and the families that are composed
    beside them, which have groups of their own. Raises ConfigError for an unknown group."""
    composed = {
        name: Task(source=source, name=name, domain=domain, version=version, max_steps=families[name].max_steps)
        for name in (families if group is None else family_groups.get(group, ()))
    }
    if group in family_groups:
        return composed
    return {
        name: Task(source=source, name=name, domain=domain, version=version, max_steps=entry.max_steps, held_out=entry.held_out)
        for name in file.members(group, f"The source {source}", also=family_groups)
        for entry in [file.tasks[name]]
    } | composed
