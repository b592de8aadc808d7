"""What games are scored beside: what random play, the oracles and people score at the tasks of the group `scored`, one of each game, in
references.json. benchmarks/game_references.py takes it; what is made of it is warehouse/evaluation/game_scores.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.tasks.task import Task
from warehouse.core.errors import ConfigError
from warehouse.evaluation.game_scores import GameReference

REFERENCES_FILE = Path(__file__).with_name("references.json")
GROUPS = ("scored",)
"""Groups with one task of each game, long enough that who plays better scores more: the short ones end with their goal, and random play,
which reaches it later, may have more points by then."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Taken(_Model):
    """Scores of one kind of player at one task."""

    scores: Annotated[tuple[float, ...], Field(min_length=1, description="in the game's own points, at the end of each episode")]
    split: Annotated[str, Field(description="split of the instances")]
    measured: Annotated[dict[str, str], Field(description="commit, date, machine")]

    @property
    def mean(self) -> float:
        return fmean(self.scores)


class TaskReferences(_Model):
    """Of one task."""

    game: str
    version: Annotated[str, Field(description="of the game: scores of another are not comparable")]
    max_steps: Annotated[int, Field(ge=1, description="every player had so many steps")]
    random: Annotated[Taken, Field(description="each step drawn evenly from the inputs that the game takes")]
    oracle: Annotated[Taken, Field(description="the game's own hints")]
    people: Annotated[Taken | None, Field(description="episodes in which a person decided every step; null where there are none")] = None


class _File(_Model):
    tasks: dict[str, TaskReferences]


@cache
def references() -> dict[str, TaskReferences]:
    """By the task's name, without suffix. Raises ConfigError where the file is malformed."""
    try:
        return _File.model_validate_json(REFERENCES_FILE.read_text(encoding="utf-8")).tasks
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"sandbox/tasks/games/references.json is not usable: {error}. Make it: python -m benchmarks.game_references --publish"
        ) from error


def compared_with(tasks: Mapping[str, Sequence[Task]]) -> dict[str, GameReference]:
    """What tasks are scored beside, by their id: of each name its variants. None of a game that has another version now."""
    found = {}
    for name, variants in tasks.items():
        of = references().get(name)
        for task in variants:
            if of is not None and (of.version, of.max_steps) == (task.version, task.max_steps):
                players = [each for each in (of.random, of.oracle, of.people) if each is not None]
                found[task.task_id] = GameReference(
                    game=of.game,
                    task=name,
                    random=of.random.mean,
                    oracle=of.oracle.mean,
                    people=None if of.people is None else of.people.mean,
                    best=max(score for each in players for score in each.scores),
                )
    return found
