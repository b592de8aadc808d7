"""Any web page or application as a task source, by its address and a function that says whether a task is done:

    SOURCE = web_page_source("notes", [WebPageTask(name="add", url="http://localhost:8000/", instruction="Add the note {text}.",
                                                   facts=draw, verifier=has_note, reset=empty, database=Path("notes.sqlite"))])

What runs the page is not ours: a session opens it in a browser of its own, which reaches this address and no other, and before that calls
`reset`. web_page_session.py is the session, page_view.py what `verifier` looks at, web_page_file.py the same in YAML.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from sandbox.actions import Action
from sandbox.adapters.adapted_source import version_of
from sandbox.session import Verdict
from sandbox.tasks.supply import Facts, draw
from sandbox.tasks.task import Task
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import ConfigError, TaskError
from warehouse.core.identity import canonical_json

if TYPE_CHECKING:
    from sandbox.adapters.page_view import PageView
    from sandbox.adapters.web_page_session import WebPageSession
    from sandbox.browser.page_session import Limits, OpenPage

VERSION = "1"
"""Of how pages are opened and judged."""
Values = Mapping[str, Any]
_PORTS = {"http": 80, "https": 443}
MAX_WIDTH = 1000
"""Characters that a field in an instruction or an address may be filled up to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The argument of `reset`: the instance's facts, and the task's database, if it has one."""

    task: str
    seed: int
    facts: Values
    database: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPageTask:
    """A task in a page.

    `facts` draws an instance, as JSON; `url` and `instruction` are filled with it (`str.format`). `reset` puts the application into the
    state in which an episode begins; where it raises, the infrastructure has failed. `verifier` says whether the page, the requests or the
    database are as they should be: True, False or a Verdict. Where it raises, the task is not solved. `oracle`: the next action, None where
    it has no idea. All of these are plain functions and run in threads. `hosts`: other public hosts that the page may load from.
    `is_shared`: several sessions may play it at once, since it is only read; else they take turns, by the address's host and port.
    """

    name: str
    url: str
    instruction: str
    verifier: Callable[[PageView], bool | Verdict]
    facts: Callable[[random.Random], Values] | None = None
    reset: Callable[[Start], None] | None = None
    oracle: Callable[[PageView], Action | None] | None = None
    database: Path | None = None
    hosts: tuple[str, ...] = ()
    is_shared: bool = False
    size_px: tuple[int, int] = (800, 640)
    real_time: bool = False
    """For a page that needs the wall clock. Nothing is reproducible then."""
    domain: str = "web"
    max_steps: int = 20

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        try:
            parts = urlsplit(self.url)
            is_address = parts.scheme in _PORTS and bool(parts.hostname) and not set(parts.netloc) & set("{}@") and parts.port != 0
        except ValueError:  # a port or an IPv6 address that is none
            is_address = False
        if not is_address:
            raise ConfigError(
                f"{self.url!r} is not the address of a page: write http:// or https:// and a host, as http://localhost:8000/notes, without "
                "a user or password. Fields of `facts` may stand behind the host only."
            )

    @property
    def origin(self) -> str:
        """HOST:PORT."""
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port or _PORTS[parts.scheme]}"


class _Filling(string.Formatter):
    """`str.format`, without the few characters that ask for gigabytes."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if any(int(number) > MAX_WIDTH for number in re.findall(r"\d{1,20}", format_spec)):
            raise ValueError(f"a width of more than {MAX_WIDTH} in {format_spec!r}")
        return str(super().format_field(value, format_spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class PageInstance:
    """A task and the seed's facts. Satisfies Candidate."""

    task: WebPageTask
    content: Values

    @property
    def instruction(self) -> str:
        return self._filled(self.task.instruction, self.content)

    @property
    def url(self) -> str:
        return self._filled(self.task.url, {name: quote(str(value), safe="") for name, value in self.content.items()})

    def _filled(self, text: str, values: Values) -> str:
        """Raises TaskError."""
        if self.task.facts is None:
            return text
        try:
            return _Filling().vformat(text, (), values)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise TaskError(
                f"{text!r} of the task {self.task.name!r} cannot be filled with its facts {dict(values)}: {type(error).__name__}: {error}."
            ) from error


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
