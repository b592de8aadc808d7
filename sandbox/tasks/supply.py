"""What a generator of tasks says of an instance before anything runs: the seam between sources that generate their tasks and the code that
counts, compares, lists or chooses them. And how a generator draws: candidates until one passes, each refusal with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, TypeVar

from sandbox.tasks.task import Split, Task, split_at
from warehouse.core.errors import TaskError
from warehouse.core.identity import content_id, stable_fraction, stable_seed

OTHER_SPLIT = "belongs to another split"
"""Why a good candidate is not taken: its content falls into another split than the seed. Nothing is wrong with it."""
MAX_CANDIDATES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One generated instance. The same task and seed give the same facts on every machine."""

    instruction: str
    content: Any
    """JSON-able: all that makes the instance what it is, and nothing else. Two instances of equal content are duplicates."""
    difficulty: float
    """0 easy to 1 hard, on the source's own scale."""
    provenance: Mapping[str, str]
    """What it was made from: corpus, pages, functions, levels."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Candidates that were refused before this one, by reason."""
    reference: str | None = None
    """What is right, in words for a judge that may err; None where only the verifier knows. Never for the agent."""

    @property
    def content_id(self) -> str:
        return content_id("instance", self.content)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a candidate makes no task."""

    reason: str


class Candidate(Protocol):
    @property
    def content(self) -> Any:
        """As Facts.content."""
        ...


C = TypeVar("C", bound=Candidate)


def content_split(task: Task, content: Any) -> Split:
    """The split that a content belongs to, whatever the seed: so that no two splits share one. Proportions are those of seeds."""
    return split_at(stable_fraction("content", task.source, content), held_out=task.held_out)


def draw(task: Task, seed: int, make: Callable[[Random], C | Refusal]) -> tuple[C, dict[str, int]]:
    """The first candidate that is not refused and whose content is of the seed's split, with what was refused before it. Raises TaskError
    where there is none among MAX_CANDIDATES."""
    dropped: Counter[str] = Counter()
    for number in range(MAX_CANDIDATES):
        made = make(Random(stable_seed(task.source, task.name, seed, number)))
        if isinstance(made, Refusal):
            dropped[made.reason] += 1
        elif content_split(task, made.content) is not task.split(seed):
            dropped[OTHER_SPLIT] += 1
        else:
            return made, dict(dropped)
    raise TaskError(f"{task.name} gives no instance for seed {seed}: of {MAX_CANDIDATES} candidates {dict(dropped)}; take another seed.")
