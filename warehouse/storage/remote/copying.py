"""Copying a home's tables and checkpoints between a disk and an object store. What is there already, whole, is not copied again, so a copy
that was cut off goes on; what has another history is refused. Nobody may write either side meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from warehouse.core.durable import crc32, digest, make_folder, sync, sync_file
from warehouse.core.errors import CheckpointError, ConfigError, CorruptTable
from warehouse.core.home import Home, atomic_write
from warehouse.core.store import Store
from warehouse.storage.catalogue import TABLES
from warehouse.storage.files.data_files import check_file
from warehouse.storage.log.actions import added_files, read_actions
from warehouse.storage.log.chain import UNKNOWN
from warehouse.storage.log.table_log import TableLog
from warehouse.storage.remote import checkpoints as remote_checkpoints
from warehouse.storage.remote.log import num_unlinked
from warehouse.storage.remote.table import RemoteTable
from warehouse.storage.tables import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing to copy: a data file, the log of a table, a checkpoint. `copy` does nothing for what is there, and raises WarehouseError or
    CheckpointError; data files of a table come before its log."""

    name: str
    num_bytes: int
    copy: Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A table as it is at the source: the log files of all its versions, and the data files that they name and that are there."""

    name: str
    logs: list[bytes]
    files: dict[str, int]
    unlinked: int
    """How many of its first versions do not say rightly which they follow, as a repair has put others in their place."""


def to_store(home: Home, store: Store) -> Iterator[Part]:
    """What a home on a disk has, to be put in a store. Raises ConfigError, CorruptTable."""
    store.check_creates()
    local = Home(home.root, None)
    tables: list[tuple[TableLog, RemoteTable, _Table]] = []
    for table in TABLES:
        log = TableLog(local, table)
        there = _on_disk(log)
        if there is not None:
            remote = RemoteTable(store, table, log.folder)
            _check_sent(remote, there)
            tables.append((log, remote, there))
    for log, remote, there in tables:
        present = remote.sizes()
        for name, size in there.files.items():
            yield Part(name=f"{there.name}/{name}", num_bytes=size, copy=partial(_send, remote, log, name, present.get(name) == size))
        yield Part(name=f"log of {there.name}", num_bytes=sum(map(len, there.logs)), copy=partial(_send_log, remote, there))
    # Tables of a home that uses the store are there already; checkpoints that it has replace those that are damaged there.
    used = [] if tables else [path for path in _checkpoints(Home(home.root, store)) if (home.root / path).is_dir()]
    for path in _checkpoints(local) if tables else used:
        folder = home.root / path
        yield Part(name=path, num_bytes=_size(folder), copy=partial(_send_checkpoint, store, path, folder))


def to_disk(store: Store, home: Home) -> Iterator[Part]:
    """What a store has, to be copied to a home on a disk. Raises ConfigError, CorruptTable."""
    local = Home(home.root, None)
    tables: list[tuple[TableLog, RemoteTable, _Table]] = []
    for table in TABLES:
        log = TableLog(local, table)
        remote = RemoteTable(store, table, log.folder)
        logs = remote.logs_from(0)
        if logs:
            sizes = remote.sizes()
            files = {name: sizes[name] for each in logs for name, _ in added_files(read_actions(each)) if name in sizes}
            there = _Table(name=table, logs=logs, files=files, unlinked=0)
            _check_got(log, there)
            tables.append((log, remote, there))
    for log, remote, there in tables:
        for name, size in there.files.items():
            yield Part(name=f"{there.name}/{name}", num_bytes=size, copy=partial(_get, remote, log, name))
        yield Part(name=f"log of {there.name}", num_bytes=sum(map(len, there.logs)), copy=partial(_get_log, log, there))
    for name in [each.name for each in store.list("checkpoints") if each.name.endswith(f"/{remote_checkpoints.MANIFEST}")]:
        path = name.removesuffix(f"/{remote_checkpoints.MANIFEST}")
        found = remote_checkpoints.read_manifest(store, path)
        num_bytes = sum(file.size for file in found.files) if found is not None else 0
        yield Part(name=path, num_bytes=num_bytes, copy=partial(_get_checkpoint, store, path, home.root / path))


def _on_disk(log: TableLog) -> _Table | None:
    newest = log.newest()
    if newest is None:
        if log.path.exists():
            raise ConfigError(f"table {log.table} has no chain of commits yet, which its next commit begins: run a stage first")
        return None
    if lost := log.check_logs(0, newest):
        raise ConfigError(f"table {log.table}: the log file of version {lost[0]} is lost, and a history with gaps cannot be copied")
    logs = [log.file(version).read_bytes() for version in range(newest + 1)]
    named = {name: size for each in logs for name, size in added_files(read_actions(each))}
    files = {name: size for name, size in named.items() if (log.folder / name).exists()}
    return _Table(name=log.table, logs=logs, files=files, unlinked=num_unlinked(log.commits, logs))


def _send(remote: RemoteTable, log: TableLog, name: str, is_there: bool) -> None:
    path = log.folder / name
    check_file(path)
    expected = crc32(path)
    if not is_there or remote.checksum(path) != expected:
        remote.put(path)
        if remote.checksum(path) != expected:
            raise CorruptTable(f"{remote.url(path)} is not what was sent: look at the object store")


def _send_log(remote: RemoteTable, there: _Table) -> None:
    num = _check_sent(remote, there)
    if there.unlinked:
        remote.write_unlinked(there.unlinked)
    for version, log in enumerate(there.logs[num:], start=num):
        if not remote.publish(version, log):
            raise _other(there.name, version, remote.url_of_table)


def _check_sent(remote: RemoteTable, there: _Table) -> int:
    """How many versions are in the store. Raises ConfigError for another history."""
    found = remote.logs_from(0)
    _check_same(there.name, found[: len(there.logs)], there.logs[: len(found)], remote.url_of_table)
    return len(found)


def _get(remote: RemoteTable, log: TableLog, name: str) -> None:
    path = log.folder / name
    remote.check([path])
    make_folder(path.parent)
    sync_file(path)


def _get_log(log: TableLog, there: _Table) -> None:
    newest = len(there.logs) - 1
    with log.lock():
        num = _check_got(log, there)
        for version, data in enumerate(there.logs[num:], start=num):
            atomic_write(log.file(version), data)
        sync(log.path)
        log.begin_again(newest)
    records = log.commits.records(0, newest + 1)
    if any(record.digest in (UNKNOWN, "") or record.digest != digest(data) for record, data in zip(records, there.logs, strict=True)):
        raise CorruptTable(f"the log of table {there.name} in {log.folder} is not what was copied: look at its disk")


def _check_got(log: TableLog, there: _Table) -> int:
    """How many versions are on the disk. Raises ConfigError for another history."""
    found = sorted(log.path.glob("[0-9]*.json"))
    _check_same(there.name, [path.read_bytes() for path in found], there.logs[: len(found)], str(log.folder))
    return len(found)


def _check_same(table: str, there: Sequence[bytes], ours: Sequence[bytes], where: str) -> None:
    for version, (one, other) in enumerate(zip(there, ours, strict=False)):
        if one != other:
            raise _other(table, version, where)
    if len(there) > len(ours):
        raise _other(table, len(ours), where)


def _other(table: str, version: int, where: str) -> ConfigError:
    return ConfigError(
        f"{where} has another history of table {table} from version {version} on: copy to an empty place, or to one where a copy of "
        "this home was begun"
    )


def _checkpoints(home: Home) -> list[str]:
    return sorted(set(Warehouse(home).read("checkpoints", columns=["path"]).column(0).to_pylist()))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _send_checkpoint(store: Store, path: str, folder: Path) -> None:
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint {folder} is registered and is not there: `flywheel verify` says what else is missing")
    what = remote_checkpoints.damage(store, path)
    for again in (False, True):
        if what is not None and (again or not remote_checkpoints.is_sent(store, path)):
            remote_checkpoints.put(store, path, folder, again=again)
            what = remote_checkpoints.damage(store, path)
    if what is not None:
        raise CheckpointError(f"checkpoint {path} {what}: look at the object store")


def _get_checkpoint(store: Store, path: str, folder: Path) -> None:
    if not folder.is_dir():
        remote_checkpoints.get(store, path, folder)
        for each in sorted(folder.rglob("*")):
            sync(each)
        sync_file(folder)
