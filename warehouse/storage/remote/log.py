"""The log and the chain of a table in an object store (table.py). All that log/table_log.py says of a table is true here of its copy.

What others have committed is taken into its chain first, once each commit was seen to follow those before it; what was committed here is
in the chain once its log file is in the store, under a version that nobody else has taken. A log file of the copy that is not as the chain
says is copied again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from warehouse.core.durable import digest
from warehouse.core.errors import ConfigError, CorruptTable, StoreUnreachable
from warehouse.core.home import Home
from warehouse.core.store import STORE_VARIABLE, Store
from warehouse.storage.files.data_files import RESTORE_OBJECT
from warehouse.storage.log.actions import AFTER, VACUUM_BEGUN, VACUUMED, added_files, commit_info, read_actions, read_log, removed_files
from warehouse.storage.log.chain import Chain, Record
from warehouse.storage.log.table_log import HINT, TableLog
from warehouse.storage.remote.table import RemoteTable

_OWN_COMMITS = 3
"""How many commits one writer makes in a row, all of which say that they follow what was there before: columns, erasing, rows."""
_AT_ONCE = 64
_WRITTEN_S = 3600.0
"""A data file of the copy that no commit names may be of a writer at work for so long."""
_LOOK_S = 30.0
_TRIED = "creates-are-safe"
"""File beside the copies of a store in which conditional puts were seen to work."""


def log_of(home: Home, table: str) -> TableLog:
    """Of a table where the home keeps its tables: on the disk, or in an object store."""
    return TableLog(home, table) if home.store is None else RemoteLog(home, table, home.store)


class RemoteLog(TableLog):
    """What counts is in the store: `newest` follows it, `settle` puts there what was committed here."""

    remote: RemoteTable

    def __init__(self, home: Home, table: str, store: Store) -> None:
        super().__init__(home, table)
        self.remote = RemoteTable(store, table, self.folder)
        self._listed: set[str] | None = None
        """Data files that were in the store when the purge that is under way began."""

    def newest(self) -> int | None:
        self._follow()
        head = self.commits.head()
        return None if head is None else head.version

    def _copied_again(self, path: Path, record: Record) -> bool:
        """Whether a damaged file of a copy was replaced by what is in the store."""
        if path != self.file(record.version):  # of a checkpoint, which is not kept there
            for each in (self.path / HINT, path):
                each.unlink(missing_ok=True)
            return True
        data = self.remote.log(record.version)
        if data is None or digest(data) != record.digest:
            what = "is missing, though it was committed" if data is None else "was changed after its commit"
            raise CorruptTable(f"table {self.table}: {self.remote.url(path)} {what}. To fix it: {RESTORE_OBJECT}")
        _copy(data, path)
        return True

    def _follow(self) -> None:
        """Take what was committed elsewhere into the copy. Does nothing at the head of the log, where nobody is ahead of us."""
        if self.is_at_head():
            return
        head = self.commits.head()
        if head is None:
            is_behind = self.remote.is_begun()
        else:
            last, following = self.remote.logs(head.version, head.version + 2)
            self._check_head(head, last)
            is_behind = following is not None
        if head is None and not is_behind and (on_disk := self._home.root / "tables" / self.table / "_delta_log").is_dir():
            raise ConfigError(
                f"{self.remote.url_of_table} has no table, but {on_disk.parent} has one: `flywheel store copy` puts the tables of this "
                f"home there; or unset {STORE_VARIABLE}, or name another home"
            )
        if not is_behind and not (self.file(0).exists() if head is None else self._is_unsettled(head.version)):
            return
        lock = self.lock()
        if lock.acquire(timeout_s=None if head is None else _LOOK_S):
            try:
                self.settle()
            finally:
                lock.release()
        elif is_behind and self.commits.head() == head:
            raise StoreUnreachable(
                f"table {self.table}: commits of other hosts are in {self.remote.url_of_table}, and process {lock.holder()}, which "
                f"commits, has not let them be copied for {_LOOK_S:.0f} s: do the same again once it goes on, or end it"
            )

    def settle(self, *, is_own: bool = False) -> None:
        """Raises CommitFailedError, too, where another writer was faster than ours."""
        head = self.commits.head()
        version = 0 if head is None else head.version + 1
        if head is not None and not is_own:
            self._check_head(head, self.remote.log(head.version))
        theirs = [] if is_own else self.remote.logs_from(version)
        if theirs:
            self._take_in(version, theirs)
        version += len(theirs)
        while self.file(version).exists():
            what = self.find_damage(version) or self._ends_anothers_purge(version)
            if what is not None and is_own:
                raise CorruptTable(f"table {self.table}: {self.file(version)} {what}, though it was just written: look at its disk")
            if what is not None:
                self._set_aside_from(version, what)
                return
            if not self._publish(version):
                if is_own:
                    raise CommitFailedError(f"version {version} of table {self.table} was committed elsewhere")
                self.settle()
                return
            self.commits.append([self.record(version)])
            version += 1
        if head is not None:
            self._settle_checkpoints(head.version)

    def _check_head(self, head: Record, log: bytes | None) -> None:
        """Raises CorruptTable where the store does not have the last commit of the copy, which nothing may be committed on top of then."""
        if log is None or digest(log) != head.digest:
            what = "is missing" if log is None else "is another"
            raise CorruptTable(
                f"table {self.table}: {self.remote.url(self.file(head.version))} {what}, though it was committed. To fix it: "
                f"{RESTORE_OBJECT}; where the store was put back to an earlier state, delete "
                f"{self._home.tables.parent}, and the folder of that name of every other home: these are copies of what was there before"
            )

    def _take_in(self, version: int, logs: Sequence[bytes]) -> None:
        """Have the copy hold the commits from `version` on, which are in the store."""
        if self.file(version).exists() and self.file(version).read_bytes() != logs[0]:
            self._set_aside_from(version, "was overtaken by another writer's")
        records = [Record(version + index, len(log), digest(log)) for index, log in enumerate(logs)]
        self._check_order(records, logs)
        for record, log in zip(records, logs, strict=True):
            _copy(log, self.file(record.version))
        for begin in range(0, len(records), _AT_ONCE):
            self.commits.append(records[begin : begin + _AT_ONCE])
        if any(commit_info(read_actions(log)).get("operation") == VACUUMED for log in logs):
            self._erase_copies(records[-1].version)

    def _erase_copies(self, version: int) -> None:
        """Of data files that commits up to a version took out of the table, and of what killed writers left."""
        removed, held = self._removed(version), self._held(version)
        for path in self.folder.rglob("*.parquet"):
            name = path.relative_to(self.folder).as_posix()
            if name in held or "_delta_log" in path.parts:
                continue
            with suppress(FileNotFoundError):
                if name in removed or time.time() - path.stat().st_mtime > _WRITTEN_S:
                    path.unlink()

    def _check_order(self, records: Sequence[Record], logs: Sequence[bytes]) -> None:
        """Each commit says which link of the chain it follows: so it is seen where one before it was changed."""
        num = len(self.commits)
        before = [self.commits.link(index) for index in range(max(0, num - _OWN_COMMITS), num)]
        links = [*before[:-1], *self.commits.links(records)]
        try:
            unlinked = _unlinked(links, records[0].version, logs)
        except ValueError as error:
            url = self.remote.url(self.file(records[0].version))
            raise CorruptTable(
                f"table {self.table}: {url}, or one after it, is not a log ({error}). To fix it: {RESTORE_OBJECT}"
            ) from error
        if unlinked and unlinked[-1] >= self.remote.num_unlinked():
            url = self.remote.url(self.file(unlinked[-1]))
            raise CorruptTable(
                f"table {self.table}: {url} does not follow the commits before it: it, or one of them, was changed. To fix it: "
                f"{RESTORE_OBJECT}"
            )

    def _publish(self, version: int) -> bool:
        """Have a commit of ours count; False where somebody else's has this version. Raises ConfigError for a store that cannot say."""
        if not (tried := self._home.tables.parent / _TRIED).exists():
            self.remote.store.check_creates()
            tried.touch()
        log = self.file(version).read_bytes()
        actions = read_actions(log)
        operation = commit_info(actions).get("operation")
        if operation == VACUUM_BEGUN:
            self._listed = set(self.remote.data_files())
        elif operation == VACUUMED:
            self.remote.erase(sorted((self._listed or set()) - self._held(version)))
        self.remote.upload(self.folder / path for path, _ in added_files(actions))
        return self.remote.publish(version, log)

    def _ends_anothers_purge(self, version: int) -> str | None:
        """What is wrong with the end of a purge whose beginning another process has put: what it is to delete, only that one knew. The
        purge is done again by its next call."""
        if commit_info(read_log(self.file(version))).get("operation") == VACUUMED and self._listed is None:
            return "ends a purge that was cut off"
        return None

    def unnamed_files(self) -> dict[str, int]:
        """Sizes of data files in the store that no commit names: of writers that were killed, or are at work."""
        if (head := self.newest()) is None:
            return {}
        there = self.remote.data_files()
        logs = [self.file(version) for version in range(head + 1)]
        named = {path for log in logs if log.exists() for path, _ in added_files(read_log(log))}
        return {path: size for path, size in there.items() if path not in named}

    def _removed(self, version: int) -> set[str]:
        """Data files that commits up to a version took out of the table."""
        return {unquote(path) for each in range(version + 1) for path in removed_files(read_log(self.file(each)))}

    def _held(self, version: int) -> set[str]:
        """Data files of a version."""
        added = pa.table(DeltaTable(self.folder, version=version).get_add_actions(flatten=True)).column("path").to_pylist()
        return {unquote(path) for path in added}


def num_unlinked(commits: Chain, logs: Sequence[bytes]) -> int:
    """How many of a table's first versions, of which these are the log files, do not all say rightly which commits they follow: those that
    a repair has changed, and those of before."""
    records = [Record(version, len(log), digest(log)) for version, log in enumerate(logs)]
    unlinked = _unlinked(commits.links(records, afresh=True), 0, logs)
    return unlinked[-1] + 1 if unlinked else 0


def _unlinked(links: Sequence[str], version: int, logs: Sequence[bytes]) -> list[int]:
    """Versions, of the log files from `version` on, that say of themselves that they follow others than those before them. `links` are
    those of the chain up to the last version, of which at least one is of before the first. Raises ValueError for what is not a log."""
    found = []
    for index, log in enumerate(logs, start=len(links) - len(logs)):
        follows = commit_info(read_actions(log)).get(AFTER)
        if follows is not None and follows not in links[max(0, index - _OWN_COMMITS) : index]:
            found.append(version + index - (len(links) - len(logs)))
    return found


def _copy(data: bytes, path: Path) -> None:
    """A file of a copy is whole, but need not survive a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    aside.write_bytes(data)
    aside.replace(path)
