"""Versioned tables: the one way rows get into the warehouse and out again. Delta Lake below, Arrow above; SQL is sql/query.py's business.

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
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from urllib.parse import unquote, urlparse

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from warehouse.core.errors import CorruptTable, SchemaMismatch, StoreUnreachable, UnknownTable, WriteConflict
from warehouse.core.home import Home
from warehouse.core.locks import FileLock
from warehouse.core.store import at_once
from warehouse.storage.catalogue import TABLES, WITHDRAWN_STAGE, Table
from warehouse.storage.files.data_files import RESTORE, RESTORE_OBJECT, CheckFiles, check_file, check_files, write_files
from warehouse.storage.files.listing_notes import files_of, note_files, noted_files
from warehouse.storage.log import opening, writing
from warehouse.storage.log.actions import VACUUM_BEGUN, VACUUMED, added_files, read_log
from warehouse.storage.log.chain import UNKNOWN
from warehouse.storage.log.commits import ATTEMPTS_OF_HOSTS, MAX_ATTEMPTS, naming_a_full_disk, retry_commit
from warehouse.storage.log.table_log import COMMITS_PER_CHECKPOINT, TableLog
from warehouse.storage.log.writing import RowsAside, Source
from warehouse.storage.partitions import DataFile, check_iteration, check_partition, in_order, of_iterations, row_filter
from warehouse.storage.remote.log import log_of
from warehouse.storage.repair.integrity import raise_explained

if TYPE_CHECKING:
    import pyarrow.dataset as pads

NO_VERSION = -1
"""Version of a table that does not exist yet: it reads as empty."""
PICTURES_AT_ONCE = 32


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Data files for a commit, and the version that was the newest here before they were written."""

    files: Sequence[AddAction]
    after: int


