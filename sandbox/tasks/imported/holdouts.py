"""What one task set holds out is held out of every other: a benchmark that is imported twice, under two names or in two formats, is not
trained on by the second. Looked up when tasks are listed, so the order of imports does not matter. Which split a task is in without this is
collecting.py's and sandbox/tasks/task.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

from sandbox.tasks.imported.spec import TaskSpec, fill
from sandbox.tasks.imported.store import TaskSet, read_set, read_version, set_names
from warehouse.core.home import Home
from warehouse.core.identity import content_id

ABOUT = frozenset({"kind", "files", "assets", "folders", "setup", "packages", "device_setup", "website"})
"""Fields that say what an instruction is about. How it is checked, solved, named and bounded makes no other task of it."""


@dataclass(frozen=True, slots=True)
class Holdouts:
    """Which set of a home holds what out."""

    set_of: Mapping[str, str]
    """By what is asked (_asked)."""

    @classmethod
    def read(cls, home: Home | None = None, *, without: str | None = None) -> Self:
        """Of all sets but the one named. Raises ConfigError for a set that cannot be read: what it holds out is not known then."""
        return cls.of(read_set(name, home) for name in set_names(home) if name != without)

    @classmethod
    def of(cls, sets: Iterable[TaskSet]) -> Self:
        return cls({asked: each.name for each in sets for asked in _held_out_ids(each.folder, each.name, each.set_id)})

    def holder(self, spec: TaskSpec) -> str | None:
        """A set that holds this out, or an instance of it. None for a page of an installed source: its seeds are in splits."""
        found = (self.set_of[asked] for asked in (*_asked(spec), *_asked(spec, ABOUT)) if asked in self.set_of)
        return None if spec.kind == "page" else min(found, default=None)


@lru_cache(maxsize=64)
def _held_out_ids(folder: Path, name: str, set_id: str) -> frozenset[str]:
    """What a version of a set holds out; it never changes, so it is looked through once.

    Of a benchmark (imported with --held-out) the words alone count, since another import of it may find other files; of a set of which a
    part is held out, the words with what they are about, since its tasks may all say the same."""
    version = read_version(folder, name, set_id)
    about = frozenset[str]() if version.manifest.get("held_out") else ABOUT
    return frozenset(asked for task in version.tasks.values() if task.held_out for asked in _asked(task.spec, about))


def _asked(spec: TaskSpec, about: frozenset[str] = frozenset()) -> Iterator[str]:
    """Hashes of what a task asks, with these fields or by its words alone: one for each row of its parameters."""
    data = {**spec.model_dump(mode="json", include=set(about)), "instruction": spec.instruction}
    for row in spec.params or ({},):
        filled = fill(data, row)
        yield content_id("asked", {**filled, "instruction": " ".join(filled["instruction"].split()).casefold()})
