"""Taking samples and annotations back. History is append-only: a withdrawn row is answered by a tombstone, and the next snapshot leaves it
out. `purge` is the one place that erases anything physically.

A tombstone is a row of the same key in stage `withdrawn`, with `withdrawn` true and nothing of the content. query.connect shows every row
of such a key as withdrawn.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties

from warehouse.core.errors import UnknownId, UnknownTable
from warehouse.core.locks import FileLock
from warehouse.datasets import erasing_episodes
from warehouse.storage.catalogue import MESSAGES, TABLES, WITHDRAWN_STAGE
from warehouse.storage.files.data_files import UNFINISHED
from warehouse.storage.log.actions import VACUUMED
from warehouse.storage.partitions import check_iteration
from warehouse.storage.tables import Warehouse

WITHDRAWABLE = tuple(name for name, table in TABLES.items() if any(column.name == "withdrawn" for column in table.columns))
"""Tables whose rows can be taken back: annotations, and samples of each kind."""
TAKEN_BACK = "select episode_id from annotations where origin = 'human' group by episode_id having bool_and(withdrawn)"
"""Episodes that a person took back, as a query: nothing is learned from them any more, whatever else would."""
_EMPTIED = {"proposal": "", "response": None}
"""Content of an annotation besides its messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """What one purge erased from one table."""

    table: str
    num_rows: int
    num_files: int


def withdraw(warehouse: Warehouse, table: str, ids: Iterable[str], *, iteration: str) -> int:
    """Take rows back from `iteration` on; returns the table's version. What is withdrawn already stays so.

    Raises UnknownTable for a table whose rows cannot be withdrawn, UnknownId for an id that it does not hold.
    """
    key = _key(table)
    check_iteration(iteration)
    wanted = list(dict.fromkeys(ids))
    with _lock(warehouse, table):
        done = withdrawn_ids(warehouse, table)
        pending = [id_ for id_ in wanted if id_ not in done]
        tombstones = _tombstones(warehouse, table, key, pending)
        missing = [id_ for id_ in pending if id_ not in tombstones]
        if missing:
            raise UnknownId(f"table {table} has no {key} {missing[0]!r} ({len(missing)} unknown in all): nothing was withdrawn")
        if not pending:
            return warehouse.version(table)
        return warehouse.append_partition(table, [tombstones[id_] for id_ in pending], iteration=iteration, stage=WITHDRAWN_STAGE)


def withdrawn_ids(warehouse: Warehouse, table: str, *, as_of: str | None = None) -> set[str]:
    """Ids that have a tombstone."""
    key = _key(table)
    return set(warehouse.read(table, stage=WITHDRAWN_STAGE, columns=[key], as_of=as_of).column(key).to_pylist())


def num_to_purge(warehouse: Warehouse, also: Mapping[str, Collection[str]] | None = None, *, taken_back: Collection[str] = ()) -> int:
    """How many rows a purge would erase, were the ids of `also`, by table, withdrawn too. `taken_back`: as of `purge`."""
    ids = {table: withdrawn_ids(warehouse, table).union((also or {}).get(table, ())) for table in WITHDRAWABLE}
    recorded = erasing_episodes.erasable(warehouse, ids[erasing_episodes.SAMPLES], taken_back)
    num_rows = int(sum(_held(warehouse, table, sorted(ids[table])).num_rows for table in WITHDRAWABLE))
    return num_rows + erasing_episodes.num_with_content(warehouse, recorded)


def num_held(warehouse: Warehouse, table: str, ids: Collection[str]) -> int:
    """How many rows of these ids hold their content, withdrawn or not."""
    return int(_held(warehouse, table, sorted(ids)).num_rows) if ids else 0


def purge(
    warehouse: Warehouse,
    tables: Sequence[str] = WITHDRAWABLE,
    *,
    taken_back: Collection[str] = (),
    forgotten: Collection[str] = (),
    unsaid: Collection[str] = (),
) -> list[Purged]:
    """Erase the content of withdrawn rows from the disk, in every version; their tombstones stay. There is no way back.

    Versions of a purged table from before the purge can no longer be read; `as_of` then answers from the purged version. Of recordings of
    people's own work all of whose samples are withdrawn, episode and steps are emptied too, and pictures that nothing else names go; those
    that other samples were cut from are not touched. `taken_back`: episodes of recordings that people took back, which may have given no
    sample; `forgotten`: episodes of any kind that are emptied; `unsaid`: episodes that stay without the reasons of
    what people say of them. Nothing else may write these tables meanwhile: hold the lock of the iteration. What was cut off is finished by
    the same again.
    """
    results = []
    if erasing_episodes.SAMPLES in tables:
        withdrawn = withdrawn_ids(warehouse, erasing_episodes.SAMPLES)
        recorded = erasing_episodes.erasable(warehouse, withdrawn, taken_back, forgotten=forgotten, unsaid=unsaid)
        for table in ("screenshots", *erasing_episodes.EMPTY):
            results += _vacuumed(warehouse, table, erasing_episodes.erase(warehouse, table, recorded))
    for table in tables:
        with _lock(warehouse, table):
            ids = sorted(withdrawn_ids(warehouse, table))
            num_rows = _erase(warehouse, table, ids) if ids else 0
            results += _vacuumed(warehouse, table, num_rows)
    return results


