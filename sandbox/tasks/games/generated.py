"""Generated games: of every game and level a family whose goal, target and moves a seed draws, on a board of its own. What the ranges are
is data: generated.yaml; how a game is played, and whether a goal is reached, is its page's business.

Targets lie where the game's oracle gets to on every board; `flywheel tasks supply games:generated` shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from random import Random
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sandbox.tasks.games.versions import PAGES, recorded_versions
from sandbox.tasks.supply import Facts, content_split, draw
from sandbox.tasks.task import Task
from warehouse.core.errors import ConfigError, TaskError
from warehouse.core.identity import stable_seed
from warehouse.core.plain_yaml import read_yaml

BOARDS = 2**31
WORDS: Mapping[str, str] = {
    "tile": "Reach the tile {}.",
    "score": "Score {} points.",
    "apples": "Eat {} apples.",
    "rows": "Clear {} rows.",
    "gems": "Clear {} gems.",
    "pairs": "Take {} pairs.",
    "shapes": "Put {} shapes into their outlines.",
    "cells": "Open {} cells.",
    "stars": "Catch {} stars.",
    "lines": "Clear {} full lines.",
}
"""What a page says of a goal, as far as games agree; a game's own words are below."""
OWN_WORDS: Mapping[tuple[str, str], str] = {
    ("merge", "tile"): "Make the number {}.",
    ("key", "solve"): "Free the key.",
    ("sokoban", "solve"): "Push every crate onto a mark.",
    ("loop", "solve"): "Join all ends of the pipes.",
    ("laser", "solve"): "Light all crystals with the beam.",
    ("mines", "solve"): "Dig up every cell that has no mine.",
}
OF_ONE: Mapping[str, str] = {"rows": "Clear a row.", "lines": "Clear 1 full line."}
_CONTROLS = re.compile(r'^    controls: "(.*)",$', re.MULTILINE)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GoalRange(_Model):
    """A goal with the targets that it may have."""

    goal: str
    targets: tuple[int, ...] = ()
    from_: Annotated[int | None, Field(alias="from")] = None
    to: int | None = None
    by: int | None = None
    points: Annotated[float, Field(gt=0, description="of score a unit of the target")] = 1.0

    @model_validator(mode="after")
    def _targets_or_range(self) -> GoalRange:
        if bool(self.targets) == (self.from_ is not None and self.to is not None and self.by is not None):
            raise ValueError(f"goal {self.goal}: give `targets`, or `from`, `to` and `by`")
        return self

    @property
    def choices(self) -> tuple[int, ...]:
        if self.from_ is None or self.to is None or self.by is None:
            return self.targets
        return tuple(range(self.from_, self.to + 1, self.by))


class Family(_Model):
    """A line of generated.yaml."""

    game: str
    level: Annotated[int, Field(ge=1)]
    difficulty: Annotated[float, Field(ge=0, le=1, description="of its easiest targets; the hardest are 0.1 above")]
    max_steps: Annotated[int, Field(ge=1, le=1000)]
    goals: tuple[GoalRange, ...]
    moves: tuple[int, int] | None = None
    boards: Annotated[tuple[int, ...], Field(description="seeds of different boards, of a level that has few; else every seed is one")] = ()


class _File(_Model):
    families: tuple[Family, ...]
    small: tuple[Family, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """What is played: `board` is the seed of the game itself; `moves` 0 means as many as the steps allow."""

    game: str
    level: int
    board: int
    goal: str
    target: int
    moves: int
    reference: float
    difficulty: float
    checksum: str

    @property
    def content(self) -> dict[str, Any]:
        return {
            "game": self.game,
            "files": self.checksum,
            "level": self.level,
            "board": self.board,
            "goal": self.goal,
            "target": self.target,
            "moves": self.moves,
        }

    @property
    def instruction(self) -> str:
        """As the page says it (pages/*.js), and then how many moves there are."""
        one = OF_ONE.get(self.goal) if self.target == 1 else None
        words = one or OWN_WORDS.get((self.game, self.goal)) or WORDS[self.goal]
        return " ".join(part for part in (words.format(self.target), controls(self.game), moves_words(self.moves)) if part)


def moves_words(moves: int) -> str:
    return f"You have {moves} moves." if moves else ""


@cache
def families() -> Mapping[str, Family]:
    """By name, the small ones last. Raises ConfigError where the file is malformed or names an unknown game."""
    text = (resources.files("sandbox.tasks.games") / "generated.yaml").read_text(encoding="utf-8")
    try:
        parsed = _File.model_validate(read_yaml(text))
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"sandbox/tasks/games/generated.yaml is malformed: {error}") from error
    found = {f"{family.game}-goals-{family.level}": family for family in parsed.families}
    found |= {f"{family.game}-goals-small": family for family in parsed.small}
    if unknown := sorted({family.game for family in found.values()} - set(recorded_versions())):
        raise ConfigError(f"sandbox/tasks/games/generated.yaml names games that versions.json does not know: {', '.join(unknown)}.")
    return found


def group_of(group: str) -> tuple[str, ...] | None:
    """The families of the groups `generated` and `generated-small`; None for another group."""
    if group not in ("generated", "generated-small"):
        return None
    return tuple(name for name in families() if name.endswith("-small") == (group == "generated-small"))


@cache
def controls(game: str) -> str:
    """What a game's script says of its controls. Raises ConfigError where it says nothing."""
    found = _CONTROLS.search((PAGES / f"{game}.js").read_text(encoding="utf-8"))
    if found is None:
        raise ConfigError(f'The game {game!r} states no controls: its definition needs a line `    controls: "…",` after four spaces.')
    return found[1]


def instance_of(task: Task, family: Family, seed: int) -> tuple[Instance, dict[str, int]]:
    """What a seed of a family plays, and the candidates of other splits before it, by reason. Raises TaskError."""
    checksum = recorded_versions()[family.game].checksum

    def make(rng: Random, board: int | None = None) -> Instance:
        goal = rng.choice(family.goals)
        at = rng.randrange(len(goal.choices))
        moves = rng.randint(*family.moves) if family.moves else 0
        return Instance(
            game=family.game,
            level=family.level,
            board=rng.randrange(BOARDS) if board is None else board,
            goal=goal.goal,
            target=goal.choices[at],
            moves=moves,
            reference=goal.choices[at] * goal.points,
            difficulty=family.difficulty + 0.1 * at / max(len(goal.choices) - 1, 1),
            checksum=checksum,
        )

    if not family.boards:
        return draw(task, seed, make)
    split = task.split(seed)
    # What else is drawn hangs on the board, so that it falls into one split whole; the seeds of a split take its boards by turns.
    of_split = [made for made in _on_boards(task, family, make) if content_split(task, made.content) is split]
    if not of_split:
        raise TaskError(f"{task.name} has no board for the split {split}; give it more in sandbox/tasks/games/generated.yaml.")
    return of_split[sum(task.split(other) is split for other in range(seed)) % len(of_split)], {}


def _on_boards(task: Task, family: Family, make: Callable[[Random, int], Instance]) -> list[Instance]:
    return [make(Random(stable_seed(task.source, task.name, "board", board)), board) for board in family.boards]


def facts_of(task: Task, family: Family, seed: int) -> Facts:
    made, dropped = instance_of(task, family, seed)
    version = recorded_versions()[made.game]
    return Facts(
        instruction=made.instruction,
        content=made.content,
        difficulty=round(made.difficulty, 3),
        dropped=dropped,
        provenance={
            "game": made.game,
            "level": str(made.level),
            "goal": made.goal,
            "version": version.version,
            "checksum": version.checksum,
        },
    )
