"""How a version of a Delta table is opened: to be read, once its log was seen to be as its chain says, or to be committed to, alone at the
head of its log. What is read and committed is warehouse/storage/tables.py's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from warehouse.core.errors import CorruptTable, UnknownTable, WarehouseError
from warehouse.storage.catalogue import Table
from warehouse.storage.log.table_log import TableLog
from warehouse.storage.log.writing import create
from warehouse.storage.repair.integrity import raise_explained

_AT_HEAD: dict[Path, tuple[str, DeltaTable]] = {}
"""Tables, by their folders, as this process has left them, and the link of the chain up to there: opening one again reads its log again."""
_MAX_AT_HEAD = 32


def open_version(spec: Table, log: TableLog, version: int | None) -> DeltaTable | None:
    """A version, or with None the newest; None where nobody wrote the table yet. Raises UnknownTable for a version that it does not have,
    CorruptTable."""
    try:
        newest = log.newest()
        if newest is None and not log.path.exists():
            _refuse_lost_log(log)
            if version is None:
                return None
            raise UnknownTable(f"table {spec.name} has no version {version}: nothing was written to it yet")
        if newest is None:
            return _open_unchained(spec, log, version)
        wanted = newest if version is None else version
        if not 0 <= wanted <= newest:
            raise UnknownTable(f"table {spec.name} has no version {version}: it has 0 to {newest}")
        log.check(wanted)
        return DeltaTable(log.folder, version=wanted)
    except WarehouseError:
        raise
    except (DeltaError, OSError) as error:
        raise_explained(spec.name, log.folder, None, error, log.remote)


@contextmanager
def open_to_commit(spec: Table, log: TableLog) -> Iterator[DeltaTable]:
    """The newest version, and nobody else commits meanwhile. The table is made where it is missing. What was committed inside counts once
    the context has ended."""
    with log.writing():
        if log.commits.head() is None:
            _refuse_lost_log(log)
            made = create(spec, log.folder)
            log.settle(is_own=True)
            _keep_at_head(log, made)
        delta = _at_head(log)
        yield delta
    _keep_at_head(log, delta)


def _open_unchained(spec: Table, log: TableLog, version: int | None) -> DeltaTable | None:
    """A table that nobody has written to since chains were introduced."""
    try:
        newest = DeltaTable(log.folder)
    except TableNotFoundError:
        _refuse_lost_log(log)
        return None
    if log.is_said_to_have_a_chain(newest.version()):
        raise log.chain_is_missing()
    if version is None:
        return newest
    if not 0 <= version <= newest.version():
        raise UnknownTable(f"table {spec.name} has no version {version}: it has 0 to {newest.version()}")
    return DeltaTable(log.folder, version=version)


def _refuse_lost_log(log: TableLog) -> None:
    if any(log.folder.glob("*.parquet")) or any(log.folder.glob("iteration=*/*/*.parquet")):
        raise CorruptTable(f"table {log.table}: {log.path} holds no log, though there are data files. Restore the folder from a backup")


def _at_head(log: TableLog) -> DeltaTable:
    head = log.commits.head()
    version = 0 if head is None else head.version
    log.check(version)
    link, delta = _AT_HEAD.pop(log.folder, (None, None))
    if delta is not None and delta.version() == version and link == log.commits.head_link():
        return delta
    return DeltaTable(log.folder, version=version)


def _keep_at_head(log: TableLog, delta: DeltaTable) -> None:
    while len(_AT_HEAD) >= _MAX_AT_HEAD:
        oldest, *_ = _AT_HEAD
        _AT_HEAD.pop(oldest, None)
    with suppress(WarehouseError, OSError, IndexError):  # a repair may have made the chain shorter since
        _AT_HEAD[log.folder] = log.commits.link(delta.version()), delta
