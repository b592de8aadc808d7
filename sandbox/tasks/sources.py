"""The one literal registry of task sources, by `Task.source`: which kind of session runs a source's tasks, and where its tasks and pages
are said. Sources are imported when first asked for; how a session of a kind is made is kinds.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol, cast

from sandbox.tasks.page_task import PageTask, PageTasks
from sandbox.tasks.supply import Facts
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import ConfigError, TaskError

SessionKind = Literal["page", "terminal", "hybrid", "web", "desktop", "android"]
"""page: a task page in a browser; terminal: bash and files; hybrid: browser, terminal and files on one workspace; web: a live
web application in a browser; desktop: a display with applications; android: a device."""


SEEDS_PER_REPORTED = 4


class _Module(Protocol):
    """What a source's module has."""

    def load_tasks(self, group: str | None = None) -> dict[str, Task]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source of tasks: a module with `SOURCE`, `load_tasks(group)` and, where it generates its instances, `facts(task, seed)`; for pages
    the name of its PageTask class."""

    kind: SessionKind | None
    """None: tasks of several kinds, of which the module's `kind_of(task)` tells."""
    module: str
    pages: str | None = None

    def load_tasks(self, group: str | None = None) -> dict[str, Task]:
        """Tasks by name; None means all. Raises ConfigError for an unknown group."""
        return cast(_Module, import_module(self.module)).load_tasks(group)

    def facts(self, task: Task, seed: int) -> Facts | None:
        """What is known of an instance before anything runs, where the source generates its instances and says so (`facts` of its
        module); else None. Raises TaskError for a task that is not the source's."""
        told = getattr(import_module(self.module), "facts", None)
        return None if told is None else cast(Facts, told(task, seed))

    def kind_of(self, task: Task) -> SessionKind:
        """Raises TaskError for a task that is not the source's."""
        return self.kind or cast(SessionKind, import_module(self.module).kind_of(task))

    def page_task(self) -> PageTask | None:
        return None if self.pages is None else cast(PageTask, getattr(import_module(self.module), self.pages)())


SOURCES: Mapping[str, Source] = {
    "miniwob": Source(kind="page", module="sandbox.tasks.miniwob.source", pages="MiniWobSource"),
    "games": Source(kind="page", module="sandbox.tasks.games.source", pages="GamesSource"),
    "terminal": Source(kind="terminal", module="sandbox.tasks.terminal.source"),
    "hybrid": Source(kind="hybrid", module="sandbox.tasks.hybrid.source"),
    "browsing": Source(kind="page", module="sandbox.tasks.browsing.source", pages="BrowsingSource"),
    "web": Source(kind="web", module="sandbox.tasks.web_apps.source"),
    "desktop": Source(kind="desktop", module="sandbox.tasks.desktop.source"),
    "android": Source(kind="android", module="sandbox.tasks.android.source"),
    "imported": Source(kind=None, module="sandbox.tasks.imported.source"),
}


def page_tasks() -> PageTasks:
    """Every source that lives in web pages."""
    return {name: page_task for name, source in SOURCES.items() if (page_task := source.page_task()) is not None}


def kind_of(task: Task) -> SessionKind:
    """The kind of session that a task needs. Raises TaskError for an unknown source."""
    if task.source not in SOURCES:
        raise TaskError(f"Task {task.name!r} is of source {task.source!r}, which is not known; known are {', '.join(SOURCES)}.")
    return SOURCES[task.source].kind_of(task)


def reported_seeds(task: Task, split: Split, num: int) -> list[int]:
    """The first seeds of a split that are `num` different instances; fewer where there are no more among SEEDS_PER_REPORTED times as many.
    A repeat tells nothing that the first did not."""
    found: dict[str, int] = {}
    for seed in task.seeds(split, num * SEEDS_PER_REPORTED):
        try:
            facts = SOURCES[task.source].facts(task, seed)
        except TaskError:  # the source has no instance for the seed
            continue
        if facts is None:  # its seeds are different instances (reserved.py), or nobody can tell
            return task.seeds(split, num)
        found.setdefault(facts.content_id, seed)
        if len(found) == num:
            break
    return list(found.values())


def tasks_of(selection: str) -> tuple[Task, ...]:
    """The tasks of a selection, in the order of their source: `games` (all of a source) or `games:small` (a group of it).

    Raises ConfigError for an unknown source or group.
    """
    name, colon, group = selection.partition(":")
    if name not in SOURCES or (colon and not group):
        raise ConfigError(
            f"{selection!r} selects no tasks: write a source, or source:group, e.g. miniwob:quickstart. Sources are {', '.join(SOURCES)}."
        )
    return tuple(SOURCES[name].load_tasks(group or None).values())


def tasks_in(selections: Iterable[str]) -> dict[str, Task]:
    """Tasks by name of several selections, in their order. Raises ConfigError, also where two sources call different tasks the same."""
    found: dict[str, Task] = {}
    for selection in selections:
        for task in tasks_of(selection):
            if (other := found.setdefault(task.name, task)) != task:
                raise ConfigError(
                    f"{selection!r}: {task.name!r} is the name of a task of {other.source!r} as well; select one of the two, or rename it."
                )
    return found


def all_tasks() -> tuple[Task, ...]:
    """Every task of every source."""
    return tuple(task for name in SOURCES for task in tasks_of(name))
