"""Which instances of a task are kept out of training: the index contents.json of a source whose seeds simply draw, which lies where its
TaskSource says. Read here; made by sandbox/tasks/contents.py. Generators that draw until the content falls into the split of a seed need
none: sandbox/tasks/supply.py.

The *content* of an instance is what makes it what it is. In a page it is what a policy sees first: the instruction and the elements,
without where they lie, which is up to the machine's fonts. Seeds of one content are one instance played twice, so an instance is in a split
by its content: the index reserves contents, and an instance of another seed is drawn again where one of them comes up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandbox.tasks.registry import SOURCES
from warehouse.core.errors import ConfigError, TaskError
from warehouse.core.identity import content_id, stable_seed

DIGEST_CHARS = 8
"""Of a content id: 180 of a task are kept apart from all others with 32 bits."""
MAX_DRAWS = 200
"""Instances that are drawn for a seed until one is not reserved."""

Made = TypeVar("Made")


class TaskContents(BaseModel):
    """What a scan of a task's first seeds found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_seeds: Annotated[int, Field(ge=1, description="seeds that were looked at")]
    num_contents: Annotated[int, Field(ge=1, description="different contents among them")]
    reserved: Annotated[dict[str, dict[str, int]], Field(description="split → start of a content's id → the first seed that shows it")] = {}

    @property
    def is_reported(self) -> bool:
        """Whether the task has instances to report. Of one with too few contents all are `train`, or `eval` where it is held out."""
        return "holdout" in self.reserved


class Contents(BaseModel):
    """contents.json as a whole. `version` is that of the source's tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    tasks: dict[str, TaskContents]


class Reserved:
    """One task's reserved instances by seed, and by content those of all tasks of its source: some ask the same."""

    def __init__(self, contents: TaskContents, split_of_digest: Mapping[str, str]) -> None:
        self.contents = contents
        self.split_of_seed = {seed: split for split, found in contents.reserved.items() for seed in found.values()}
        self._split_of_digest = split_of_digest

    def seeds(self, split: str) -> list[int]:
        """In order, each of another content."""
        return sorted(self.contents.reserved.get(split, {}).values())

    def refuses(self, seed: int, split: str, content: str) -> bool:
        """Whether an instance that was started is another split's by its content (`screen_content`), its seed not being reserved."""
        return seed not in self.split_of_seed and self._split_of_digest.get(short(content), split) != split


def reserved_of(source: str, name: str) -> Reserved | None:
    """None for a source without an index, and for a task that its index does not know. Raises ConfigError for a malformed index."""
    path = _index_of(source)
    return None if path is None else _reserved(path, name)


def is_indexed(source: str) -> bool:
    return _index_of(source) is not None


def _index_of(source: str) -> Path | None:
    return SOURCES[source].contents if source in SOURCES else None


def contents_of(source: str) -> Contents:
    """Raises ConfigError where a source has no index, or one that cannot be read."""
    if (path := SOURCES[source].contents) is None:
        raise ConfigError(f"The task source {source!r} has no index of reserved instances.")
    return read_contents(path)


@cache
def _reserved(path: Path, name: str) -> Reserved | None:
    found = read_contents(path).tasks.get(name)
    return None if found is None else Reserved(found, _splits_of_digests(path))


@cache
def _splits_of_digests(path: Path) -> Mapping[str, str]:
    """Start of a content's id → the split that it is reserved for, of all tasks of an index."""
    tasks = read_contents(path).tasks.values()
    return {digest: split for task in tasks for split, found in task.reserved.items() for digest in found}


@cache
def read_contents(path: Path) -> Contents:
    """Raises ConfigError where a contents.json is missing or malformed."""
    try:
        return Contents.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. `python -m sandbox.tasks.contents SOURCE` makes it again.") from error


def redrawn_seed(source: str, name: str, seed: int, draw: int) -> int:
    """What is drawn for a seed: first the seed itself."""
    return stable_seed("drawn", source, name, seed, draw) if draw else seed


def unreserved(source: str, name: str, seed: int, split: str, make: Callable[[int], Made], content: Callable[[Made], str]) -> Made:
    """The first instance drawn for a seed of a split whose content another split has not reserved. Raises TaskError where there is none."""
    reserved = reserved_of(source, name)
    for draw in range(MAX_DRAWS):
        made = make(redrawn_seed(source, name, seed, draw))
        if reserved is None or not reserved.refuses(seed, split, content(made)):
            return made
    raise nothing_left(name, seed)


def nothing_left(name: str, seed: int) -> TaskError:
    return TaskError(f"{name}: seed {seed} gave nothing but reserved contents in {MAX_DRAWS} draws; make the source's contents.json again.")


def screen_content(instruction: str, elements: Iterable[tuple[str, str, Iterable[str]]], output: str = "") -> str:
    """Id of what a first screen says: instruction, (role, text, states) of its elements in their order, and what a tool printed. Runs of
    white space count as one space; coordinates and pixels do not count."""
    seen = [[role, _plain(text), list(states)] for role, text, states in elements]
    return content_id("content", [_plain(instruction), seen, *([_plain(output)] if output.strip() else [])])


def short(content: str) -> str:
    """A content's id as the index writes it."""
    return content.rpartition("-")[2][:DIGEST_CHARS]


def _plain(text: str) -> str:
    return " ".join(text.split())
