"""The families by level: which corpus each asks about, in what window, and by what shape of question. A literal table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sandbox.tasks.browsing.chain import Screen, Shape, composed
from sandbox.tasks.browsing.corpora import corpus
from sandbox.tasks.browsing.instance import Instance
from sandbox.tasks.browsing.lookup import LOOKUPS
from sandbox.tasks.task import Task

SMALL_PX = (480, 280)
PAGE_PX = (640, 480)
BOOK_PX = (640, 340)
"""Windows, by how much is to be seen at once: the page of a book is text all over."""
_PLACES = {"country": 2.0, "city": 2.0, "element": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One task's entry: a way of looking up, or the shape of a question."""

    corpus: Literal["almanac", "handbook"] = "almanac"
    lookup: str = ""
    shape: Shape | None = None
    size_px: tuple[int, int] = PAGE_PX

    def instance(self, task: Task, seed: int, screen: Screen | None = None, skip: int = 0) -> Instance:
        """Raises CorpusMissing; SandboxError where no candidate passes."""
        pages = corpus(self.corpus)
        if self.shape is None:
            return LOOKUPS[self.lookup](pages, task, seed)
        return composed(pages, self.shape, task, seed, screen, skip)


FAMILIES: Mapping[str, Family] = {
    "lookup-read": Family(lookup="read", size_px=SMALL_PX),
    "lookup-open": Family(lookup="open-and-read", size_px=SMALL_PX),
    "lookup-follow": Family(lookup="follow-and-read", size_px=SMALL_PX),
    "lookup-search": Family(lookup="search-and-read", size_px=SMALL_PX),
    "lookup-browse": Family(lookup="browse-and-read"),
    "conditions-2": Family(shape=Shape(kinds=_PLACES, num_conditions=(2,), difficulty=0.4)),
    "conditions-3": Family(shape=Shape(kinds=_PLACES, num_conditions=(3,), difficulty=0.5)),
    "chain-2": Family(
        shape=Shape(
            kinds={"country": 2, "city": 3, "language": 2, "currency": 2, "element": 1}, num_conditions=(2, 3), depth=2, difficulty=0.7
        )
    ),
    "chain-3": Family(
        shape=Shape(kinds={"country": 2, "city": 3, "language": 2, "currency": 2}, num_conditions=(2, 3), depth=3, difficulty=0.9)
    ),
    "docs-lookup": Family(corpus="handbook", lookup="browse-and-read", size_px=BOOK_PX),
    "docs-conditions": Family(corpus="handbook", size_px=BOOK_PX, shape=Shape(kinds={"package": 1}, num_conditions=(3,), difficulty=0.6)),
    "docs-chain-2": Family(
        corpus="handbook", size_px=BOOK_PX, shape=Shape(kinds={"package": 2, "section": 1}, num_conditions=(2, 3), depth=2, difficulty=0.8)
    ),
}
