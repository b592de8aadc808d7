"""Games as tasks in web pages: the task list, how an instance starts, what a state is worth, what the oracle would do. Satisfies PageTask.

Which tasks there are, with what goals and limits, is data: tasks.yaml. Rules, verifiers and oracles are the games' own: pages/*.js.
Every task comes twice: by its name it shows pixels only, by `<name>-elements` it lists what is on the board as elements too. Beside the
tasks of the file there are generated families, whose goals a seed draws: generated.py.

The pages judge by their own state; so a page whose files are not those of the recorded checksum is refused, before it is played and when
it is judged.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.actions import ACTION, Action
from sandbox.session import Verdict
from sandbox.tasks.games.generated import Family, facts_of, families, group_of, instance_of
from sandbox.tasks.games.references import GROUPS, compared_with
from sandbox.tasks.games.versions import PAGES, recorded_versions, verified
from sandbox.tasks.page_task import PageSettings, PageState, PageStepContext
from sandbox.tasks.supply import Facts
from sandbox.tasks.task import Task, first_seed
from sandbox.tasks.task_file import TaskFile, read_task_file
from sandbox.tasks.task_source import TaskSource
from warehouse.core.errors import ConfigError, SandboxError, TaskError
from warehouse.evaluation.game_scores import GameReference

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
    reference: Annotated[float, Field(gt=0, description="mean score of the oracle at the end of the task: sandbox/tasks/prove.py")]
    held_out: bool = False


class GamesFile(TaskFile[TaskEntry]):
    """tasks.yaml as a whole. The group `all` is every task of the file."""

    def names(self, group: str) -> tuple[str, ...]:
        """Names of a group's tasks in file order, without suffix. Raises ConfigError for an unknown group."""
        if group not in (*self.groups, "all"):
            known = ", ".join(f"{name}, {name}{ELEMENTS_SUFFIX}" for name in [*self.groups, "all"])
            raise ConfigError(f"The games have no task group {group!r}. Groups in sandbox/tasks/games/tasks.yaml: {known}.")
        return self.members(group, "The games")


@cache
def task_file() -> GamesFile:
    """The parsed tasks.yaml. Raises ConfigError where it is malformed, or names a game or a task that is not there."""
    parsed = read_task_file("sandbox.tasks.games", GamesFile)
    if unknown := sorted({entry.game for entry in parsed.tasks.values()} - set(recorded_versions())):
        raise ConfigError(f"sandbox/tasks/games/tasks.yaml names games that versions.json does not know: {', '.join(unknown)}.")
    return parsed


def load_tasks(group: str | None = None) -> dict[str, Task]:
    """Tasks by name, in file order. A group of tasks.yaml (`small`, …) or `all` gives tasks that show pixels only; with the suffix
    `-elements` the same tasks with elements; `generated` and `generated-small` are families, with the suffix as well; None gives every
    task both ways. Raises ConfigError for another."""
    if group is None:
        groups = ("all", "generated", "generated-small")
        return {name: task for suffix in ("", ELEMENTS_SUFFIX) for one in groups for name, task in load_tasks(one + suffix).items()}
    suffix = ELEMENTS_SUFFIX if group.endswith(ELEMENTS_SUFFIX) else ""
    group = group.removesuffix(suffix)
    generated = group_of(group)
    if generated is not None:
        return {name + suffix: _task(name + suffix, families()[name]) for name in generated}
    entries = task_file()
    return {name + suffix: _task(name + suffix, entries.tasks[name]) for name in entries.names(group)}


def _task(name: str, entry: TaskEntry | Family) -> Task:
    return Task(
        source=SOURCE,
        name=name,
        domain=DOMAIN,
        max_steps=entry.max_steps,
        held_out=isinstance(entry, TaskEntry) and entry.held_out,
        version=recorded_versions()[entry.game].version,
    )


def entry_of(task: Task) -> TaskEntry:
    """The entry that a task of tasks.yaml is made from. Raises TaskError for another."""
    name = task.name.removesuffix(ELEMENTS_SUFFIX)
    if task.source != SOURCE or name not in task_file().tasks:
        raise TaskError(
            f"The games cannot run task {task.source}/{task.name}: they have source {SOURCE!r} and the names in "
            f"sandbox/tasks/games/tasks.yaml and generated.yaml, each with or without {ELEMENTS_SUFFIX!r}."
        )
    return task_file().tasks[name]


