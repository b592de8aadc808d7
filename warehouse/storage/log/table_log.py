"""The log of one Delta table and its chain: which version counts, whether the files behind it are as they were committed, and how a commit
becomes one that counts. Rows are warehouse/storage/tables.py's business; tables in an object store are warehouse/storage/remote/log.py's.

A commit is done once its data files, its log file, their folders and its record in the chain are on the disk; nobody reads it before. What
lies in the log beyond the chain is of a writer that is at work or was killed, or was torn by a power cut. The next one to come settles it
under the table's lock: what is whole is taken into the chain, what is torn is moved to `set_aside`. What the chain holds is never moved.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from warehouse.core.durable import digest, make_folder, sync, sync_file
from warehouse.core.errors import ConfigError, CorruptTable
from warehouse.core.home import Home, atomic_write
from warehouse.core.locks import FileLock
from warehouse.storage.files.data_files import check_file
from warehouse.storage.log.actions import AFTER, VACUUM_BEGUN, added_files, commit_info, read_log
from warehouse.storage.log.chain import UNKNOWN, Chain, Record
from warehouse.storage.remote.table import RemoteTable

COMMITS_PER_CHECKPOINT = 100
HINT = "_last_checkpoint"
_WRITING = threading.local()
"""Tables, by their folders, that this thread is at the head of."""
_CHECKED: dict[str, tuple[int, int, int]] = {}
"""Log files that this process has found as the chain says: size, time of change and inode then."""
_log = logging.getLogger(__name__)


class TableLog:
    """Holds nothing open: any number of processes and threads may have one of the same table."""

    def __init__(self, home: Home, table: str) -> None:
        self.table = table
        self.folder = home.tables / table
        self.path = self.folder / "_delta_log"
        self.commits = Chain(home.chain / f"{table}.commits")
        self.checkpoints = Chain(home.chain / f"{table}.checkpoints")
        self.remote: RemoteTable | None = None
        self._home = home

    def file(self, version: int) -> Path:
        return self.path / f"{version:020d}.json"

    def checkpoint(self, version: int) -> Path:
        return self.path / f"{version:020d}.checkpoint.parquet"

    def lock(self) -> FileLock:
        """One commit of the table at a time: a version's log file is synced, and only then its record written (docs/decisions/0011)."""
        return FileLock(self._home.locks / f"{self.table}.commit.lock")

    def newest(self) -> int | None:
        """The newest version that counts; None where the table has no chain. Settles what others left, where nobody is at work on it."""
        head = self.commits.head()
        if head is None:
            return None
        if self._is_unsettled(head.version):
            self._settle_if_alone()
            head = self.commits.head() or head
        return head.version

    def _settle_if_alone(self) -> None:
        try:
            lock = self.lock()
            if lock.acquire():
                try:
                    self.settle()
                finally:
                    lock.release()
        except CorruptTable:
            raise
        except (OSError, ConfigError):
            return  # a reader that may not write reads what counts so far

    def _is_unsettled(self, version: int) -> bool:
        checkpoint = version // COMMITS_PER_CHECKPOINT * COMMITS_PER_CHECKPOINT
        if self.file(version + 1).exists():
            return True
        return checkpoint > 0 and self.checkpoint(checkpoint).exists() and not self._is_recorded(checkpoint)

    def _is_recorded(self, checkpoint: int) -> bool:
        return any(record.version == checkpoint for record in self._last_checkpoints(checkpoint))

    def check(self, version: int) -> None:
        """Compare the files that a reader of `version` needs with the chain: the last checkpoint up to it, and the log from there on.
        Raises CorruptTable naming the file."""
        begin = 0
        for record in self._last_checkpoints(version):
            path = self.checkpoint(record.version)
            if path.exists():
                self._check(path, record, "`flywheel doctor --repair` sets it aside: nothing is lost, it only makes reading quicker")
                begin = record.version + 1
                break
        if lost := self.check_logs(begin, version):
            raise CorruptTable(f"table {self.table}: version {version} cannot be read, the log file of version {lost[0]} is lost")

    def check_logs(self, begin: int, end: int) -> list[int]:
        """Compare the log files of versions `begin` to `end` with the chain; returns the versions known to be lost. Raises CorruptTable
        naming the file."""
        records = self.commits.records(begin, end + 1)
        for record in records:
            if record.digest != UNKNOWN:
                self._check(self.file(record.version), record, _without(record.version))
        return [record.version for record in records if record.digest == UNKNOWN]

    def _check(self, path: Path, record: Record, fix: str) -> None:
        try:
            found = path.stat()
            state = (found.st_size, found.st_mtime_ns, found.st_ino)
            if _CHECKED.get(str(path)) == state:
                return
            data = path.read_bytes()
        except FileNotFoundError:
            if self._copied_again(path, record):
                return
            raise CorruptTable(
                f"table {self.table}: {path} is missing, though version {record.version} was committed. To fix it: {fix}"
            ) from None
        if len(data) != record.size or digest(data) != record.digest:
            if self._copied_again(path, record):
                return
            what = f"has {len(data)} bytes, {record.size} were committed" if len(data) != record.size else "was changed after its commit"
            raise CorruptTable(f"table {self.table}: {path} {what}. To fix it: {fix}")
        _CHECKED[str(path)] = state

    def _copied_again(self, path: Path, record: Record) -> bool:
        """Whether a damaged file was replaced by what it is a copy of."""
        return False

    def _last_checkpoints(self, version: int) -> Iterator[Record]:
        """Records of the checkpoints up to a version, the last first."""
        end = len(self.checkpoints)
        while end:
            begin = max(0, end - 16)
            yield from (record for record in reversed(self.checkpoints.records(begin, end)) if record.version <= version)
            end = begin

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Alone at the head of the log. What was committed inside counts, and is on the disk, when the context ends; where that cannot be
        had, it is taken back."""
        with self.lock():
            self.settle()
            _heads().add(str(self.folder))
            try:
                yield
                try:
                    self.settle(is_own=True)
                except (OSError, CommitFailedError):
                    self._take_back()
                    raise
            finally:
                _heads().discard(str(self.folder))

    def is_at_head(self) -> bool:
        """Whether this thread is, inside `writing`."""
        return str(self.folder) in _heads()

    def after(self) -> dict[str, str]:
        """What the metadata of the next commit has to hold."""
        return {AFTER: self.commits.head_link()}

    def settle(self, *, is_own: bool = False) -> None:
        """Take what is whole in the log into the chain, and move what is torn aside. Call with the lock held. Raises CorruptTable where
        there is no chain and the newest commit is torn, or where `is_own`, what the caller has just committed."""
        head = self.commits.head()
        if head is None:
            self._begin()
            return
        records: list[Record] = []
        version = head.version + 1
        while self.file(version).exists():
            what = self.find_damage(version)
            if what is not None and is_own:
                raise CorruptTable(f"table {self.table}: {self.file(version)} {what}, though it was just written: look at its disk")
            if what is not None:
                self._set_aside_from(version, what)
                break
            records.append(self._keep(version))
            version += 1
        self.commits.append(records)
        self._settle_checkpoints(head.version)

    def is_purged_since(self, version: int) -> bool:
        """Whether a purge has begun after this version of the chain. It deletes whatever no commit named then, so data files that were
        written before it may not be committed any more."""
        head = self.commits.head()
        later = range(version + 1, head.version + 1) if head is not None else range(0)
        return any(commit_info(read_log(self.file(each))).get("operation") == VACUUM_BEGUN for each in later)

    def unnamed_files(self) -> dict[str, int]:
        """Sizes of data files in the object store that no commit names. None of a table on a disk."""
        return {}

    def _take_back(self) -> None:
        """Nobody has read what lies beyond the chain: a commit that could not be kept did not happen."""
        head = self.commits.head()
        version = 0 if head is None else head.version + 1
        with suppress(OSError):
            while self.file(version).exists():
                self.file(version).unlink()
                version += 1

    def _begin(self) -> None:
        """The chain of a table that has none begins with what is found."""
        versions = sorted(int(path.stem) for path in self.path.glob("[0-9]*.json"))
        if not versions:
            return
        newest = versions[-1]
        if self.is_said_to_have_a_chain(newest):
            raise self.chain_is_missing()
        if (what := self.find_damage(newest)) is not None:
            raise CorruptTable(
                f"table {self.table}: {self.file(newest)} {what}. To fix it: `flywheel doctor --repair` sets this commit aside"
            )
        self.begin_again(newest)
        if newest:
            _log.warning(
                "table %s: its chain of commits begins at version %d, as found; damage from before is not noticed", self.table, newest
            )

    def begin_again(self, newest: int) -> None:
        """Write the chain from the log as it is found, up to version `newest`. Call with the lock held."""
        for version in range(newest + 1):
            if self.file(version).exists():
                sync(self.file(version))
        sync(self.path)
        make_folder(self.path)
        records = [self._record(version, self.file(version)) for version in range(newest + 1)]
        if any(log.digest == UNKNOWN for log in records):
            _log.warning("table %s: its log has gaps; versions that need them cannot be read", self.table)
        found = sorted(int(path.name.split(".")[0]) for path in self.path.glob("[0-9]*.checkpoint.parquet"))
        marks = [self._record(version, self.checkpoint(version)) for version in found if version <= newest]
        atomic_write(self.checkpoints.path, self.checkpoints.lines(marks))
        atomic_write(self.commits.path, self.commits.lines(records))

    def entries(self, newest: int) -> list[dict[str, Any]]:
        """What the commits that are there say of themselves, newest first."""
        found = []
        for version in range(newest, -1, -1):
            if self.file(version).exists():
                found.append({"timestamp": 0, "operation": "", **commit_info(read_log(self.file(version))), "version": version})
        return found

    def is_said_to_have_a_chain(self, version: int) -> bool:
        """Whether the log says that its commits were in a chain."""
        with suppress(OSError, ValueError):
            return any(AFTER in action.get("commitInfo", {}) for action in read_log(self.file(version)))
        return False

    def chain_is_missing(self) -> CorruptTable:
        return CorruptTable(
            f"table {self.table}: its chain of commits {self.commits.path} is missing, so commits may be missing too. To fix it: restore "
            "the file from a backup, or begin the chain again with the commits that are there: `flywheel doctor --repair`"
        )

    def find_damage(self, version: int) -> str | None:
        """What is wrong with a commit's log file or with a data file that it adds; None where all is whole."""
        try:
            actions = read_log(self.file(version))
            if not actions:
                return "is empty"
            for path, size in added_files(actions):
                if (found := (self.folder / path).stat().st_size) != size:
                    return f"adds {path}, which has {found} of {size} bytes"
                check_file(self.folder / path)
        except FileNotFoundError as error:
            return f"needs {error.filename}, which is missing"
        except (ValueError, OSError) as error:
            return f"cannot be read ({error})"
        return None

    def _keep(self, version: int) -> Record:
        """Make a commit survive a power cut. Data files of our own writing are on the disk already: to sync them again costs little."""
        for path, _ in added_files(read_log(self.file(version))):
            sync_file(self.folder / path)
        sync_file(self.file(version))
        make_folder(self.path)
        return self._record(version, self.file(version))

    def record(self, version: int) -> Record:
        """Of a log file as it is now."""
        return self._record(version, self.file(version))

    def _record(self, version: int, path: Path) -> Record:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return Record(version, 0, UNKNOWN)
        return Record(version, len(data), digest(data))

    def _set_aside_from(self, version: int, what: str) -> None:
        moved = [self.file(version)]
        while self.file(version + len(moved)).exists():
            moved.append(self.file(version + len(moved)))
        target = self.set_aside(moved)
        _log.warning("table %s: version %d was never acknowledged and %s; set aside in %s", self.table, version, what, target)

    def rewrite_chain(self, records: Sequence[Record]) -> None:
        """Have the chain say this. Call with the lock held."""
        atomic_write(self.commits.path, self.commits.lines(records))
        kept = [mark for mark in self.sound_checkpoints() if mark.version < len(records)]
        atomic_write(self.checkpoints.path, self.checkpoints.lines(kept))

    def sound_checkpoints(self) -> list[Record]:
        """Records of the checkpoints; none where their chain was changed."""
        try:
            return self.checkpoints.records(0, len(self.checkpoints))
        except CorruptTable:
            return []

    def is_sound(self, record: Record, path: Path) -> bool:
        """Whether a file is as its record says."""
        return self._record(record.version, path) == record

    def set_aside(self, paths: Iterable[Path]) -> Path:
        """Move files of the log away, for good; returns where they are now. Call with the lock held."""
        target = self.aside()
        for path in paths:
            os.rename(path, target / path.name)
        sync(target)
        sync(self.path)
        return target

    def aside(self) -> Path:
        """A new folder for what is moved away."""
        target = self._home.set_aside / f"{self.table}-{time.time_ns()}"
        make_folder(target)
        return target

    def _settle_checkpoints(self, version: int) -> None:
        """A checkpoint without a record may be torn, and only makes reading quicker."""
        last = version // COMMITS_PER_CHECKPOINT * COMMITS_PER_CHECKPOINT
        if last and self.checkpoint(last).exists() and not self._is_recorded(last):
            self.set_aside([self.checkpoint(last), *([hint] if (hint := self.path / HINT).exists() else [])])

    def make_checkpoint(self) -> None:
        """Write a checkpoint of the newest version and take it into its chain: only a shortcut for readers, so one that fails is left."""
        with suppress(DeltaError, OSError), self.lock():
            head = self.commits.head()
            if head is None or self._is_recorded(head.version):
                return
            self.check(head.version)
            DeltaTable(self.folder, version=head.version).create_checkpoint()
            path = self.checkpoint(head.version)
            sync_file(path)
            atomic_write(self.path / HINT, (self.path / HINT).read_bytes())
            self.checkpoints.append([self._record(head.version, path)])


def _heads() -> set[str]:
    if not hasattr(_WRITING, "tables"):
        _WRITING.tables = set()
    tables: set[str] = _WRITING.tables
    return tables


def _without(version: int) -> str:
    return (
        f"restore this log file from a backup; without one, `flywheel doctor --repair` leaves version {version} out of the table, keeps "
        "the commits after it where it can, and says what has to run again"
    )
