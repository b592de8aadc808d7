"""What a task is, and which split each of its episodes belongs to. Where tasks come from is their source's business (sandbox/miniwob).

A task is a specification without a seed; a seed makes an instance of it. The split of an instance is fixed by content hash before
anything runs, so no later choice can move an instance from `holdout` to `train`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import count, islice
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from warehouse.identity import content_id, stable_fraction


class Split(StrEnum):
    """`train` is learned from, `eval` is chosen by, `holdout` is only ever reported."""

    TRAIN = "train"
    EVAL = "eval"
    HOLDOUT = "holdout"


SPLIT_EDGES = {Split.TRAIN: 0.8, Split.EVAL: 0.9, Split.HOLDOUT: 1.0}
"""Upper edges of the hash fraction: 80 % train, 10 % eval, 10 % holdout."""

WHOLE = frozenset({"imported"})
"""Sources whose tasks have one instance each, whatever the seed: there a whole task falls into one split, or what is learned from would be
what is reported."""


class Task(BaseModel):
    """A task's specification, frozen: what is stored. Its id is the hash of all that follows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Annotated[str, Field(description="which task source runs it, e.g. miniwob")]
    name: Annotated[str, Field(description="name inside the source, e.g. click-button")]
    domain: Annotated[str, Field(description="which specialist learns it, e.g. pointing")]
    max_steps: Annotated[int, Field(ge=1, le=1000, description="an episode is truncated after so many steps")]
    held_out: Annotated[bool, Field(description="whole task never trained on; all its instances are eval or holdout")] = False
    version: Annotated[str, Field(description="version of the source that defines the page and its verifier")] = "1"

    @property
    def task_id(self) -> str:
        return content_id("task", self.model_dump(mode="json"))

    def split(self, seed: int) -> Split:
        """The split of one instance. Depends on source, name and seed only (of a source in WHOLE, not on the seed), so a changed step limit
        moves nothing."""
        if self.source in WHOLE:
            seed = 0
            if not self.held_out:
                return Split.TRAIN
        fraction = stable_fraction("split", self.source, self.name, seed)
        if self.held_out:
            return Split.EVAL if fraction < 0.5 else Split.HOLDOUT
        return next(split for split, edge in SPLIT_EDGES.items() if fraction < edge)

    def seeds(self, split: Split, num: int, *, skip: int = 0) -> list[int]:
        """The `num` smallest seeds of a split, after skipping `skip` of them; none where the task has no instance in it. Raises ValueError
        for an unknown split."""
        split = Split(split)
        if (self.held_out and split is Split.TRAIN) or (self.source in WHOLE and self.split(0) is not split):
            return []
        members: Iterator[int] = (seed for seed in count() if self.split(seed) is split)
        return list(islice(members, skip, skip + num))