def family_of(task: Task) -> Family | None:
    """The family that a generated task is; None for another task."""
    return families().get(task.name.removesuffix(ELEMENTS_SUFFIX)) if task.source == SOURCE else None


def facts(task: Task, seed: int) -> Facts | None:
    """Of an instance of a family; None for a task of tasks.yaml. Raises TaskError for a task that is not a game."""
    family = family_of(task)
    if family is None:
        entry_of(task)
        return None
    return facts_of(task, family, seed)


def game_of(task: Task) -> str:
    """Raises TaskError for a task that is not a game."""
    return (family_of(task) or entry_of(task)).game


class GamesSource:
    """PageTask for the games. Stateless."""

    ready_script = "document.readyState === 'complete' && typeof game === 'object'"
    state_script = (
        "(() => {"
        " const { instruction, elements, ...game } = window.game.state();"
        " const moves = Number(document.body.dataset.moves ?? 0);"
        " if (moves && !game.done && game.steps >= moves) Object.assign(game, { done: true, reason: 'no moves are left' });"
        " const told = moves ? `${instruction} You have ${moves} moves.` : instruction;"
        " return { instruction: told, elements, reward: game.reward, done: game.done, info: { game } };"
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
        game_of(task)
        return PageSettings(viewport_px=SIZE_PX, area_px=SIZE_PX, step_time_ms=STEP_TIME_MS, frame_time_ms=FRAME_TIME_MS)

    def url(self, task: Task) -> str:
        return (PAGES / f"{game_of(task)}.html").as_uri()

    def start_script(self, task: Task, seed: int) -> str:
        """Raises ConfigError where the game's files are not the recorded ones."""
        family = family_of(task)
        entry = instance_of(task, family, seed)[0] if family is not None else entry_of(task)
        board, moves = (seed, 0) if isinstance(entry, TaskEntry) else (entry.board, entry.moves)
        how = {
            "goal": entry.goal,
            "target": entry.target,
            "reference": entry.reference,
            "elements": task.name.endswith(ELEMENTS_SUFFIX),
            "checksum": verified(entry.game).checksum,
        }
        return f"(document.body.dataset.moves = {moves}, game.start({json.dumps(board)}, {entry.level}, {json.dumps(how)}))"

    def needs_fresh_page(self, task: Task) -> bool:
        return False

    def verdict(self, state: PageState) -> Verdict:
        """The page's own judgement: 1 when the goal is reached, less while it is not. Raises ConfigError where the game's files have been
        changed since it began."""
        game = state.info["game"]
        verified(str(game["game"]))
        reason = str(game["reason"]) or "the goal is not reached yet"
        return Verdict(origin="verifier", score=state.reward, threshold=1.0, reasons=(reason,), points=float(game["score"]))

    async def oracle_action(self, context: PageStepContext) -> Action | None:
        """Asks the game's oracle. Raises SandboxError where what it says is not an action."""
        hinted = await context.evaluate("game.hint()")
        if hinted is None:
            return None
        try:
            return ACTION.validate_python(hinted)
        except ValidationError as error:
            raise SandboxError(f"The oracle of {context.task.name} gave {hinted!r}, which is not an action: {error}") from error


def description(task: Task) -> str:
    """Game, difficulty and goal; of a family what its first instance asks. Raises TaskError for a task that is not a game."""
    if (drawn := facts(task, first_seed(task))) is not None:
        return drawn.instruction
    entry = entry_of(task)
    goal = entry.goal if entry.goal == "solve" else f"{entry.goal} {entry.target:g}"
    return f"{entry.game}, {entry.difficulty}: {goal}{', with elements' if task.name.endswith(ELEMENTS_SUFFIX) else ''}"


@cache
def score_references() -> dict[str, dict[str, GameReference]]:
    """By group; a task with elements is scored as the one without."""
    return {
        group: compared_with({name: (task, load_tasks(group + ELEMENTS_SUFFIX)[name + ELEMENTS_SUFFIX]) for name, task in tasks.items()})
        for group in GROUPS
        for tasks in [load_tasks(group)]
    }


TASK_SOURCE = TaskSource(
    name=SOURCE,
    kind="page",
    load_tasks=load_tasks,
    page=GamesSource(),
    facts=facts,
    description=description,
    variant_suffix=ELEMENTS_SUFFIX,
    references=score_references,
    licence="Apache-2.0",
    origin="games of this project",
)
