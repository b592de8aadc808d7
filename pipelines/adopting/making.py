"""The parts of `flywheel adopt` that make tasks, each with its progress and a line on what it found. What they do is sandbox/adopting's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

from annotation.recordings.refinement import Refiner
from pipelines.adopting.wording import reword
from sandbox.adopting import adopt as steps
from sandbox.adopting.login import log_in
from sandbox.adopting.records import Folder, Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How to log in to the site. `password` is called when it is needed."""

    path: str
    user: str
    password: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """Which words tasks in other ways: an OpenAI-compatible address, and the model's name there."""

    address: str
    name: str
    key: str


class Output:
    """A progress bar for each part under way, and a line for what is done."""

    def __init__(self, console: Console, bars: Progress) -> None:
        self._console, self._bars = console, bars
        self._lines: dict[str, TaskID] = {}

    def show(self, what: str, done: int, total: int) -> None:
        if what not in self._lines:
            self._lines[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._lines[what], completed=done, total=total)

    def say(self, what: str, text: str) -> None:
        if what in self._lines:
            self._bars.remove_task(self._lines.pop(what))
        self._console.print(f"{what}: {text}", highlight=False, soft_wrap=True, markup=False)


def make_tasks(
    folder: Folder,
    site: Site,
    wanted: Collection[str],
    console: Console,
    *,
    pages: int,
    depth: int,
    tasks: int,
    sessions: int,
    login: Login | None,
    llm: LanguageModel | None,
) -> None:
    """The parts that are wanted; each reads what those before it have left in the folder."""
    with Progress(console=console, transient=True) as bars:
        out = Output(console, bars)
        if login is not None and not folder.login.exists() and {"crawl", "proof"} & {*wanted}:
            run(log_in(folder, site, login.path, login.user, login.password()))
        if "crawl" in wanted:
            crawl(folder, site, out, pages=pages, depth=depth)
        if "tasks" in wanted:
            compose(folder, site, out, tasks=tasks)
        if "proof" in wanted:
            prove(folder, site, out, sessions=sessions)
        if "wording" in wanted and llm is not None:
            word(folder, site, out, llm)
        if "source" in wanted:
            write_source(folder, site, out)


def crawl(folder: Folder, site: Site, out: Output, *, pages: int, depth: int) -> None:
    found = run(steps.crawl(folder, site, max_pages=pages, max_depth=depth, report=out.show))
    used = found["pages"].pop("used", 0)
    out.say(
        "crawl", f"{used} pages in {found['s']} s; not used: {_counts(found['pages'])}; elsewhere: {found['requests_elsewhere_refused']}"
    )
    if num := found["pages_that_write_by_themselves"]:
        out.say(
            "crawl",
            f"{num} pages send by themselves what would write ({', '.join(found['such_writes'])}), which is refused: they may show "
            "errors over what they have. Give --writes, on a copy, where such pages have few tasks",
        )


def compose(folder: Folder, site: Site, out: Output, *, tasks: int) -> None:
    found = steps.compose(folder, site, max_tasks=tasks)
    out.say("tasks", f"{found['candidates']} candidates ({_counts(found['by_family'])}); dropped: {_counts(found['dropped'])}")


def prove(folder: Folder, site: Site, out: Output, *, sessions: int) -> None:
    found = run(steps.prove(folder, site, num_sessions=sessions, report=out.show))
    out.say("proof", f"{found['sound']} of {found['played']} are sound, in {found['s']} s; dropped: {_counts(found['dropped'])}")


def word(folder: Folder, site: Site, out: Output, llm: LanguageModel) -> None:
    with closing(Refiner(llm.address, llm.name, llm.key)) as refiner:
        found = reword(folder, site, refiner, out.show)
    out.say("wording", f"{found['wordings']} other wordings of {found['tasks']} training tasks")


def write_source(folder: Folder, site: Site, out: Output) -> None:
    found = steps.write_source(folder, site)
    out.say("source", f"{found['tasks']} tasks ({_counts(found['splits'])}) in {folder.root}")
    if unproved := found["candidates_not_proved_yet"]:
        out.say("source", f"{unproved} candidates are not proved yet: the same command without --only goes on")


def run(work: Coroutine[Any, Any, dict[str, Any] | None]) -> dict[str, Any]:
    return asyncio.run(work) or {}


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{num} {name}" for name, num in found.items()) or "nothing"
