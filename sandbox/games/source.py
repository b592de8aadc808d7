"""Games as tasks in web pages: the task list, how an instance starts, what a state is worth, what the oracle would do. Satisfies PageTask.

Which tasks there are, with what goals and limits, is data: tasks.yaml. Rules, verifiers and oracles are the games' own: pages/*.js.
Every task comes twice: by its name it shows pixels only, by `<name>-elements` it lists what is on the board as elements too.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.actions import ACTION, Action
from sandbox.games.versions import PAGES, recorded_versions
from sandbox.page_task import PageMoment, PageSettings, PageState
from sandbox.session import Verdict
from sandbox.task import Task
from warehouse.errors import ConfigError, SandboxError, TaskError

SOURCE = "games"
DOMAIN = "games"
ELEMENTS_SUFFIX = "-elements"
SIZE_PX = (320, 360)
STEP_TIME_MS = 150.0
"""Page time of a step: what a turn's animation takes, and the snake for a cell."""
FRAME_TIME_MS = 50.0


class TaskEntry(BaseModel):
    """One task's line in tasks.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    game: Annotated[str, Field(description="whose page is played")]
    difficulty: Literal["easy", "medium", "hard"]
    level: Annotated[int, Field(ge=1, description="which of the game's levels")]
    goal: Annotated[str, Field(description="which of the game's goals")]
    target: Annotated[float, Field(gt=0, description="what the goal's measure has to reach")]
    max_steps: Annotated[int, Field(ge=1, le=1000)]
    reference: Annotated[float, Field(gt=0, description="mean score of the oracle at the end of the task: sandbox/prove.py")]
    held_out: bool = False


class TaskFile(BaseModel):
    """tasks.yaml as a whole. The group `all` is every task of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: dict[str, tuple[str, ...]]
    tasks: dict[str, TaskEntry]

    def members(self, group: str) -> tuple[str, ...]:
        """Names of a group's tasks in file order, without suffix. Raises ConfigError for an unknown group."""
        if group == "all":
            return tuple(self.tasks)
        if group not in self.groups:
            known = ", ".join(f"{name}, {name}{ELEMENTS_SUFFIX}" for name in [*self.groups, "all"])
            raise ConfigError(f"The games have no task group {group!r}. Groups in sandbox/games/tasks.yaml: {known}.")
        return self.groups[group]


@cache
def task_file() -> TaskFile:
    """The parsed tasks.yaml. Raises ConfigError where it is malformed, or names a game or a task that is not there."""
    text = (resources.files("sandbox.games") / "tasks.yaml").read_text(encoding="utf-8")
    try:
        parsed = TaskFile.model_validate(yaml.safe_load(text))
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"sandbox/games/tasks.yaml is malformed: {error}") from error
    for group, names in parsed.groups.items():
        if unknown := sorted(set(names) - set(parsed.tasks)):
            raise ConfigError(f"Group {group!r} of sandbox/games/tasks.yaml names tasks without an entry: {', '.join(unknown)}.")
    if unknown := sorted({entry.game for entry in parsed.tasks.values()} - set(recorded_versions())):
        raise ConfigError(f"sandbox/games/tasks.yaml names games that versions.json does not know: {', '.join(unknown)}.")
    return parsed


def load_tasks(group: str | None = None) -> dict[str, Task]:
    """Tasks by name, in file order. A group of tasks.yaml (`small`, …) or `all` gives tasks that show pixels only; with the suffix
    `-elements` the same tasks with elements; None gives every task both ways. Raises ConfigError for another."""
    entries = task_file()
    if group is None:
        return load_tasks("all") | load_tasks("all" + ELEMENTS_SUFFIX)
    suffix = ELEMENTS_SUFFIX if group.endswith(ELEMENTS_SUFFIX) else ""
    return {
        name + suffix: Task(
            source=SOURCE,
            name=name + suffix,
            domain=DOMAIN,
            max_steps=entries.tasks[name].max_steps,
            held_out=entries.tasks[name].held_out,
            version=recorded_versions()[entries.tasks[name].game].version,
        )
        for name in entries.members(group.removesuffix(ELEMENTS_SUFFIX))
    }


def entry_of(task: Task) -> TaskEntry:
    """The entry that a task is made from. Raises TaskError for a task that is not a game."""
    name = task.name.removesuffix(ELEMENTS_SUFFIX)
    if task.source != SOURCE or name not in task_file().tasks:
        raise TaskError(
            f"The games cannot run task {task.source}/{task.name}: they have source {SOURCE!r} and the names in sandbox/games/tasks.yaml, "
            f"each with or without {ELEMENTS_SUFFIX!r}."
        )
    return task_file().tasks[name]


class GamesSource:
    """PageTask for the games. Stateless."""

    ready_script = "document.readyState === 'complete' && typeof game === 'object'"
    state_script = (
        "(() => {"
        " const { instruction, elements, ...game } = window.game.state();"
        " return { instruction, elements, reward: game.reward, done: game.done, info: { game } };"
        "})()"
    )
    """Transition.info["game"] is the GameState but for instruction and elements, which are in the observation."""

    @property
    def root(self) -> Path:
        return PAGES

    @property
    def environment(self) -> str:
        games = recorded_versions()
        return f"games {len(games)}, " + " ".join(f"{name} {version.version}" for name, version in games.items())

    def settings(self, task: Task) -> PageSettings:
        entry_of(task)
        return PageSettings(viewport_px=SIZE_PX, area_px=SIZE_PX, step_time_ms=STEP_TIME_MS, frame_time_ms=FRAME_TIME_MS)

    def url(self, task: Task) -> str:
        return (PAGES / f"{entry_of(task).game}.html").as_uri()

    def start_script(self, task: Task, seed: int) -> str:
        entry = entry_of(task)
        how = {
            "goal": entry.goal,
            "target": entry.target,
            "reference": entry.reference,
            "elements": task.name.endswith(ELEMENTS_SUFFIX),
            "checksum": recorded_versions()[entry.game].checksum,
        }
        return f"game.start({json.dumps(seed)}, {entry.level}, {json.dumps(how)})"

    def needs_fresh_page(self, task: Task) -> bool:
        return False

    def verdict(self, state: PageState) -> Verdict:
        """The page's own judgement: 1 when the goal is reached, less while it is not."""
        reason = str(state.info["game"]["reason"]) or "the goal is not reached yet"
        return Verdict(origin="verifier", score=state.reward, threshold=1.0, reasons=(reason,))

    async def hint(self, moment: PageMoment) -> Action | None:
        """Asks the game's oracle. Raises SandboxError where what it says is not an action."""
        hinted = await moment.evaluate("game.hint()")
        if hinted is None:
            return None
        try:
            return ACTION.validate_python(hinted)
        except ValidationError as error:
            raise SandboxError(f"The oracle of {moment.task.name} gave {hinted!r}, which is not an action: {error}") from error
