"""Parquet files of a table: written, synced and checksummed before a commit names them, and checked whenever a process first reads one.

A file is called `<random>-<CRC-32 of its bytes>.parquet`, so it can be checked by its name: the commit that adds it, the checkpoint
of a log, any reader. Files of before have other names and are read as they are.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from deltalake.transaction import AddAction

from warehouse.core.durable import crc32, make_folder, sync
from warehouse.core.errors import CorruptTable
from warehouse.storage.catalogue import Table

Rows: TypeAlias = pa.Table | pa.RecordBatchReader
CheckFiles: TypeAlias = Callable[[Iterable[Path]], None]
GROUP_ROWS, GROUP_BYTES = 65_536, 64 * 2**20
"""Who writes holds a group of rows, and so does Arrow when it reads, unpacked: by default a million, of steps over a gigabyte."""
FILE_BYTES = 128 * 2**20
"""A file is checked whole, so none is much larger."""
RESTORE = "restore the file from a backup; without one, `flywheel doctor --repair` takes it out of the table and says what has to run again"
RESTORE_OBJECT = "restore it from an older version of the object or from a backup"
UNFINISHED = "-unfinished.parquet"
"""End of the name of a file that is being written."""
_NAME = re.compile(r"[0-9a-f]{32}-([0-9a-f]{8})\.parquet")
_CHECKED: dict[str, tuple[int, int, int]] = {}
"""Files that this process has found sound: size, time of change and inode then."""


def write_files(spec: Table, data: Rows, folder: Path, place: Mapping[str, str]) -> list[AddAction]:
    """Write rows of one partition (`place`: its columns and values) into files below the table's folder; on the disk when this returns.
    No rows give no file. What could not be written whole leaves nothing."""
    target = folder.joinpath(*(f"{name}={value}" for name, value in place.items()))
    make_folder(target)
    names = [name for name in data.schema.names if name not in place]
    groups = _groups(data, names)
    files = []
    try:
        while (written := _write_one(spec, groups, target)) is not None:
            files.append(written)
        sync(target)
    except BaseException:
        for path, _ in files:
            with suppress(OSError):
                path.unlink()
        raise
    now_ms = int(time.time() * 1000)  # no two files the same, so that rows are read in the order in which they were written
    return [_added(path, folder, place, num_rows, now_ms + number) for number, (path, num_rows) in enumerate(files)]


def _added(path: Path, folder: Path, place: Mapping[str, str], num_rows: int, added_ms: int) -> AddAction:
    return AddAction(
        path=path.relative_to(folder).as_posix(),
        size=path.stat().st_size,
        partition_values=dict(place),
        modification_time=added_ms,
        data_change=True,
        stats=json.dumps({"numRecords": num_rows}),
    )


def _write_one(spec: Table, groups: Iterator[pa.Table], folder: Path) -> tuple[Path, int] | None:
    import pyarrow.parquet as pq

    first = next(groups, None)
    if first is None:
        return None
    name, num_rows = uuid.uuid4().hex, 0
    aside = folder / f"{name}{UNFINISHED}"
    compression: dict[str, Any] = {"compression": "zstd", "compression_level": 3} if spec.partitioned else {"compression": "none"}
    try:
        with pa.OSFile(str(aside), "wb") as sink, pq.ParquetWriter(sink, first.schema, **compression) as writer:
            group: pa.Table | None = first
            while group is not None:
                writer.write_table(group, row_group_size=GROUP_ROWS)
                num_rows += group.num_rows
                group = next(groups, None) if sink.tell() < FILE_BYTES else None
        path = aside.with_name(f"{name}-{crc32(aside):08x}.parquet")
        sync(aside)
        aside.rename(path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
    _CHECKED[str(path)] = _state(path)
    return path, num_rows


def _groups(data: Rows, names: Sequence[str]) -> Iterator[pa.Table]:
    """The rows in groups of at most GROUP_ROWS rows and about GROUP_BYTES."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in data.to_batches(max_chunksize=GROUP_ROWS) if isinstance(data, pa.Table) else data:
        for part in _parts(batch.select(names)):
            if waiting and (rows + part.num_rows > GROUP_ROWS or size + part.nbytes > GROUP_BYTES):
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
    if rows:
        yield pa.Table.from_batches(waiting)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    num = max(1, -(-batch.num_rows // GROUP_ROWS), -(-batch.nbytes // GROUP_BYTES))
    step = max(1, -(-batch.num_rows // num))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def check_file(path: Path) -> None:
    """Compare a data file with the checksum in its name, once in a process as long as it stays as it is. Raises CorruptTable, or
    FileNotFoundError."""
    state = _state(path)
    if _CHECKED.get(str(path)) == state:
        return
    expected = checksum_in(path.name)
    if expected is not None and (found := f"{crc32(path):08x}") != expected:
        raise CorruptTable(f"{path} was changed: its checksum is {found}, not {expected} as its name says. To fix it: {RESTORE}")
    _CHECKED[str(path)] = state


def check_files(paths: Iterable[Path]) -> None:
    """`check_file` of each."""
    for path in paths:
        check_file(path)


def checksum_in(name: str) -> str | None:
    """The checksum that a file's name promises; None for one of before."""
    found = _NAME.fullmatch(name)
    return found[1] if found is not None else None


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino
