"""How data files become a commit of a Delta table, and how rows that need not fit memory wait for it in a file. Which rows, and where, is
warehouse/storage/tables.py's business, through which everybody writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from warehouse.storage.catalogue import Table
from warehouse.storage.files.data_files import Rows

if TYPE_CHECKING:
    import pyarrow.parquet as pq

Source: TypeAlias = Callable[[], AbstractContextManager[Rows]]
"""Gives the rows of a commit, afresh for each attempt."""
_FOREVER = "interval 36500 days"
CONFIGURATION = {
    # With the defaults, old versions become unreadable once the log is 30 days old and checkpointed.
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": _FOREVER,
    "delta.deletedFileRetentionDuration": _FOREVER,
}
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""Checkpoints are table_log.py's."""


def create(spec: Table, folder: Path) -> DeltaTable:
    """The empty table; the one that is there where another process was faster."""
    try:
        return DeltaTable.create(
            folder,
            spec.schema,
            mode="ignore",
            partition_by=spec.partition_by or None,
            name=spec.name,
            description=spec.meaning,
            configuration=CONFIGURATION,
        )
    except DeltaError:
        if DeltaTable.is_deltatable(folder):
            return DeltaTable(folder)
        raise


def commit(
    delta: DeltaTable,
    spec: Table,
    files: Sequence[AddAction],
    place: Mapping[str, str],
    metadata: dict[str, str],
    mode: Literal["append", "overwrite"],
) -> int:
    """One commit on top of `delta`, which is the newest version: adds files, and with `overwrite` they replace the partition `place`, or
    the whole table where it has none. Returns the new version. Call with the table's commit lock held: conflicts are not looked for."""
    properties = CommitProperties(custom_metadata=metadata, max_commit_retries=0)
    _add_columns(delta, spec)
    delta.create_write_transaction(
        list(files),
        mode,
        delta.schema(),
        partition_by=spec.partition_by,
        partition_filters=[(name, "=", value) for name, value in place.items()] or None,
        commit_properties=properties,
        post_commithook_properties=_NO_HOOKS,
    )
    delta.update_incremental()
    return int(delta.version())


def _add_columns(delta: DeltaTable, spec: Table) -> None:
    """Columns that the catalogue has gained since the table was created, in a commit of their own, so that old homes keep working."""
    stored = {field.name for field in delta.schema().fields}
    missing = [field for field in spec.schema if field.name not in stored]
    if missing:
        delta.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields, post_commithook_properties=_NO_HOOKS)
        delta.update_incremental()


class RowsAside:
    """Rows that are to be the whole content of a partition, in a file until they are committed together: see Warehouse.rows_aside."""

    def __init__(self, spec: Table, file: IO[bytes], commit: Callable[[Source], int], *, iteration: str, stage: str) -> None:
        import pyarrow.parquet as pq

        self._spec, self._file, self._commit = spec, file, commit
        self._place = {"iteration": iteration, "stage": stage}
        self._writer = pq.ParquetWriter(file, spec.schema)

    def add(self, part: Sequence[Mapping[str, Any]] | pa.Table) -> pa.Table:
        """Write some more rows; returns them as they will be stored. Raises as Warehouse.replace_partition does, but whether keys are
        unique is the caller's to see to."""
        from warehouse.storage.rows import to_arrow

        data = to_arrow(self._spec, part, **self._place)
        self._writer.write_table(data)
        return data

    def commit(self, *, without: npt.NDArray[np.int64] | None = None) -> int:
        """Replace the partition by these rows, in one commit; returns the table's new version. `without`: of which rows, counted from 0 in
        the order in which they came, nothing is kept; ascending."""
        self.close()
        return self._commit(lambda: _read(self._file, np.empty(0, np.int64) if without is None else without))

    def close(self) -> None:
        self._writer.close()


@contextmanager
def _read(aside: IO[bytes], without: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatchReader]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(aside) as file:
        yield pa.RecordBatchReader.from_batches(file.schema_arrow, _batches(file, without))


def _batches(file: pq.ParquetFile, without: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """The rows as they were written, never those of two parts together: how large a part may be is known to who made it."""
    first = 0
    for group in range(file.num_row_groups):
        for batch in file.iter_batches(row_groups=[group]):
            begin, end = np.searchsorted(without, [first, first + batch.num_rows])
            if begin < end:
                is_kept = np.ones(batch.num_rows, bool)
                is_kept[without[begin:end] - first] = False
                yield batch.filter(pa.array(is_kept))
            else:
                yield batch
            first += batch.num_rows
