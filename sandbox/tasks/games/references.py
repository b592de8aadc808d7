"""What games are scored beside: the scores of random play, of the oracles and of people at the tasks of the groups `scored` and `small`,
as they were taken. The file is references.json; benchmarks/game_references.py makes it. What is made of it is
warehouse/evaluation/game_scores.py.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from warehouse.core.errors import ConfigError

REFERENCES_FILE = Path(__file__).with_name("references.json")
GROUPS = ("scored", "small")
"""Groups with one task of each game."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Taken(_Model):
    """Scores of one kind of player at one task, an episode each."""

    scores: Annotated[tuple[float, ...], Field(min_length=1, description="in the game's own points, at the end of each episode")]
    split: Annotated[str, Field(description="split of the instances")]
    measured: Annotated[dict[str, str], Field(description="commit, date and machine; of people also who took them, and how many they were")]

    @property
    def mean(self) -> float:
        return fmean(self.scores)


class TaskReferences(_Model):
    """Of one task. Null where nobody has played it."""

    game: str
    version: Annotated[str, Field(description="of the game: scores of another are not comparable")]
    max_steps: Annotated[int, Field(ge=1, description="every player had so many steps")]
    random: Annotated[Taken | None, Field(description="each step drawn evenly from the inputs that the game takes")] = None
    oracle: Annotated[Taken | None, Field(description="the game's own hints, through the same input as a policy")] = None
    people: Taken | None = None


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
