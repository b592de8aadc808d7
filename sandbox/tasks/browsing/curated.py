"""A file of questions that a model has screened and put into other words: written by `python -m sandbox.tasks.browsing.curate`, and read by
every process of a run that has FLYWHEEL_BROWSING_QUESTIONS set to it. Which candidate of a seed is asked, and in which words, is then the
file's word; what is right stays the corpus's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.tasks.browsing import rewriting
from sandbox.tasks.browsing.instance import Instance
from sandbox.tasks.task import Task
from warehouse.core.errors import ConfigError

VARIABLE = "FLYWHEEL_BROWSING_QUESTIONS"
DIGEST_LETTERS = 12


class Curated(BaseModel):
    """One line of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    seed: int
    skip: Annotated[int, Field(ge=0, description="so many candidates that passed the rules were refused by the model")] = 0
    question: Annotated[str, Field(description="empty: as by rule")] = ""
    model: str


class _Questions(NamedTuple):
    digest: str
    entries: Mapping[tuple[str, int], Curated]


@lru_cache(maxsize=4)
def _read(path: Path) -> _Questions:
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{VARIABLE} is {str(path)!r}, which cannot be read ({error}); unset it, or name a file of questions.") from error
    entries = {}
    for number, line in enumerate(lines, start=1):
        try:
            entry = Curated.model_validate_json(line)
        except ValidationError as error:
            raise ConfigError(f"{path}, line {number}, is not a curated question: {error}") from error
        entries[entry.task, entry.seed] = entry
    return _Questions(hashlib.sha256(content).hexdigest()[:DIGEST_LETTERS], entries)


def _entry(task: Task, seed: int) -> Curated | None:
    path = os.environ.get(VARIABLE)
    return _read(Path(path)).entries.get((task.name, seed)) if path else None


def digest() -> str | None:
    """Of the file, which says what a seed means; None where there is none. Raises ConfigError for one that cannot be read."""
    path = os.environ.get(VARIABLE)
    return _read(Path(path)).digest if path else None


def skipped(task: Task, seed: int) -> int:
    """How many candidates to pass over. Raises ConfigError for a malformed file."""
    entry = _entry(task, seed)
    return entry.skip if entry is not None else 0


def reworded(task: Task, seed: int, instance: Instance) -> Instance:
    """In the file's words, where it has any. Raises ConfigError for words that leak the answer or lose what leads to it."""
    entry = _entry(task, seed)
    if entry is None or not entry.question:
        return instance
    try:
        return rewriting.reworded(instance, entry.question, entry.model)
    except ValueError as error:
        raise ConfigError(f"{os.environ[VARIABLE]}: the wording of {task.name}, seed {seed}, cannot be used: {error}. Fix it.") from error