class Warehouse:
    """Reads and writes the tables of one FLYWHEEL_HOME. Holds no connection: any number of processes and threads may have one."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._listed: dict[str, tuple[str, list[DataFile]]] = {}
        """Of each table the link of the chain that its files are of."""
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
        from warehouse.storage.rows import check_key, to_arrow

        spec = _replaceable(table, iteration, stage)
        data = to_arrow(spec, rows, iteration=iteration, stage=stage)
        check_key(spec, data)
        return self._commit(spec, lambda: nullcontext(data), "overwrite", iteration, stage)

    def replace_partition_by_parts(
        self, table: str, parts: Iterable[Sequence[Mapping[str, Any]] | pa.Table], *, iteration: str, stage: str
    ) -> int:
        """`replace_partition` with rows that need not fit memory. Rows of one key come in one part."""
        from warehouse.storage.rows import check_key

        with self.rows_aside(table, iteration=iteration, stage=stage) as aside:
            for part in parts:
                check_key(_known(table), aside.add(part))
            return aside.commit()

    @contextmanager
    def rows_aside(self, table: str, *, iteration: str, stage: str) -> Iterator[RowsAside]:
        """`replace_partition` with rows that need not fit memory: they are written aside as they come, and the caller decides at the end
        whether to commit them. What is not committed is gone with the context, or with the process."""
        spec = _replaceable(table, iteration, stage)

        def commit(rows: Source) -> int:
            return self._commit(spec, rows, "overwrite", iteration, stage)

        with naming_a_full_disk(f"rows of table {table} put aside", self.home.root), TemporaryFile(dir=self.home.scratch) as file:
            aside = RowsAside(spec, file, commit, iteration=iteration, stage=stage)
            try:
                yield aside
            finally:
                with suppress(OSError):
                    aside.close()

    def append_partition(self, table: str, rows: Sequence[Mapping[str, Any]] | pa.Table, *, iteration: str, stage: str) -> int:
        """Add `rows` to partition (iteration, stage) in one commit; the caller sees to it that no key is added twice."""
        from warehouse.storage.rows import check_key, to_arrow

        spec = _known(table)
        check_partition(iteration, stage)
        data = to_arrow(spec, rows, iteration=iteration, stage=stage)
        check_key(spec, data)
        return self._commit(spec, lambda: nullcontext(data), "append", iteration, stage)

    def add_screenshots(
        self, rows: Sequence[Mapping[str, Any]] | pa.Table, *, iteration: str | None = None, stage: str | None = None
    ) -> int:
        """Add the images that are not stored yet, by `screenshot_id`; returns the table's version. Safe from any number of processes."""
        from warehouse.storage.rows import to_arrow

        spec = TABLES["screenshots"]
        data = to_arrow(spec, rows)
        if not data.num_rows:
            return self.version(spec.name)

        places: dict[str, int] = {}
        for index, each in enumerate(data.column("screenshot_id").to_pylist()):
            places.setdefault(each, index)
        written: Written | None = None
        of: list[int] = []

        def add() -> int:
            nonlocal written, of
            version, stored = self._screenshot_ids()
            absent = [index for each, index in places.items() if each not in stored]
            if written is not None and (absent != of or self._is_outdated(spec, written)):
                self._take_back(spec, written)
                written = None
            if not absent:
                return version
            if written is None:
                written, of = self._write(spec, lambda: nullcontext(data.take(absent)), iteration, stage), absent
            return self._commit_files(spec, written, "append", iteration, stage, after=version)

        with FileLock(self.home.locks / "screenshots.lock"):
            try:
                return self.retrying("table screenshots", spec.name, add)
            except WriteConflict:
                if written is not None:
                    self._take_back(spec, written)
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
        """Rows of a table, now, at a version, or as of an iteration; a table that nobody wrote yet is empty. They come by iteration, then
        by stage, and of one stage in the order in which they were written.

        Raises UnknownTable for a table, version or column that does not exist, CorruptTable for one that cannot be read.
        """
        spec = _known(table)
        dataset = self.dataset(table, version=version, as_of=as_of, iterations=None if iteration is None else [iteration])
        wanted = list(columns) if columns is not None else dataset.schema.names
        for name in wanted:
            if name not in dataset.schema.names:
                raise UnknownTable(f"table {table} has no column {name!r}: it has {', '.join(dataset.schema.names)}")
        condition = row_filter(spec, iteration=iteration, stage=stage, as_of=as_of)
        with self._reading(table, version):
            return dataset.to_table(columns=wanted, filter=condition)

    def dataset(
        self,
        table: str,
        version: int | None = None,
        *,
        as_of: str | None = None,
        iterations: Collection[str] | None = None,
        files: Iterable[DataFile] | None = None,
    ) -> pads.Dataset:
        """The table as an Arrow dataset that reads only what a scan asks for. With `as_of` this is the right version, whole: row_filter
        keeps out the rows of later iterations. With `iterations` only their files are opened, and those of tombstones; a table without
        partitions is whole. `files` are those of a version, from who has listed them before. Rows come in the order of `read`."""
        from warehouse.storage.files import checked_dataset

        spec = _known(table)
        if as_of is not None:
            if version is not None:
                raise UnknownTable(f"ask table {table} for a version ({version}) or for an iteration (as_of={as_of!r}), not for both")
            version = self.version(table, as_of=as_of)
        files = of_iterations(spec, self._files_at(spec, version) if files is None else files, iterations)
        return checked_dataset.of_files(self.folder(table), in_order(files), spec.schema, self._check(table))

    def _check(self, table: str) -> CheckFiles:
        """What checks data files of a table, and copies them from its store where they are not here."""
        remote = self._log(table).remote
        return check_files if remote is None else remote.check

    @property
    def _attempts(self) -> int:
        return MAX_ATTEMPTS if self.home.store is None else ATTEMPTS_OF_HOSTS

    def _files_at(self, spec: Table, version: int | None) -> list[DataFile]:
        if version is None:
            return self.listed(spec.name)[1]
        delta = self._open(spec, version)
        with self._reading(spec.name):
            return [] if delta is None else files_of(delta, spec.name)

    def stored_dataset(self, table: str) -> pads.Dataset:
        """`dataset` of the newest version with the columns and types that are stored, whatever the catalogue says of them."""
        from warehouse.storage.files import checked_dataset

        spec = _known(table)
        delta = self._open(spec, None)
        if delta is None:
            return checked_dataset.of_files(self.folder(table), [], spec.schema, self._check(table))
        with self._reading(table):
            return checked_dataset.of_delta(self.folder(table), delta, self._check(table))

    def files(self, table: str, listed: Iterable[DataFile] | None = None) -> list[Path]:
        """Data files of the newest version, or these of it, checked: for readers of their own. Raises CorruptTable."""
        if listed is None:
            delta = self._open(_known(table), None)
            paths = [local_path(uri) for uri in delta.file_uris()] if delta is not None else []
        else:
            paths = [self.folder(table) / unquote(file.path) for file in listed]
        with self._reading(table):
            self._check(table)(paths)
        return paths

    def have_files(self, table: str, version: int) -> None:
        """Have the data files of a version here, for who looks for them in the table's folder."""
        delta = self._open(_known(table), version)
        with self._reading(table, version):
            self._check(table)([local_path(uri) for uri in delta.file_uris()] if delta is not None else [])

    def read_files(self, table: str, files: Sequence[DataFile], columns: Sequence[str], among: tuple[str, Collection[str]]) -> pa.Table:
        """Some columns of the rows of these files whose column `among[0]` has one of the values `among[1]`. Raises CorruptTable."""
        import pyarrow.compute as pc

        from warehouse.storage.files import checked_dataset

        condition = pc.field(among[0]).isin(pa.array(sorted(among[1]), pa.string()))
        dataset = checked_dataset.of_files(self.folder(table), files, _known(table).schema, self._check(table))
        with self._reading(table):
            return dataset.to_table(columns=list(columns), filter=condition)

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
        log = self._log(table)
        lost = log.check_logs(0, delta.version())
        with self._reading(table):
            entries = delta.history() if not lost else log.entries(delta.version())
            return [
                Commit(
                    version=entry["version"],
                    timestamp_ms=entry["timestamp"],
                    operation=entry["operation"],
                    iteration=entry.get("iteration"),
                    stage=entry.get("stage"),
                    is_purge=entry.get("purge") == "true",
                )
                for entry in entries
            ]

    def listed(self, table: str) -> tuple[int, list[DataFile]]:
        """The newest version and its files, in the order of their names; NO_VERSION and none of a table that nobody wrote yet. The files of
        the log behind them are checked, also where they need not be read. Raises CorruptTable."""
        spec, log = _known(table), self._log(table)
        newest = log.newest()
        if newest is None:
            delta = self._open(spec, None)
            return (NO_VERSION, []) if delta is None else (delta.version(), files_of(delta, table))
        log.check(newest)
        link = log.commits.link(newest)
        known = self._listed.get(table)
        if known is None or known[0] != link:
            files = noted_files(self.home, table, link)
            if files is None and (delta := self._open(spec, newest)) is not None:
                files = files_of(delta, table)
                note_files(self.home, table, link, files)
            known = self._listed[table] = link, files or []
        return newest, known[1]

    def commit_digest(self, table: str, version: int) -> str | None:
        """Digest of the log file of one commit; None for a version that is not there, whose log is lost, or of a table without a chain."""
        found = self._log(_known(table).name).commits
        records = found.records(version, version + 1) if 0 <= version < len(found) else []
        return records[0].digest if records and records[0].digest != UNKNOWN else None

    def check_commit(self, table: str, version: int) -> None:
        """Check those data files of one commit that the newest version still has. Raises CorruptTable naming the first damaged one."""
        delta, log = self._open(_known(table), None), self._log(table)
        held = {local_path(uri) for uri in delta.file_uris()} if delta is not None else set()
        added = [(path, size) for name, size in added_files(read_log(log.file(version))) if (path := log.folder / name) in held]
        if log.remote is not None:
            if damage := log.remote.damage([(path.relative_to(log.folder).as_posix(), size) for path, size in added], wholly=False):
                name, what = next(iter(damage.items()))
                raise CorruptTable(f"{log.remote.url(log.folder / name)} {what}. To fix it: {RESTORE_OBJECT}")
            return
        for path, size in added:
            if not path.exists() or path.stat().st_size != size:
                raise CorruptTable(f"{path} is missing or cut off. To fix it: {RESTORE}")
            check_file(path)

    def unnamed_files(self, table: str) -> dict[str, int]:
        """Sizes of the data files in the object store that no commit names; of a table on a disk none. A purge deletes them."""
        return self._log(_known(table).name).unnamed_files()

    def delta(self, table: str) -> DeltaTable | None:
        """The Delta table itself, for maintenance; None when it does not exist yet."""
        return self._open(_known(table), None)

    @contextmanager
    def maintaining(self, table: str) -> Iterator[tuple[DeltaTable, dict[str, str]]]:
        """The Delta table to commit to, with the metadata of that commit: alone, at the newest version. What is committed inside counts,
        and survives a power cut, once the context has ended. The table is made where it is missing."""
        spec, log = _known(table), self._log(table)
        with opening.open_to_commit(spec, log) as delta:
            yield delta, log.after()

    def retrying(self, what: str, table: str, commit: Callable[[], int]) -> int:
        """What `commit` returns, called again for as long as other writers are faster. Raises WriteConflict."""
        return retry_commit(what, self.folder(table), commit, attempts=self._attempts)

    def _log(self, table: str) -> TableLog:
        return log_of(self.home, table)

    def _open(self, spec: Table, version: int | None) -> DeltaTable | None:
        return None if version == NO_VERSION else opening.open_version(spec, self._log(spec.name), version)

    def _screenshot_ids(self) -> tuple[int, set[str]]:
        """The newest version and the ids stored so far; only files that this object has not read before are read. Call with the lock
        held."""
        delta = self._open(TABLES["screenshots"], None)
        there = set(delta.file_uris() if delta is not None else ())
        if not self._read_screenshot_files <= there:  # a purge has rewritten them, without those that it erased
            self._read_screenshot_files.clear()
            self._known_screenshots.clear()
        import pyarrow.parquet as pq

        remote = self._log("screenshots").remote

        def ids(uri: str) -> list[str]:
            path = local_path(uri)
            if remote is not None and not path.exists():
                return remote.column(path, "screenshot_id")
            self._check("screenshots")([path])
            found: list[str] = pq.read_table(path, columns=["screenshot_id"], partitioning=None).column(0).to_pylist()
            return found

        fresh = sorted(there - self._read_screenshot_files)
        with self._reading("screenshots"):
            for uri, found in zip(fresh, map(ids, fresh) if remote is None else at_once(ids, fresh), strict=True):
                self._known_screenshots.update(found)
                self._read_screenshot_files.add(uri)
        return NO_VERSION if delta is None else int(delta.version()), self._known_screenshots

    def _commit(self, spec: Table, rows: Source, mode: Literal["append", "overwrite"], iteration: str | None, stage: str | None) -> int:
        """Add rows to their partition, or replace it by them."""
        written = self._write(spec, rows, iteration, stage)

        def commit() -> int:
            nonlocal written
            if self._is_outdated(spec, written):
                self._take_back(spec, written)
                written = self._write(spec, rows, iteration, stage)
            return self._commit_files(spec, written, mode, iteration, stage)

        try:
            return self.retrying(_place(spec, iteration, stage), spec.name, commit)
        except WriteConflict:
            self._take_back(spec, written)
            raise

    def _write(self, spec: Table, rows: Source, iteration: str | None, stage: str | None) -> Written:
        """Data files for a commit, in the store too where there is one."""
        what, folder, log = _place(spec, iteration, stage), self.folder(spec.name), self._log(spec.name)

        def begin() -> int:
            with self.maintaining(spec.name) as (delta, _):
                return int(delta.version())

        if log.commits.head() is None:  # data files without a log would look like a table that has lost its own
            self.retrying(what, spec.name, begin)
        after = head.version if (head := log.commits.head()) is not None else 0
        place = _metadata(iteration, stage) if spec.partitioned else {}
        with naming_a_full_disk(what, folder), rows() as data:
            files = write_files(spec, data, folder, place)
        if log.remote is not None:
            log.remote.upload(folder / unquote(file.path) for file in files)
        return Written(files=files, after=after)

    def _commit_files(
        self,
        spec: Table,
        written: Written,
        mode: Literal["append", "overwrite"],
        iteration: str | None,
        stage: str | None,
        *,
        after: int | None = None,
    ) -> int:
        """Raises CommitFailedError where another writer was faster. `after`: only on top of this version, else that is raised, too."""
        metadata = _metadata(iteration, stage)
        with self.maintaining(spec.name) as (delta, follows):
            if after is not None and delta.version() > max(after, 0):
                raise CommitFailedError(f"table {spec.name} is at version {delta.version()}, not {after}")
            if self._is_outdated(spec, written):
                raise CommitFailedError(f"a purge of table {spec.name} has begun since its data files were written")
            version = writing.commit(delta, spec, written.files, metadata if spec.partitioned else {}, metadata | follows, mode)
        if version % COMMITS_PER_CHECKPOINT == 0:
            self._log(spec.name).make_checkpoint()
        return version

    def _is_outdated(self, spec: Table, written: Written) -> bool:
        """Whether a purge that has begun in the object store since then may delete them: they are to be written again."""
        return self.home.store is not None and self._log(spec.name).is_purged_since(written.after)

    def _take_back(self, spec: Table, written: Written) -> None:
        """Delete data files that no commit names: nobody else would before the next purge."""
        paths = [self.folder(spec.name) / unquote(file.path) for file in written.files]
        if (remote := self._log(spec.name).remote) is not None:
            remote.take_back(paths)
        for path in paths:
            path.unlink(missing_ok=True)

    def erase(self, table: str, ids: Sequence[str], *, iteration: str, stage: str) -> int:
        """Take the rows with these keys out of a partition, in one commit; returns how many. Their files stay until a vacuum, so this is
        one step of withdrawal.purge, and marked as such in the history."""
        (key,) = _known(table).key

        def without(rows: pa.Table) -> tuple[pa.Table, int]:
            import pyarrow.compute as pc

            kept = rows.filter(pc.invert(pc.is_in(rows.column(key), value_set=pa.array(ids, rows.schema.field(key).type))))
            return kept, rows.num_rows - kept.num_rows

        return self.rewrite(table, without, iteration=iteration, stage=stage)

    def rewrite(self, table: str, change: Callable[[pa.Table], tuple[pa.Table, int]], *, iteration: str, stage: str) -> int:
        """Change a partition by a step of withdrawal.purge, in one commit. `change` gives the rows that take the place of those that are
        there, and how many it changed; that is returned, and where it is none nothing is written."""
        spec = _known(table)
        check_partition(iteration, stage)

        place = {"iteration": iteration, "stage": stage}

        def attempt() -> int:
            with self.maintaining(table) as (delta, after):
                changed, num = change(self.read(table, iteration=iteration, stage=stage, version=delta.version()))
                if num:
                    files = write_files(spec, changed, self.folder(table), place)
                    writing.commit(delta, spec, files, place, {"purge": "true"} | after, "overwrite")
                return num

        what = f"purge of table {table}, partition {iteration}/{stage}"
        return retry_commit(what, self.folder(table), attempt, attempts=self._attempts)

    def erase_screenshots(self, ids: Collection[str]) -> int:
        """`erase` for pictures. The others are rewritten as they are read: there may be more of them than memory."""
        import pyarrow.compute as pc

        spec, is_meant = TABLES["screenshots"], pc.field("screenshot_id").isin(pa.array(sorted(ids), pa.string()))

        def attempt() -> int:
            with self.maintaining(spec.name) as (delta, after):
                dataset = self.dataset(spec.name, delta.version())
                num = dataset.count_rows(filter=is_meant)
                if num:
                    kept = dataset.scanner(filter=~is_meant, batch_size=PICTURES_AT_ONCE).to_reader()
                    files = write_files(spec, kept, self.folder(spec.name), {})
                    writing.commit(delta, spec, files, {}, {"purge": "true"} | after, "overwrite")
                return int(num)

        with FileLock(self.home.locks / "screenshots.lock"):
            return retry_commit("purge of table screenshots", self.folder(spec.name), attempt, attempts=self._attempts)

    @contextmanager
    def _reading(self, table: str, version: int | None = None) -> Iterator[None]:
        try:
            yield
        except (CorruptTable, StoreUnreachable):
            raise
        except (DeltaError, pa.ArrowException, OSError) as error:
            erasing = (VACUUM_BEGUN, VACUUMED)
            purged = [commit.version for commit in self.history(table) if commit.operation in erasing] if version is not None else []
            if version is not None and purged and version < purged[0]:
                raise UnknownTable(f"table {table}: a purge erased version {version}; read {purged[0]} or later") from error
            self.raise_explained(table, error)

    def raise_explained(self, table: str, error: Exception) -> NoReturn:
        """Of a read of a table that failed: see repair/integrity.py."""
        raise_explained(table, self.folder(table), self._open(_known(table), None), error, self._log(table).remote)


def local_path(uri: str) -> Path:
    """A file of a local Delta table, given as a path or as a file:// address."""
    if uri.startswith("file://"):
        return Path(unquote(urlparse(uri).path))
    path = Path(uri)
    return path if path.exists() else Path(unquote(uri))  # deltalake quotes the folder of the table, e.g. a space in the home's path


def _metadata(iteration: str | None, stage: str | None) -> dict[str, str]:
    return {name: value for name, value in (("iteration", iteration), ("stage", stage)) if value is not None}


def _place(spec: Table, iteration: str | None, stage: str | None) -> str:
    return f"table {spec.name}, partition {iteration}/{stage}"


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
