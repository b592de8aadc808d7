"""MiniWoB++ tasks as web pages: the task list, where the pages are, how an instance starts, what its state is. Satisfies PageTask.

Which tasks are used, with what limits, is data: tasks.yaml. How they are solved is oracles.py. No browser is driven here.
The pages and their verifiers come unchanged from the `miniwob` package (MiniWoB++, Liu et al. 2018, arXiv 1802.08802).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox.actions import Action
from sandbox.session import Verdict
from sandbox.tasks.miniwob.descriptions import of_page
from sandbox.tasks.miniwob.oracles import oracle_action
from sandbox.tasks.page_task import PageSettings, PageState, PageStepContext
from sandbox.tasks.task import Task
from sandbox.tasks.task_file import TaskFile, read_task_file
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import TaskError

SOURCE = "miniwob"
SUCCESS_REWARD = 0.999
"""An instance is solved when the page's raw reward, before its time penalty, reaches this at the end of the episode."""

ELEMENT_OPTIONS: Mapping[str, Any] = {
    # The reward display and the click trace lie beside the page; the cover is what starts an episode for people.
    "exclude": ["#reward-display", "#click-canvas", "#sync-task-cover"],
    # The instruction's text is Observation.instruction; a swatch or an icon in it is still an element.
    "textless": ["#query"],
    "roles": [
        [".ui-accordion-header:not(:has(button))", "header"],
        [".ui-accordion-header", ""],  # an accordion takes a paragraph that holds the Submit button for a header
        [".ui-tabs-tab", "tab"],
        [".ui-menu-item-wrapper", "item"],
        ["#sortable > li", "item"],
        [".ui-slider-handle", "slider"],
        [".ui-spinner-button, .ui-datepicker-prev, .ui-datepicker-next", "button"],
        [".alink", "link"],
        [".folder, .file", "item"],
        [".hitarea", "button"],
        [".email-reply, .email-forward", "button"],
        [".ui-wrapper > .ui-resizable-se", "image"],
        [".ui-resizable-handle", ""],
        [".selectricItems li", "item"],
    ],
    "names": [
        [".ui-dialog-titlebar-close", "x"],
        [".ui-spinner-up", "up"],
        [".ui-spinner-down", "down"],
        [".ui-datepicker-prev", "previous month"],
        [".ui-datepicker-next", "next month"],
        [".star", "star"],
        [".trash", "trash"],
        ["#open-search", "search"],
        ["#search-cancel, #close-email, #close-reply, #close-forward", "back"],
        ["#send-reply, #send-forward", "send"],
        ["span.reply", "reply"],
        ["span.retweet", "retweet"],
        ["span.like", "like"],
        ["span.share", "share"],
        ["span.more", "more"],
        [".collapsable-hitarea", "collapse"],
        [".expandable-hitarea", "expand"],
        [".mark-x", "X"],
        [".mark-o", "O"],
        [".ui-wrapper > .ui-resizable-se", "resize handle"],
        [".ui-icon-disk", "floppy disk"],
        [".ui-icon-print", "printer"],
        [".ui-icon-zoomin", "zoom in"],
        [".ui-icon-zoomout", "zoom out"],
        [".ui-icon-seek-start", "to the start"],
        [".ui-icon-seek-end", "to the end"],
        [".ui-icon-play", "play"],
        [".ui-icon-stop", "stop"],
    ],
    "states": [
        [".selected, .clicked, .controls > .active, .page-item.active > a", "selected"],
        [".ui-menu-item-wrapper.ui-state-active", "selected"],
        [".ui-state-disabled", "disabled"],
    ],
}
"""Arguments of elements.js for these pages: roles of jQuery UI widgets, and icons by what a person calls them."""


