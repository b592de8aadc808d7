"""Which data files of a table hold an id. Ids are hashes, so no file can be left out by their order; what is kept here, beside the tables,
is 64 bits of every id with its file, added to when there are new files. A file never changes, so what was once noted of it holds; deleting
the notes loses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b, sha256
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt

from warehouse.storage.catalogue import TABLES
from warehouse.storage.files.notes import notes_folder, read_notes, write_notes
from warehouse.storage.partitions import DataFile
from warehouse.storage.sql.file_sql import stored_rows
from warehouse.storage.tables import Warehouse

FOLDER = "ids"
_DIGITS = 16


@dataclass(frozen=True)
class _Part:
    """Notes of some files: the hashes of the ids of each, one file after the other. `ends` says where each file's end."""

    paths: list[str]
    ends: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]

    @cached_property
    def last_bits(self) -> npt.NDArray[np.uint16]:
        return np.ascontiguousarray(self.hashes.view("<u2")[::4])


class IdIndex:
    """The ids of one table as its newest version has them: of a table whose key is one column."""

    def __init__(self, warehouse: Warehouse, table: str, files: Sequence[DataFile] | None = None) -> None:
        self._warehouse, self._table = warehouse, table
        self._files = {file.path: file for file in (warehouse.listed(table)[1] if files is None else files)}
        self._folder = notes_folder(warehouse.home, FOLDER) / table
        self._noted = [part for path in sorted(self._folder.glob("*.notes")) if (part := _read(path)) is not None]
        known = {path for part in self._noted for path in part.paths}
        fresh = [file for file in self._files.values() if file.path not in known and file.num_rows]
        if fresh:
            self._noted.append(self._note(fresh))

    def files_with(self, ids: Collection[str]) -> list[DataFile]:
        """The files that hold one of the ids, and hardly any other; in the order of their names."""
        if not ids:
            return []
        wanted = _hashes(ids)
        found: set[str] = set()
        for part in self._noted:
            hits = _places_of(wanted, part)
            found.update(part.paths[place] for place in set(np.searchsorted(part.ends, hits, "right").tolist()))
        return [self._files[path] for path in sorted(found & self._files.keys())]

    def _note(self, fresh: Sequence[DataFile]) -> _Part:
        (key,) = TABLES[self._table].key
        hashes = []
        with duckdb.connect() as con:
            for file in fresh:
                rows = stored_rows(self._table, self._warehouse.files(self._table, [file]))
                hashes.append(_hashes(id_ for (id_,) in con.execute(f"select {key} from {rows}").fetchall()))
        part = _Part([file.path for file in fresh], np.cumsum([len(of) for of in hashes]), np.concatenate(hashes))
        name = sha256("\n".join(part.paths).encode()).hexdigest()[:_DIGITS]
        write_notes(self._folder / f"{name}.notes", _packed(part))
        return part


def _places_of(wanted: npt.NDArray[np.uint64], part: _Part) -> npt.NDArray[np.int64]:
    """Where in a part one of the wanted few hashes is, in order: their last 16 bits are looked up first, which costs the same for one as
    for a thousand."""
    may_be = np.zeros(1 << 16, np.bool_)
    may_be[wanted & 0xFFFF] = True
    places = np.flatnonzero(may_be.take(part.last_bits))
    return places[np.isin(part.hashes[places], wanted)]


def _packed(part: _Part) -> bytes:
    """A line of JSON, the hashes."""
    head = json.dumps({"paths": part.paths, "ends": part.ends.tolist()}).encode()
    return b"\n".join([head, part.hashes.astype("<u8").tobytes()])


def _read(path: Path) -> _Part | None:
    """What is noted twice, as some of these may have been damaged, is found once."""
    content = read_notes(path)
    if content is None:
        return None
    head, _, hashes = content.partition(b"\n")
    header = json.loads(head)
    return _Part(header["paths"], np.array(header["ends"], np.int64), np.frombuffer(hashes, "<u8"))


def _hashes(ids: Iterable[str]) -> npt.NDArray[np.uint64]:
    return np.frombuffer(b"".join(blake2b(id_.encode(), digest_size=8).digest() for id_ in ids), np.uint64)
