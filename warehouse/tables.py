"""Versioned tables: the one way rows get into the warehouse and out again. Delta Lake below, Arrow above; SQL is query.py's business.

Each table of the catalogue is a Delta table under FLYWHEEL_HOME/tables. A commit replaces one partition (iteration, stage) whole, so a
stage that runs again neither doubles nor half-writes its rows. Logs are never cleaned and nothing is vacuumed outside withdrawal.purge:
every version stays readable. Every commit but a purge's carries {iteration, stage}, which is how `as_of` finds its version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from warehouse.catalogue import TABLES, WITHDRAWN_STAGE, Table
from warehouse.commits import naming_a_full_disk, retry_commit
from warehouse.errors import CorruptTable, SchemaMismatch, UnknownTable, WarehouseError
from warehouse.home import Home
from warehouse.integrity import describe_damage
from warehouse.locks import FileLock
from warehouse.partitions import check_iteration, check_partition, partition_predicate, row_filter
from warehouse.rows import check_key, to_arrow
from warehouse.writing import RowsAside, Source, create, write

NO_VERSION = -1
"""Version of a table that does not exist yet: it reads as empty."""
COMMITS_PER_CHECKPOINT = 100
PICTURES_AT_ONCE = 32
VACUUM_BEGUN, VACUUMED = "VACUUM START", "VACUUM END"
"""Operations of the commits between which older versions lose their files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version of one table. `iteration` and `stage` are None for the commit that created the table."""

    version: int
    timestamp_ms: int
    operation: str
    iteration: str | None
    stage: str | None
    is_purge: bool
    """Rows were erased that had been withdrawn."""


class Warehouse:
    """Reads and writes the tables of one FLYWHEEL_HOME. Holds no connection: any number of processes and threads may have one."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._known_screenshots: set[str] = set()
        self._read_screenshot_files: set[str] = set()

    def folder(self, table: str) -> Path:
        """Folder of a table; it need not exist yet."""
        return self.home.tables / _known(table).name

    def replace_partition(self, table: str, rows: Sequence[Mapping[str, Any]] | pa.Table, *, iteration: str, stage: str) -> int:
        """Make `rows` the whole content of partition (iteration, stage), in one commit; returns the table's new version.

        Fills in the columns `iteration` and `stage`. Zero rows empty the partition. Raises SchemaMismatch before anything is written,
        StorageFull when the disk has no room (nothing is committed), WriteConflict when other writers of this partition win every race.
        """
        spec = _replaceable(table, iteration, stage)
        data = to_arrow(spec, rows, iteration=iteration, stage=stage)
        check_key(spec, data)
        return self._commit(spec, lambda: nullcontext(data), partition_predicate(iteration, stage), iteration, stage)

    def replace_partition_by_parts(
        self, table: str, parts: Iterable[Sequence[Mapping[str, Any]] | pa.Table], *, iteration: str, stage: str
    ) -> int:
        """`replace_partition` with rows that need not fit memory. Rows of one key come in one part."""
        with self.rows_aside(table, iteration=iteration, stage=stage) as aside:
            for part in parts:
                check_key(_known(table), aside.add(part))
            return aside.commit()

    @contextmanager
    def rows_aside(self, table: str, *, iteration: str, stage: str) -> Iterator[RowsAside]:
        """`replace_partition` with rows that need not fit memory and that are written aside as they come, by who tells only then whether
        they are to be committed. What was not is gone with the context, or with the process."""
        spec = _replaceable(table, iteration, stage)

        def commit(rows: Source) -> int:
            return self._commit(spec, rows, partition_predicate(iteration, stage), iteration, stage)

        with naming_a_full_disk(f"table {table}, rows put aside"), TemporaryFile(dir=self.home.spool) as file:
            aside = RowsAside(spec, file, commit, iteration=iteration, stage=stage)
            try:
                yield aside
            finally:
                with suppress(OSError):
                    aside.close()

    def append_partition(self, table: str, rows: Sequence[Mapping[str, Any]] | pa.Table, *, iteration: str, stage: str) -> int:
        """Add `rows` to partition (iteration, stage) in one commit; the caller sees to it that no key is added twice."""
        spec = _known(table)
        check_partition(iteration, stage)
        data = to_arrow(spec, rows, iteration=iteration, stage=stage)
        check_key(spec, data)
        return self._commit(spec, lambda: nullcontext(data), None, iteration, stage)

    def add_screenshots(
        self, rows: Sequence[Mapping[str, Any]] | pa.Table, *, iteration: str | None = None, stage: str | None = None
    ) -> int:
        """Add the images that are not stored yet, by `screenshot_id`; returns the table's version. Safe from any number of processes."""
        spec = TABLES["screenshots"]
        data = to_arrow(spec, rows)
        if not data.num_rows:
            return self.version(spec.name)
        with FileLock(self.home.locks / "screenshots.lock"):
            present = self._screenshot_ids()
            absent = []
            for index, screenshot_id in enumerate(data.column("screenshot_id").to_pylist()):
                if screenshot_id not in present:
                    present.add(screenshot_id)
                    absent.append(index)
            if not absent:
                return self.version(spec.name)
            try:
                return self._commit(spec, lambda: nullcontext(data.take(absent)), None, iteration, stage)
            except WarehouseError:
                self._known_screenshots.clear()
                self._read_screenshot_files.clear()
                raise

    def read(
        self,
        table: str,
        *,
        iteration: str | None = None,
        stage: str | None = None,
        columns: Sequence[str] | None = None,
        version: int | None = None,
        as_of: str | None = None,
    ) -> pa.Table:
        """Rows of a table, now, at a version, or as of an iteration; a table that nobody wrote yet is empty.

        Raises UnknownTable for a table, version or column that does not exist, CorruptTable for one that cannot be read.
        """
        spec = _known(table)
        dataset = self.dataset(table, version=version, as_of=as_of)
        wanted = list(columns) if columns is not None else dataset.schema.names
        for name in wanted:
            if name not in dataset.schema.names:
                raise UnknownTable(f"table {table} has no column {name!r}: it has {', '.join(dataset.schema.names)}")
        condition = row_filter(spec, iteration=iteration, stage=stage, as_of=as_of)
        with self._reading(table, version):
            return dataset.to_table(columns=wanted, filter=condition)

    def dataset(self, table: str, version: int | None = None, *, as_of: str | None = None) -> pads.Dataset:
        """The table as an Arrow dataset that reads only what a scan asks for. With `as_of` this is the right version, whole: row_filter
        keeps out the rows of later iterations."""
        spec = _known(table)
        if as_of is not None:
            if version is not None:
                raise UnknownTable(f"ask table {table} for a version ({version}) or for an iteration (as_of={as_of!r}), not for both")
            version = self.version(table, as_of=as_of)
        delta = self._open(spec, version)
        if delta is None:
            return pads.dataset(spec.schema.empty_table())
        with self._reading(table):
            # Arrow's own file system reads twice as fast as Delta's bridge to it.
            files = pafs.SubTreeFileSystem(str(self.folder(table)), pafs.LocalFileSystem())
            return delta.to_pyarrow_dataset(filesystem=files, schema=spec.schema)

    def version(self, table: str, as_of: str | None = None) -> int:
        """The table's newest version, or the last one committed by iteration `as_of` or an earlier one; NO_VERSION (-1) when there is none.

        Screenshots belong to no iteration: theirs is always the newest. What a purge erased stays erased: the answer is never a version
        from before the last purge.
        """
        spec = _known(table)
        if as_of is None or not spec.partitioned:
            delta = self._open(spec, None)
            return NO_VERSION if delta is None else int(delta.version())
        check_iteration(as_of)
        for commit in self.history(table):
            if commit.operation in (VACUUM_BEGUN, VACUUMED) or (commit.iteration is not None and commit.iteration <= as_of):
                return commit.version
        return NO_VERSION

    def versions(self, as_of: str | None = None) -> dict[str, int]:
        """Version of every table of the catalogue; together they fix one state of the whole warehouse."""
        return {table: self.version(table, as_of) for table in TABLES}

    def history(self, table: str) -> list[Commit]:
        """Commits of a table, newest first."""
        delta = self._open(_known(table), None)
        if delta is None:
            return []
        with self._reading(table):
            return [
                Commit(
                    version=entry["version"], timestamp_ms=entry["timestamp"], operation=entry["operation"],
                    iteration=entry.get("iteration"), stage=entry.get("stage"), is_purge=entry.get("purge") == "true",
                )
                for entry in delta.history()
            ]  # fmt: skip

    def delta(self, table: str) -> DeltaTable | None:
        """The Delta table itself, for maintenance; None when it does not exist yet."""
        return self._open(_known(table), None)

    def _open(self, spec: Table, version: int | None) -> DeltaTable | None:
        folder = self.folder(spec.name)
        if version == NO_VERSION or not folder.exists():
            if version is None or version == NO_VERSION:
                return None
            raise UnknownTable(f"table {spec.name} has no version {version}: nothing was written to it yet")
        try:
            return DeltaTable(folder, version=version)
        except TableNotFoundError:
            if version is None and not any(folder.glob("*.parquet")) and not any(folder.glob("iteration=*")):
                return None
            raise CorruptTable(
                f"table {spec.name}: {folder / '_delta_log'} holds no log, though there are data files. Restore the folder from a backup"
            ) from None
        except (DeltaError, OSError) as error:
            newest = None if version is None else self.version(spec.name)
            if newest is not None and version is not None and not 0 <= version <= newest:
                raise UnknownTable(f"table {spec.name} has no version {version}: it has 0 to {newest}") from error
            raise CorruptTable(describe_damage(spec.name, folder, None, error)) from error

    def _screenshot_ids(self) -> set[str]:
        """Ids stored so far; only files that this object has not read before are read. Call with the lock held."""
        delta = self._open(TABLES["screenshots"], None)
        there = set(delta.file_uris() if delta is not None else ())
        if not self._read_screenshot_files <= there:  # a purge has written them anew, without those that it erased
            self._read_screenshot_files.clear()
            self._known_screenshots.clear()
        for uri in there - self._read_screenshot_files:
            with self._reading("screenshots"):
                self._known_screenshots.update(pq.read_table(uri, columns=["screenshot_id"], partitioning=None).column(0).to_pylist())
            self._read_screenshot_files.add(uri)
        return self._known_screenshots

    def _commit(self, spec: Table, rows: Source, predicate: str | None, iteration: str | None, stage: str | None) -> int:
        """Replace what `predicate` selects, or add to the table where it is None."""
        metadata = {name: value for name, value in (("iteration", iteration), ("stage", stage)) if value is not None}

        def attempt() -> int:
            delta = self._open(spec, None) or create(spec, self.folder(spec.name))
            with rows() as data:
                write(delta, spec, data, predicate, metadata)
            return int(delta.version())

        version = retry_commit(f"table {spec.name}, partition {iteration}/{stage}", attempt)
        if version % COMMITS_PER_CHECKPOINT == 0:
            # Only a shortcut for readers, and the commit has happened: that a checkpoint fails must not look as if the commit had.
            with suppress(DeltaError, OSError):
                DeltaTable(self.folder(spec.name)).create_checkpoint()
        return version

    def erase(self, table: str, ids: Sequence[str], *, iteration: str, stage: str) -> int:
        """Take the rows with these keys out of a partition, in one commit; returns how many. Their files stay until a vacuum, so this is
        one step of withdrawal.purge, and marked as such in the history."""
        (key,) = _known(table).key

        def without(rows: pa.Table) -> tuple[pa.Table, int]:
            kept = rows.filter(pc.invert(pc.is_in(rows.column(key), value_set=pa.array(ids, rows.schema.field(key).type))))
            return kept, rows.num_rows - kept.num_rows

        return self.rewrite(table, without, iteration=iteration, stage=stage)

    def rewrite(self, table: str, change: Callable[[pa.Table], tuple[pa.Table, int]], *, iteration: str, stage: str) -> int:
        """Change a partition by a step of withdrawal.purge, in one commit. `change` gives the rows that take the place of those that are
        there, and how many it changed; that is returned, and where it is none nothing is written."""
        spec = _known(table)
        check_partition(iteration, stage)

        def attempt() -> int:
            delta = self._open(spec, None)
            if delta is None:
                return 0
            changed, num = change(self.read(table, iteration=iteration, stage=stage, version=delta.version()))
            if num:
                write(delta, spec, changed, partition_predicate(iteration, stage), {"purge": "true"})
            return num

        return retry_commit(f"purge of table {table}, partition {iteration}/{stage}", attempt)

    def erase_screenshots(self, ids: Collection[str]) -> int:
        """`erase` for pictures. The others are written anew as they are read: there may be more of them than memory."""
        spec, is_meant = TABLES["screenshots"], pc.field("screenshot_id").isin(pa.array(sorted(ids), pa.string()))

        def attempt() -> int:
            delta = self._open(spec, None)
            dataset = self.dataset(spec.name, delta.version()) if delta is not None else None
            num = dataset.count_rows(filter=is_meant) if dataset is not None else 0
            if num and delta is not None and dataset is not None:
                kept = dataset.scanner(filter=~is_meant, batch_size=PICTURES_AT_ONCE).to_reader()
                write(delta, spec, kept, None, {"purge": "true"}, mode="overwrite")
            return int(num)

        with FileLock(self.home.locks / "screenshots.lock"):
            return retry_commit("purge of table screenshots", attempt)

    @contextmanager
    def _reading(self, table: str, version: int | None = None) -> Iterator[None]:
        try:
            yield
        except (DeltaError, pa.ArrowException, OSError) as error:
            erasing = (VACUUM_BEGUN, VACUUMED)
            purged = [commit.version for commit in self.history(table) if commit.operation in erasing] if version is not None else []
            if version is not None and purged and version < purged[0]:
                raise UnknownTable(f"table {table}: a purge erased version {version}; read {purged[0]} or later") from error
            delta = self._open(_known(table), None)
            raise CorruptTable(describe_damage(table, self.folder(table), delta, error)) from error


def _known(table: str) -> Table:
    try:
        return TABLES[table]
    except KeyError:
        raise UnknownTable(f"no table {table!r}: the tables are {', '.join(TABLES)}") from None


def _replaceable(table: str, iteration: str, stage: str) -> Table:
    """The table, if this partition of it may be replaced; raises SchemaMismatch."""
    spec = _known(table)
    if not spec.partitioned:
        raise SchemaMismatch(f"table {table} has no partitions: use add_{table}")
    check_partition(iteration, stage)
    if stage == WITHDRAWN_STAGE:
        raise SchemaMismatch(f"stage {stage!r} of table {table} holds tombstones, which are only added to: use `flywheel withdraw`")
    return spec
