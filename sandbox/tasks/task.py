"""What a task is, and which split each of its episodes belongs to. Where tasks come from is their source's business (sandbox/miniwob).

A task is a specification without a seed; a seed makes an instance of it. The split of an instance is fixed by its content before anything
runs, so no later choice can move an instance from `holdout` to `train`: where an instance is made without a page, its generator draws until
the content falls into the split of the seed (supply.py); where only the page knows, an index says which seeds are reserved, and the session
refuses their contents to every other seed (reserved.py). docs/evaluation.md has a table of the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import count, islice
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sandbox.tasks.registry import SOURCES
from sandbox.tasks.reserved import reserved_of
from warehouse.core.errors import TaskError
from warehouse.core.identity import content_id, stable_fraction


class Split(StrEnum):
    """`train` is learned from, `eval` is chosen by, in development too; `holdout` only reports an iteration, `report` only a release."""

    TRAIN = "train"
    EVAL = "eval"
    HOLDOUT = "holdout"
    REPORT = "report"


SPLIT_RULE = 2
"""Part of every task's id, so that instances of before and after a change of the rule are not taken for each other. Goes up with the edges
below, with how an instance's content is read, and with a contents.json that is made again. 2: splits by content, and `report`."""
SPLIT_EDGES = {Split.TRAIN: 0.7, Split.REPORT: 0.8, Split.EVAL: 0.9, Split.HOLDOUT: 1.0}
"""Upper edges of the hash fraction: 70 % train, 10 % each of the others."""
HELD_OUT_EDGES = {Split.EVAL: 0.35, Split.REPORT: 0.65, Split.HOLDOUT: 1.0}
"""Those of a task that is never trained on."""
FEW = 100
"""A split with fewer seeds is drawn from its list; of a larger one any seed is tried."""


class Task(BaseModel):
    """A task's specification, frozen: what is stored. Its id is the hash of all that follows, and of the rule of splits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[str, Field(description="which task source runs it, e.g. miniwob")]
    name: Annotated[str, Field(description="name inside the source, e.g. click-button")]
    domain: Annotated[str, Field(description="which specialist learns it, e.g. pointing")]
    max_steps: Annotated[int, Field(ge=1, le=1000, description="an episode is truncated after so many steps")]
    held_out: Annotated[bool, Field(description="whole task never trained on; all its instances are eval or holdout")] = False
    version: Annotated[str, Field(description="version of the source that defines the page and its verifier")] = "1"

    @property
    def task_id(self) -> str:
        return content_id("task", {**self.model_dump(mode="json"), "splits": SPLIT_RULE})

    def split(self, seed: int) -> Split:
        """The split of one instance. Depends on source, name and seed only (where a task has one instance, not on the seed), so a changed
        step limit moves nothing."""
        return self.split_of_seeds()(seed)

    def split_of_seeds(self) -> Callable[[int], Split]:
        """`split` for many seeds: the source is looked up once."""
        if (reserved := reserved_of(self.source, self.name)) is not None:
            others = Split.EVAL if self.held_out else Split.TRAIN
            return lambda seed: Split(reserved.split_of_seed.get(seed, others))
        name = self.name.removesuffix(SOURCES[self.source].variant_suffix if self.source in SOURCES else "")
        if has_one_instance(self):
            only = split_at(stable_fraction("split", self.source, name, 0), held_out=True) if self.held_out else Split.TRAIN
            return lambda seed: only
        return lambda seed: split_at(stable_fraction("split", self.source, name, seed), held_out=self.held_out)

    def seeds(self, split: Split, num: int, *, skip: int = 0) -> list[int]:
        """The `num` smallest seeds of a split, after skipping `skip` of them: fewer, or none, where the task has no more instances in it.
        Raises ValueError for an unknown split."""
        split = Split(split)
        if (self.held_out and split is Split.TRAIN) or (has_one_instance(self) and self.split(0) is not split):
            return []
        reserved = reserved_of(self.source, self.name)
        if reserved is not None and split is not Split.TRAIN:
            return reserved.seeds(split)[skip : skip + num]
        split_of = self.split_of_seeds()
        members: Iterator[int] = (seed for seed in count() if split_of(seed) is split)
        return list(islice(members, skip, skip + num))


def has_one_instance(task: Task) -> bool:
    """Whatever the seed."""
    return task.source in SOURCES and SOURCES[task.source].has_one_instance


def first_seed(task: Task) -> int:
    """Of the first instance that may be looked at: of `train`, or of `eval` for a held-out task; never of what is only reported."""
    return task.seeds(Split.EVAL if task.held_out else Split.TRAIN, 1)[0]


def drawn_seed(task: Task, split: Split | None, draw: Callable[[int], int]) -> int:
    """The seed of an instance of a split, or of any where it is None. `draw(n)` gives a number below n. Raises TaskError where the split
    has no instance."""
    if split is not None and not (seeds := task.seeds(split, FEW)):
        why = "is held out" if task.held_out else "has too few different instances"
        raise TaskError(f"{task.name!r} {why}, so it has none of split {split.value!r}: ask for another split.")
    if split is not None and len(seeds) < FEW:
        return seeds[draw(len(seeds))]
    while True:
        seed = draw(2**31)
        if split is None or task.split(seed) is split:
            return seed


def split_at(fraction: float, *, held_out: bool = False) -> Split:
    """The split of a hash fraction in [0, 1)."""
    return next(split for split, edge in (HELD_OUT_EDGES if held_out else SPLIT_EDGES).items() if fraction < edge)
