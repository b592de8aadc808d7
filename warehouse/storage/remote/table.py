"""A table whose home keeps its tables in an object store. What counts is there; the table's folder on the disk is a copy of its log and of
the data files that were read or written here, and readers read only that. What is there is checked as files of the disk are.

A commit is made in the copy and counts once its log file is put in the store, where none of that version may be yet: the data files that it
adds are there by then. See log.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from warehouse.core.errors import CorruptTable
from warehouse.core.store import RangedObject, Store, at_once
from warehouse.storage.files.data_files import RESTORE_OBJECT, check_file, checksum_in
from warehouse.storage.remote.copies import note_use, prune_now_and_then

_UNLINKED = "unlinked"
_UPLOADED: set[str] = set()
"""Addresses of data files that this process has put."""


class RemoteTable:
    """One table below a store's `tables/`. Any number of threads may share it."""

    def __init__(self, store: Store, table: str, folder: Path) -> None:
        self.store, self._folder = store, folder
        self._prefix = f"tables/{table}"

    def url(self, path: Path) -> str:
        """Of the object that a file of the copy is of."""
        return f"{self.store.url}/{self._name(path)}"

    @property
    def url_of_table(self) -> str:
        return f"{self.store.url}/{self._prefix}"

    def _name(self, path: Path) -> str:
        return f"{self._prefix}/{path.relative_to(self._folder).as_posix()}"

    def _log_name(self, version: int) -> str:
        return f"{self._prefix}/_delta_log/{version:020d}.json"

    def log(self, version: int) -> bytes | None:
        return self.store.read(self._log_name(version))

    def logs(self, begin: int, end: int) -> list[bytes | None]:
        """The log files of versions `begin` up to, not including, `end`, as they are now."""
        return self.store.read_many(map(self._log_name, range(begin, end)))

    def num_unlinked(self) -> int:
        """How many of the first versions need not say rightly which they follow: see copying.py."""
        data = self.store.read(f"{self._prefix}/{_UNLINKED}")
        return int(data) if data is not None and data.isdigit() else 0

    def write_unlinked(self, num: int) -> None:
        self.store.write(f"{self._prefix}/{_UNLINKED}", str(num).encode())

    def is_begun(self) -> bool:
        return next(self.store.list(f"{self._prefix}/_delta_log"), None) is not None

    def logs_from(self, version: int) -> list[bytes]:
        """The log files of `version` and those after it. Raises CorruptTable for one that is missing before a later one."""
        after = self._log_name(version - 1) if version else None
        listed = [each.name.rsplit("/", 1)[-1] for each in self.store.list(f"{self._prefix}/_delta_log", after=after)]
        versions = [int(name[:20]) for name in listed if name.endswith(".json") and name[:20].isdigit()]
        if missing := sorted(set(range(version, version + len(versions))).difference(versions)):
            raise CorruptTable(
                f"{self.store.url}/{self._log_name(missing[0])} is missing, though later commits follow. To fix it: {RESTORE_OBJECT}"
            )
        return [each for each in self.store.read_many(map(self._log_name, versions)) if each is not None]

    def publish(self, version: int, log: bytes) -> bool:
        """Have a commit count; False where another writer's has this version. Its data files are there: see `upload`."""
        return self.store.create(self._log_name(version), log)

    def upload(self, paths: Iterable[Path]) -> None:
        """Put data files in the store that are not there yet."""
        fresh = [path for path in paths if self.url(path) not in _UPLOADED]
        at_once(self.put, fresh)
        _UPLOADED.update(map(self.url, fresh))

    def take_back(self, paths: Sequence[Path]) -> None:
        """Delete data files that no commit names."""
        _UPLOADED.difference_update(map(self.url, paths))
        self.store.delete([self._name(path) for path in paths])

    def column(self, path: Path, name: str) -> list[Any]:
        """One column of a data file, without a copy of the others. Raises FileNotFoundError."""
        import pyarrow.parquet as pq

        with RangedObject(self.store, self._name(path)) as file, pq.ParquetFile(file) as parquet:
            values: list[Any] = parquet.read(columns=[name]).column(0).to_pylist()
            return values

    def put(self, path: Path) -> None:
        """`upload` of one, also where an object is there."""
        self.store.write(self._name(path), path)

    def checksum(self, path: Path) -> int | None:
        """CRC-32 of the object of a data file; None where there is none. All of it is read."""
        found = 0
        try:
            for part in self.store.stream(self._name(path)):
                found = crc32(part, found)
        except FileNotFoundError:
            return None
        return found

    def sizes(self) -> dict[str, int]:
        """Of the objects, by their paths below the table's folder."""
        return {each.name.removeprefix(f"{self._prefix}/"): each.size for each in self.store.list(self._prefix)}

    def check(self, paths: Iterable[Path]) -> None:
        """Have sound copies of data files. Raises CorruptTable, FileNotFoundError."""
        absent = [path for path in paths if not self._has(path)]
        at_once(self._fetch, absent)
        if absent:
            prune_now_and_then(self._folder.parent)

    def _has(self, path: Path) -> bool:
        note_use(path)
        try:
            check_file(path)
        except FileNotFoundError:
            return False
        except CorruptTable:
            path.unlink()
            return False
        return True

    def _fetch(self, path: Path) -> None:
        self.store.fetch(self._name(path), path)
        if not self._has(path):
            raise CorruptTable(f"{self.url(path)} was changed: its checksum is not the one in its name. To fix it: {RESTORE_OBJECT}")

    def damage(self, files: Iterable[tuple[str, int]], *, wholly: bool) -> dict[str, str]:
        """What is wrong with objects, by their paths below the table's folder, of files and their sizes; `wholly`: every byte is read."""
        there = self.sizes()

        def of(path: str, size: int) -> str | None:
            if path not in there:
                return "is missing"
            if there[path] != size:
                return f"has {there[path]} bytes where the log says {size}"
            expected = checksum_in(Path(path).name)
            if wholly and expected is not None and f"{self.checksum(self._folder / path):08x}" != expected:
                return "was changed: its checksum is not the one in its name"
            return None

        listed = list(files)
        found = at_once(lambda file: of(*file), listed)
        return {path: what for (path, _), what in zip(listed, found, strict=True) if what is not None}

    def data_files(self) -> dict[str, int]:
        """Sizes of those that are there, whether a commit names them or not, by their paths below the table's folder."""
        return {path: size for path, size in self.sizes().items() if path.endswith(".parquet") and not path.startswith("_delta_log/")}

    def erase(self, paths: Iterable[str]) -> None:
        """Delete data files, by their paths below the folder."""
        self.take_back([self._folder / path for path in paths])
