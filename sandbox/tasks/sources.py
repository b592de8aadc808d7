"""Tasks and what is known of them, by their sources: selections such as `games:small`, kinds of sessions, pages. Which sources there are is
registry.py's business, how a session of a kind is made sandbox/pool/kinds.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sandbox.tasks.page_task import PageTask, PageTasks
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.task import Split, Task
from sandbox.tasks.task_source import SessionKind
from warehouse.core.errors import ConfigError, TaskError
from warehouse.core.stages import ERASED
from warehouse.evaluation.game_scores import GameReference

SEEDS_PER_REPORTED = 4


class _Pages(Mapping[str, PageTask]):
    """The sources that live in web pages. Asked for one by name, it imports that one alone."""

    def __getitem__(self, name: str) -> PageTask:
        if (page := SOURCES[name].page) is None:
            raise KeyError(name)
        return page

    def __contains__(self, name: object) -> bool:
        return name in SOURCES and SOURCES[str(name)].page is not None

    def __iter__(self) -> Iterator[str]:
        return (name for name in SOURCES if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def score_references() -> Mapping[str, Mapping[str, GameReference]]:
    """What the games that come with Flywheel are scored beside, by group and task id. No other source has any."""
    found = SOURCES["games"].references
    return {} if found is None else found()


def page_tasks() -> PageTasks:
    """Every source that lives in web pages."""
    return _Pages()


def kind_of(task: Task) -> SessionKind:
    """The kind of session that a task needs. Raises TaskError for an unknown source."""
    if task.source not in SOURCES:
        raise TaskError(f"Task {task.name!r} is of source {task.source!r}, which is not known; known are {', '.join(SOURCES)}.")
    return SOURCES[task.source].kind_of(task)


def reported_seeds(task: Task, split: Split, num: int) -> list[int]:
    """The first seeds of a split that are `num` different instances; fewer where there are no more among SEEDS_PER_REPORTED times as many.
    A repeat adds nothing to the first."""
    found: dict[str, int] = {}
    for seed in task.seeds(split, num * SEEDS_PER_REPORTED):
        try:
            facts = SOURCES[task.source].facts(task, seed)
        except TaskError:  # the source has no instance for the seed
            continue
        if facts is None:  # its seeds are different instances (reserved.py), or it is not known
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
    tasks = tuple(SOURCES[name].load_tasks(group or None).values())
    if strays := sorted({task.source for task in tasks} - set(SOURCES)):
        raise ConfigError(f"The task source {name!r} gives tasks of the source {strays[0]!r}: their `source` has to be {name!r}.")
    if any(task.name == ERASED for task in tasks):
        raise ConfigError(f"The task source {name!r} calls a task {ERASED!r}, as episodes that were erased are called: name it otherwise.")
    return tasks


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


def find_task(name: str) -> Task:
    """The task of `source/name`. Raises TaskError."""
    source, _, rest = name.partition("/")
    if source in SOURCES and (task := SOURCES[source].load_tasks().get(rest)) is not None:
        return task
    raise TaskError(f"There is no task {name!r}: write source/name, e.g. miniwob/click-button. Sources are {', '.join(SOURCES)}.")
