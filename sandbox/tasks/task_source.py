"""TaskSource: what a source of tasks gives, ours as well as yours. How one is found is registry.py; docs/page-tasks.md has a whole one.

Nothing here imports a source, a session or a page: a module that defines a TaskSource needs this file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass
from inspect import getattr_static
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args

from warehouse.core.errors import ConfigError, TaskError

if TYPE_CHECKING:
    from sandbox.tasks.page_task import PageTask
    from sandbox.tasks.supply import Facts
    from sandbox.tasks.task import Task
    from warehouse.core.checks import Check
    from warehouse.core.home import Home
    from warehouse.datasets.provenance import Source
    from warehouse.evaluation.game_scores import GameReference

SessionKind = Literal["page", "terminal", "hybrid", "web", "desktop", "android", "own"]
"""page: a task page in a browser; terminal: bash and files; hybrid: browser, terminal and files on one workspace; web: a live
web application in a browser; desktop: a display with applications; android: a device; own: whatever the source opens."""

T = TypeVar("T")


class LoadTasks(Protocol):
    def __call__(self, group: str | None = None) -> dict[str, Task]:
        """Tasks by name, in their order; None means all. Raises ConfigError for an unknown group."""
        ...


def _no_instance(task: Task, seed: int) -> Any:
    raise TaskError(f"The task source {task.source!r} has no `instance`, so no session can run {task.name!r} by one.")


def _no_facts(task: Task, seed: int) -> Facts | None:
    return None


def _solved(task: Task) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """A source of tasks. Besides `name`, `kind` and `load_tasks` a source of pages gives `page`, one of kind `web` or `own` gives
    `open_session`, and one of any other kind `instance`. The rest is optional. Raises ConfigError where a part is missing or of the wrong
    type."""

    name: str
    """`Task.source` of its tasks, and what it is selected by: `name` or `name:group`."""
    kind: SessionKind | Callable[[Task], SessionKind]
    """The kind of session that runs its tasks; a function where that differs from task to task. The function raises TaskError for a task
    that is not the source's."""
    load_tasks: LoadTasks
    page: PageTask | None = None
    """How its tasks live in a web page."""
    instance: Callable[[Task, int], Any] = _no_instance
    """(task, seed) → what the session is set up with, the same for the same arguments: sandbox.terminal.tasks.Instance,
    sandbox.hybrid.tasks.HybridInstance, sandbox.desktop.instance.Instance or sandbox.android.instance.AndroidInstance. Raises TaskError for
    a task that is not the source's."""
    open_session: Callable[..., Any] | None = None
    """(open_page, limits) → a session of its own making."""
    environment: str = ""
    """Version of the instances and their verifiers, e.g. "terminal tasks 1". A page says its own."""
    facts: Callable[[Task, int], Facts | None] = _no_facts
    """(task, seed) → what is known of an instance before anything runs; None where only a session knows. Raises TaskError for a task
    that is not the source's, and where it has no instance for the seed."""
    description: Callable[[Task], str] | None = None
    """What a task asks for, in a line. Without it the instruction that `facts` give for a first instance."""
    has_oracle: Callable[[Task], bool] = _solved
    """Whether the task's `oracle_action` solves it. Tasks without an oracle are neither demonstrated nor annotated by script."""
    has_one_instance: bool = False
    """Each task is one instance, whatever the seed. Then a whole task falls into one split, or what is learned from would be what is
    reported: `train`, or for a held-out task one of the others."""
    variant_suffix: str = ""
    """End of the name of a task that shows more of another's instances, `NAME` + suffix: both are in the same splits."""
    contents: Path | None = None
    """The index of reserved instances, contents.json (reserved.py). Only where the source does not draw its instances by split."""
    content: Callable[[Task, int], str] | None = None
    """(task, seed) → id of what a seed draws first, for the program that makes that index. Pages need none: there a session looks."""
    is_known_by_first_screen: bool = False
    """Instances that show the same first screen are the same one: such a screen is in one split alone, and counts as new where no episode
    that was learned from had it. Without it instances differ deeper, in files, pages or what a game does next."""
    references: Callable[[], Mapping[str, Mapping[str, GameReference]]] | None = None
    """Of games: what others score at the tasks that it is scored by, by the name of their group and the task's id, one task a game."""
    check: Callable[[], Check] | None = None
    """Whether this machine has what the tasks need beside their kind of session, for `flywheel doctor` and dry runs."""
    licence: str = "unknown"
    """Of the tasks and of what they show, as an SPDX id or in words; samples of their episodes carry it."""
    origin: str = ""
    """What the tasks are and where they are from, in a line: it stands on dataset cards."""
    provenance: Callable[[Home | None], Iterable[Source]] | None = None
    """Instead of these two, where each group has its own: rows of the table `sources`, called SOURCE:GROUP, whose tasks are called
    GROUP:NAME. Of the environment's home where none is given."""
    twin_suffix: InitVar[str] = ""
    """What `variant_suffix` was called before."""

    def __post_init__(self, twin_suffix: str) -> None:
        if twin_suffix:
            object.__setattr__(self, "variant_suffix", self.variant_suffix or twin_suffix)
        if not isinstance(self.name, str) or not self.name or set(self.name) & set(":/, "):
            raise ConfigError(f"The name of a task source is {self.name!r}: expected a word without `:`, `/`, comma or space, e.g. shop.")
        if isinstance(self.kind, str) and self.kind not in get_args(SessionKind):
            raise ConfigError(f"The task source {self.name!r} is of kind {self.kind!r}; kinds are {', '.join(get_args(SessionKind))}.")
        _check_callable(self.name, load_tasks=self.load_tasks, instance=self.instance, facts=self.facts, has_oracle=self.has_oracle)
        if isinstance(self.kind, str):
            part = {"page": "page", "web": "open_session", "own": "open_session"}.get(self.kind, "instance")
            if getattr(self, part) in (None, _no_instance):
                raise ConfigError(f"The task source {self.name!r} is of kind {self.kind!r} and has no `{part}`: give it one.")
        if self.page is not None and (missing := _missing_of_page(self.page)):
            raise ConfigError(
                f"`page` of the task source {self.name!r} is a {type(self.page).__name__} without {', '.join(missing)}: "
                "sandbox/tasks/page_task.py says what a PageTask has."
            )

    def kind_of(self, task: Task) -> SessionKind:
        """Raises TaskError for a task that is not the source's."""
        return self.kind if isinstance(self.kind, str) else self.kind(task)


