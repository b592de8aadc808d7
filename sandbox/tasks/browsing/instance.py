"""One question: the instruction, where the agent starts, what is right, and the way that an oracle goes. And how seeds become choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from sandbox.tasks.browsing.site import Corpus
from sandbox.tasks.task import Split, Task
from warehouse.core.identity import stable_seed

MAX_RANKED_SEED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One question of a family."""

    corpus: Corpus
    question: str
    answer: str
    """As the page shows it."""
    forms: tuple[str, ...]
    """All that is right, in normal form (answers.py)."""
    start: str
    """Path of the page that is shown first."""
    route: tuple[str, ...]
    """Paths of the pages to the answer, a click apart, `start` first; on the last the answer is read."""
    beside: str = ""
    """What stands in the answer's row, on a page about many things."""
    typed: str = ""
    """What the oracle asks the site's search, where its way leads over it: then `route` is the start and the page that is found."""
    names: tuple[str, ...] = ()
    """What the question must not say: the answer, and what leads to it."""
    worded_by: str = "rule"
    content: Mapping[str, Any]
    """What makes the question what it is (Facts.content)."""
    given_bits: tuple[float, ...] = ()
    """Distinctiveness of each condition that is said (Condition.bits_given)."""
    difficulty: float
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Candidates that were refused before this one, by reason."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Conditions on its entities that were not said, by reason."""


def seeded(task: Task, seed: int, attempt: int = 0) -> Random:
    """The same choices for the same task, seed and attempt, whatever its limits."""
    return Random(stable_seed(task.source, task.name, seed, attempt))


_ranks: dict[tuple[str, str, bool], list[tuple[Split, int]]] = {}


def rank(task: Task, seed: int) -> int:
    """How many smaller seeds its split has: seeds of a split count up from 0 without a gap, so that instances may be dealt out like cards.
    Of a huge seed, a number without that virtue."""
    if seed >= MAX_RANKED_SEED or seed < 0:
        return stable_seed("rank", task.name, seed)
    known = _ranks.setdefault((task.source, task.name, task.held_out), [])
    if len(known) <= seed:
        counts = {split: sum(each is split for each, _ in known) for split in Split}
        while len(known) <= seed:
            split = task.split(len(known))
            known.append((split, counts[split]))
            counts[split] += 1
    return known[seed][1]