def _vacuumed(warehouse: Warehouse, table: str, num_rows: int) -> list[Purged]:
    """Remove the files of what was erased from a table, and of writers that were killed; one or none."""
    if not _is_unfinished(warehouse, table) and not warehouse.unnamed_files(table):
        return []
    erased: set[str] = set()

    def attempt() -> int:
        with warehouse.maintaining(table) as (delta, after):
            if warehouse.home.store is not None:
                # Where the files are not in this copy there would be nothing to erase here, and no commit by which the others erase theirs.
                (warehouse.folder(table) / f"{uuid.uuid4().hex}{UNFINISHED}").touch()
            # Full: a writer that was killed has left files that no commit names.
            found = delta.vacuum(
                retention_hours=0,
                enforce_retention_duration=False,
                dry_run=False,
                full=True,
                commit_properties=CommitProperties(custom_metadata=after),
            )
            erased.update(path for path in found if not path.endswith(UNFINISHED))
        return len(erased)

    warehouse.retrying(f"purge of table {table}", table, attempt)
    return [Purged(table=table, num_rows=num_rows, num_files=len(erased))] if num_rows or erased else []


def _lock(warehouse: Warehouse, table: str) -> FileLock:
    """Which samples are withdrawn is read and written in one go: two withdrawals write no tombstone twice."""
    return FileLock(warehouse.home.locks / f"{table}.withdrawn.lock")


def _is_unfinished(warehouse: Warehouse, table: str) -> bool:
    """Whether rows were deleted, now or by a purge that was cut off, and their files are still there."""
    last = next((commit for commit in warehouse.history(table) if commit.is_purge or commit.operation == VACUUMED), None)
    return last is not None and last.is_purge


def _held(warehouse: Warehouse, table: str, ids: Sequence[str]) -> pa.Table:
    """Where the content of these rows lies, tombstones left out: (iteration, stage, key)."""
    key = _key(table)
    rows = warehouse.read(table, columns=["iteration", "stage", key])
    is_named = pc.is_in(rows.column(key), value_set=pa.array(ids, rows.schema.field(key).type))
    return rows.filter(pc.and_(is_named, pc.not_equal(rows.column("stage"), WITHDRAWN_STAGE)))


def _erase(warehouse: Warehouse, table: str, ids: Sequence[str]) -> int:
    """Rewritten by our own writer: Delta's DELETE leaves files whose texts Arrow cannot compare with those of the others."""
    places = sorted({(row["iteration"], row["stage"]) for row in _held(warehouse, table, ids).to_pylist()})
    return sum(warehouse.erase(table, ids, iteration=iteration, stage=stage) for iteration, stage in places)


def _tombstones(warehouse: Warehouse, table: str, key: str, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Rows without their content, which is not even read, by their ids."""
    columns = [column for column in TABLES[table].columns if column.name not in ("iteration", "stage")]
    emptied: dict[str, Any] = {column.name: [] for column in columns if column.type == MESSAGES}
    emptied |= {column.name: _EMPTIED[column.name] for column in columns if column.name in _EMPTIED}
    rows = warehouse.read(table, columns=[column.name for column in columns if column.name not in emptied])
    found = rows.filter(pc.is_in(rows.column(key), value_set=pa.array(ids, rows.schema.field(key).type)))
    tombstones: dict[str, dict[str, Any]] = {}
    for row in found.to_pylist():
        tombstones.setdefault(row[key], row | emptied | {"withdrawn": True})
    return tombstones


def _key(table: str) -> str:
    if table not in WITHDRAWABLE:
        raise UnknownTable(f"rows of {table!r} cannot be withdrawn: those of {', '.join(WITHDRAWABLE)} can")
    (key,) = TABLES[table].key
    return key
