"""How partitions are named and chosen: an iteration is four digits, a stage a word; the filters by which Arrow and Delta find them; what is
known of a file without opening it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warehouse.core.errors import SchemaMismatch, UnknownTable
from warehouse.storage.catalogue import WITHDRAWN_STAGE, Table

if TYPE_CHECKING:
    import pyarrow.compute as pc

ITERATION_PATTERN = re.compile(r"\d{4}")
STAGE_PATTERN = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file of a table. `path` is relative to the table's folder; a table without partitions has neither iteration nor stage."""

    path: str
    iteration: str
    stage: str
    num_rows: int
    added_ms: int

    @property
    def is_of_tombstones(self) -> bool:
        return self.stage == WITHDRAWN_STAGE

    @property
    def expression(self) -> pc.Expression | None:
        """What holds of all its rows, for Arrow, which finds partition columns nowhere else."""
        import pyarrow.compute as pc

        return (pc.field("iteration") == self.iteration) & (pc.field("stage") == self.stage) if self.stage else None


def row_filter(spec: Table, *, iteration: str | None = None, stage: str | None = None, as_of: str | None = None) -> pc.Expression | None:
    """The Arrow filter of one partition, or of everything up to an iteration; None when nothing is filtered."""
    if not spec.partitioned:
        return None
    import pyarrow.compute as pc

    conditions = []
    if iteration is not None:
        conditions.append(pc.field("iteration") == check_iteration(iteration))
    if stage is not None:
        conditions.append(pc.field("stage") == stage)
    if as_of is not None:
        conditions.append(pc.field("iteration") <= check_iteration(as_of))
    result = None
    for condition in conditions:
        result = condition if result is None else result & condition
    return result


def of_iterations(spec: Table, files: Iterable[DataFile], iterations: Iterable[str] | None) -> list[DataFile]:
    """The files of these iterations and those of tombstones; all of them for None, and of a table without partitions."""
    if iterations is None or not spec.partitioned:
        return list(files)
    wanted = {check_iteration(iteration) for iteration in iterations}
    return [file for file in files if file.iteration in wanted or file.is_of_tombstones]


def in_order(files: Iterable[DataFile]) -> list[DataFile]:
    """By iteration, then stage, then when they were written. A file's name is random."""
    return sorted(files, key=lambda file: (file.iteration, file.stage, file.added_ms, file.path))


def check_iteration(iteration: str) -> str:
    """The key itself; raises UnknownTable when it is not four digits."""
    if not ITERATION_PATTERN.fullmatch(iteration):
        raise UnknownTable(f"no iteration {iteration!r}: an iteration is four digits, 0000 (the seed), 0001, 0002, …")
    return iteration


def check_partition(iteration: str, stage: str) -> None:
    """Raise SchemaMismatch for names that cannot be a partition."""
    if not ITERATION_PATTERN.fullmatch(iteration) or not STAGE_PATTERN.fullmatch(stage):
        raise SchemaMismatch(
            f"no partition {iteration!r}/{stage!r}: an iteration is four digits (0001), "
            "a stage is lower-case letters, digits and _ (rl_forms)"
        )