def _check_callable(name: str, **parts: Any) -> None:
    if wrong := [part for part, value in parts.items() if not callable(value)]:
        raise ConfigError(f"`{wrong[0]}` of the task source {name!r} is {parts[wrong[0]]!r}: expected a function.")


def _missing_of_page(page: object) -> list[str]:
    """Names that a PageTask has and this object has not. Nothing of it is run."""
    from sandbox.tasks.page_task import PageTask

    wanted = [name for name in vars(PageTask) if not name.startswith("_")]
    return [name for name in wanted if getattr_static(page, name, None) is None]


class InstanceSource(Protocol):
    """What a session asks of its tasks' source; a TaskSource is one."""

    @property
    def environment(self) -> str: ...

    @property
    def instance(self) -> Callable[[Task, int], Any]: ...


def instance_of(sources: Mapping[str, InstanceSource], task: Task, seed: int, kind: type[T]) -> T:
    """The instance of a seed, by the task's source. Raises TaskError for a source that is not among these, for a task that is not the
    source's, and for an instance of another kind of session."""
    if task.source not in sources:
        raise TaskError(f"Task {task.name!r} is of source {task.source!r}, which this session does not have; it has {sorted(sources)}.")
    made = sources[task.source].instance(task, seed)
    if not isinstance(made, kind):
        raise TaskError(
            f"Task {task.source}/{task.name}: the source's `instance` gave a {type(made).__name__}, and this session runs "
            f"{kind.__module__}.{kind.__name__}."
        )
    return made