class TaskEntry(BaseModel):
    """One task's line in tasks.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    domain: Literal["pointing", "forms"]
    max_steps: Annotated[int, Field(ge=1, le=100)]
    held_out: bool = False
    oracle: Annotated[bool, Field(description="oracles.py solves it")] = True
    fresh_page: Annotated[bool, Field(description="a restart keeps something, as a scrolled text or a focus ring")] = False


@cache
def task_file() -> TaskFile[TaskEntry]:
    """The parsed tasks.yaml. Raises ConfigError where it is malformed or a group names a task that it does not hold."""
    return read_task_file("sandbox.tasks.miniwob", TaskFile[TaskEntry])


def load_tasks(group: str | None = None) -> dict[str, Task]:
    """Tasks by name, in file order. Groups: `quickstart`, `unseen` (never trained on), `wide` (all). Raises ConfigError for another."""
    entries = task_file()
    version = package_version()
    return {
        name: Task(
            source=SOURCE,
            name=name,
            domain=entries.tasks[name].domain,
            max_steps=entries.tasks[name].max_steps,
            held_out=entries.tasks[name].held_out,
            version=version,
        )
        for name in entries.members(group, "MiniWoB", everything="wide")
    }


@cache
def package_version() -> str:
    """Version of the installed `miniwob` package, which defines the pages and their verifiers."""
    return metadata.version("miniwob")


SETTINGS = PageSettings(
    viewport_px=(500, 320),  # at the page's own 160×210 some dialogs fall off the window
    area_px=(160, 210),
    step_time_ms=50.0,
    frame_time_ms=50.0,  # these pages stand still between actions, but for animations of jQuery UI, which go by the clock
)


_PARTS = re.compile(r"(?:common/special/[\w-]+|core/jquery-ui)/")


@cache
def _settings(root: Path, page: str) -> PageSettings:
    """With the pictures in the folders that the page takes scripts or styles from."""
    folders = sorted(set(_PARTS.findall((root / "miniwob" / f"{page}.html").read_text(encoding="utf-8"))))
    found = (path for folder in folders for path in sorted((root / folder).rglob("*")))
    images = tuple(path.relative_to(root).as_posix() for path in found if path.suffix in (".png", ".gif", ".jpg"))
    return replace(SETTINGS, images=images)


class MiniWobSource:
    """PageTask for MiniWoB++. Stateless."""

    ready_script = "document.readyState === 'complete' && typeof core !== 'undefined' && core.cover_div !== null"

    @property
    def root(self) -> Path:
        """Folder of the installed pages with the scripts and images they load."""
        return Path(str(resources.files("miniwob"))) / "html"

    @property
    def environment(self) -> str:
        return f"miniwob {package_version()}"

    @property
    def state_script(self) -> str:
        return _state_script()

    def settings(self, task: Task) -> PageSettings:
        return _settings(self.root, _entry_name(task))

    def url(self, task: Task) -> str:
        return (self.root / "miniwob" / f"{_entry_name(task)}.html").as_uri()

    def start_script(self, task: Task, seed: int) -> str:
        """Drops what an earlier instance left (focus, time limit, inner scrolling), seeds the page's generator and starts. The cover that
        shows after the end starts no other instance: a click on it, the second of a double click, would take the end back."""
        return (
            "(() => {"
            " if (core.cover_div === null) core.startEpisode();"
            " core.cover_div.onclick = null;"
            " if (document.activeElement) document.activeElement.blur();"
            " for (const part of [document.scrollingElement, document.getElementById('area')])"
            " if (part) part.scrollTop = part.scrollLeft = 0;"
            " core.EPISODE_MAX_TIME = 1e9;"
            f" Math.seedrandom({json.dumps(str(seed))});"
            " core.startEpisodeReal();"
            " return WOB_TASK_READY;"
            "})()"
        )

    def needs_fresh_page(self, task: Task) -> bool:
        return task_file().tasks[_entry_name(task)].fresh_page

    async def oracle_action(self, context: PageStepContext) -> Action | None:
        return oracle_action(context.task, context.observation, context.actions)

    def verdict(self, state: PageState) -> Verdict:
        """The page's own judgement. An episode that has not ended has not succeeded."""
        if not state.done:
            return Verdict(origin="verifier", score=0.0, threshold=SUCCESS_REWARD, reasons=("the page has not ended the episode",))
        reason = "the page accepted the outcome" if state.reward >= SUCCESS_REWARD else "the page rejected the outcome"
        return Verdict(origin="verifier", score=state.reward, threshold=SUCCESS_REWARD, reasons=(reason,))


@cache
def _state_script() -> str:
    extract = (resources.files("sandbox.browser") / "elements.js").read_text(encoding="utf-8")
    options = dict(ELEMENT_OPTIONS, area=list(SETTINGS.area_px))
    # The instruction is what shows in the query: core.getUtterance() also names colours that only show as a swatch.
    return (
        "(() => {"
        f" const extract = ({extract.strip()});"
        " const query = document.getElementById('query');"
        " return {"
        "  instruction: query ? query.innerText.replace(/\\s+/g, ' ').trim() : '',"
        f"  elements: extract({json.dumps(options)}),"
        "  reward: WOB_DONE_GLOBAL ? WOB_RAW_REWARD_GLOBAL : 0,"
        "  done: WOB_DONE_GLOBAL"
        " };"
        "})()"
    )


def _entry_name(task: Task) -> str:
    if task.source != SOURCE or task.name not in task_file().tasks:
        raise TaskError(
            f"MiniWoB cannot run task {task.source}/{task.name}: it has source {SOURCE!r} and the names in "
            "sandbox/tasks/miniwob/tasks.yaml only."
        )
    return task.name


TASK_SOURCE = TaskSource(
    name=SOURCE,
    kind="page",
    load_tasks=load_tasks,
    page=MiniWobSource(),
    description=lambda task: of_page(task.name),
    has_oracle=lambda task: task_file().tasks[_entry_name(task)].oracle,
    contents=Path(__file__).with_name("contents.json"),
    is_known_by_first_screen=True,
    licence="MIT",
    origin="MiniWoB++ of the Farama Foundation, https://github.com/Farama-Foundation/miniwob-plusplus",
)
