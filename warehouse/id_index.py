"""Which data files of a table hold an id. Ids are hashes, so no file can be left out by their order; what is kept here, beside the tables,
is 64 bits of every id with its file, added to when there are new files. A file never changes, so what was once noted of it holds; deleting
the notes loses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b, sha256
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from warehouse.catalogue import TABLES
from warehouse.data_files import check_file
from warehouse.errors import FlywheelError
from warehouse.home import atomic_write
from warehouse.partitions import DataFile
from warehouse.table_files import table_files
from warehouse.tables import Warehouse

FOLDER = "ids"
_SCHEMA = pa.schema([("path", pa.dictionary(pa.int32(), pa.string())), ("hash", pa.uint64())])
_DIGITS = 16


class IdIndex:
    """The ids of one table as its newest version has them: of a table whose key is one column."""

    def __init__(self, warehouse: Warehouse, table: str, files: Sequence[DataFile] | None = None) -> None:
        self._warehouse, self._table = warehouse, table
        self._files = {file.path: file for file in (table_files(warehouse, table) if files is None else files)}
        self._folder = warehouse.home.root / "cache" / FOLDER / table
        self._noted = self._read()
        known = {path for part in self._noted for path in part.column("path").chunk(0).dictionary.to_pylist()} if self._noted else set()
        fresh = [file for file in self._files.values() if file.path not in known and file.num_rows]
        if fresh:
            self._noted.append(self._note(fresh))

    def files_with(self, ids: Collection[str]) -> list[DataFile]:
        """The files that hold one of the ids, and hardly any other; in the order of their names."""
        if not ids:
            return []
        wanted = _hashes(ids)
        found = set()
        for part in self._noted:
            hits = np.flatnonzero(np.isin(part.column("hash").to_numpy(), wanted))
            found.update(part.column("path").take(pa.array(hits)).to_pylist())
        return [self._files[path] for path in sorted(found & self._files.keys())]

    def _read(self) -> list[pa.Table]:
        parts = []
        for path in sorted(self._folder.glob("*.parquet")):
            # One that cannot be read is made again; what is noted twice is found once.
            with suppress(OSError, pa.ArrowException):
                parts.append(pq.read_table(path, page_checksum_verification=True).cast(_SCHEMA).combine_chunks())
        return [part for part in parts if part.num_rows]

    def _note(self, fresh: Sequence[DataFile]) -> pa.Table:
        (key,) = TABLES[self._table].key
        folder, columns = self._warehouse.folder(self._table), []
        for file in fresh:
            path = folder / unquote(file.path)
            check_file(path)
            ids = pq.read_table(path, columns=[key], partitioning=None).column(0)
            paths = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(ids), np.int32)), pa.array([file.path]))
            columns.append(pa.table([paths, pa.array(_hashes(ids.to_pylist()))], schema=_SCHEMA))
        part = pa.concat_tables(columns).unify_dictionaries().combine_chunks()
        sink = BytesIO()
        pq.write_table(part, sink, compression="zstd", write_page_checksum=True)
        name = sha256("\n".join(file.path for file in fresh).encode()).hexdigest()[:_DIGITS]
        with suppress(OSError, FlywheelError):
            atomic_write(Path(self._folder, f"{name}.parquet"), sink.getvalue())
        return part


def _hashes(ids: Iterable[str]) -> npt.NDArray[np.uint64]:
    return np.frombuffer(b"".join(blake2b(id_.encode(), digest_size=8).digest() for id_ in ids), np.uint64)
