"""DuckDB over the warehouse: every table as a view, the lineage view beside them, at any version. Nothing here writes a table."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast

import duckdb
import pyarrow as pa

from warehouse.core.errors import CorruptTable, QueryError, UnknownTable
from warehouse.storage.catalogue import TABLES, WITHDRAWN_STAGE, Table
from warehouse.storage.partitions import DataFile, check_iteration, of_iterations
from warehouse.storage.sql.file_sql import typed_rows
from warehouse.storage.sql.views import Connection
from warehouse.storage.tables import Warehouse

if TYPE_CHECKING:
    import pyarrow.dataset as pads

MEMORY_LIMIT = "4GB"


@contextmanager
def connect(
    warehouse: Warehouse,
    *,
    as_of: str | None = None,
    versions: Mapping[str, int] | None = None,
    sealed: bool = True,
    splits: Collection[str] | None = None,
    memory_limit: str = MEMORY_LIMIT,
    threads: int | None = None,
    tables: Collection[str] | None = None,
    iterations: Collection[str] | None = None,
    lineage: bool = False,
    natively: bool = False,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """For as long as a block runs, an in-memory DuckDB with every table of the catalogue as a view of its newest version, or as of an
    iteration, or at `versions`.

    With `lineage` there are, beside the tables, `lineage(child_kind, child_id, parent_kind, parent_id, relation)`,
    `lineage_nodes(kind, id, iteration, stage, label)` and the table macros `ancestors(id)` and `descendants(id)`; binding them takes longer
    than all the tables do. Filters and projections reach the Parquet files; a table that nobody wrote yet is empty. `withdrawn` is true for
    every row that was ever withdrawn; its tombstone is seen once the row has been purged.

    `sealed` keeps SQL from files, extensions, settings and Python variables, so that a person's query can be run as it is; relations
    registered on the connection still work. `splits` leaves out the rows of other splits, and of episodes on other splits (what a choice
    may read: warehouse/evaluation/choosing.py).

    A view is made when a statement of the block first names its table; what it shows is what was there when the block began.

    `tables` gives views of these alone (lineage needs them all); `iterations` opens the files of these iterations alone: their rows are all
    there, as they would be seen otherwise, and of other iterations some tombstones. Both are for who knows what a query reads, in a home
    whose history is long or whose tables are in an object store: finding out what is newest costs a request a table.

    `natively` is for our own SQL on newest versions: DuckDB reads the files itself (file_sql.py), so nothing is sealed, and the files are
    checked when its table is first named.

    A query of the block that meets a file which is missing or was changed leaves the block as CorruptTable, which names the file.
    """
    if natively and (as_of is not None or versions is not None):
        raise UnknownTable("native reads support the newest versions only, not as_of or versions")
    if as_of is not None and versions is not None:
        raise UnknownTable(f"ask for an iteration (as_of: {as_of}) or for table versions ({', '.join(versions)}), not for both")
    for table in (*(versions or ()), *(tables or ())):
        if table not in TABLES:
            raise UnknownTable(f"no table {table!r}: the tables are {', '.join(TABLES)}")
    before = None if as_of is None else check_iteration(as_of)
    opened = [table for table in TABLES if tables is None or table in tables]
    pinned = dict(versions or {}) if as_of is None else _versions_at(warehouse, opened, as_of)
    newest = {} if as_of is not None else _newest(warehouse, [table for table in opened if table not in pinned])

    def stored(table: str) -> pads.Dataset | str:
        if natively:
            listed = newest[table] if table in newest else warehouse.listed(table)[1]
            return typed_rows(TABLES[table], warehouse.files(table, of_iterations(TABLES[table], listed, iterations)))
        if table in pinned:
            return warehouse.dataset(table, pinned[table], iterations=iterations)
        return warehouse.dataset(table, as_of=as_of, iterations=iterations, files=newest.get(table))

    def view(table: str) -> str:
        return _view(TABLES[table], before, splits)

    con = duckdb.connect(":memory:")
    try:
        con.execute("SET memory_limit = ?", [memory_limit])
        con.execute("SET temp_directory = ?", [str(warehouse.home.scratch / "duckdb")])
        if threads is not None:
            con.execute(f"SET threads = {int(threads)}")
        if sealed and not natively:
            for setting in ("python_enable_replacements = false", "enable_external_access = false", "lock_configuration = true"):
                con.execute(f"SET {setting}")
        yield cast(duckdb.DuckDBPyConnection, Connection(con, opened, stored, view, lineage=lineage))
    except duckdb.Error as error:
        for table in TABLES:
            folder = warehouse.folder(table)
            if f"registered as '{table}_stored'" in str(error) or f"{folder}{os.sep}" in str(error):
                warehouse.raise_explained(table, error)
        raise
    finally:
        con.close()


def _newest(warehouse: Warehouse, tables: Iterable[str]) -> dict[str, list[DataFile]]:
    """Files of the newest version of these tables; a table that is damaged says so once it is read."""
    found = {}
    for table in tables:
        with suppress(CorruptTable):
            found[table] = warehouse.listed(table)[1]
    return found


def _versions_at(warehouse: Warehouse, tables: Iterable[str], as_of: str) -> dict[str, int]:
    """As `_newest`, of the versions as of an iteration."""
    found = {}
    for table in tables:
        with suppress(CorruptTable):
            found[table] = warehouse.version(table, as_of)
    return found


def _view(spec: Table, as_of: str | None, splits: Collection[str] | None) -> str:
    """SQL of one table's view: no row of an iteration after `as_of` or of a split that is not among `splits`, `withdrawn` true for every
    row whose id has a tombstone, and the tombstone itself only where a purge has erased what it stands for."""
    names = {column.name for column in spec.columns}
    seen = f"iteration <= '{as_of}'" if as_of is not None and spec.partitioned else "true"
    if splits is not None:
        seen += _only(names, ", ".join(f"'{split}'" for split in sorted(splits)))
    return f"CREATE VIEW {spec.name} AS {seen_rows(spec, f'{spec.name}_stored', seen)}"


def seen_rows(spec: Table, stored: str, where: str = "true") -> str:
    """SQL of the rows of a table as its view has them, from those that are stored."""
    if later := [f"coalesce({column.name}, {column.before}) AS {column.name}" for column in spec.columns if column.before is not None]:
        return f"SELECT * REPLACE ({', '.join(later)}) FROM {stored} WHERE {where}"
    if "withdrawn" not in {column.name for column in spec.columns}:
        return f"SELECT * FROM {stored} WHERE {where}"
    (key,) = spec.key
    is_tombstone = f"stage = '{WITHDRAWN_STAGE}'"
    tombstones = f"SELECT {key} FROM {stored} WHERE {is_tombstone} AND {where}"
    held = f"SELECT {key} FROM {stored} WHERE NOT {is_tombstone} AND {where}"
    return (
        f"SELECT * REPLACE (withdrawn OR {key} IN ({tombstones}) AS withdrawn) "
        f"FROM {stored} WHERE {where} AND NOT ({is_tombstone} AND {key} IN ({held}))"
    )


def _only(names: Collection[str], allowed: str) -> str:
    """SQL that keeps the rows of some splits: by the table's own split, or by that of the episode that the row is about."""
    if "split" in names:
        return f" AND split IN ({allowed})"
    if "episode_id" in names:
        others = f"SELECT episode_id FROM episodes_stored WHERE split NOT IN ({allowed})"
        return f" AND (episode_id IS NULL OR episode_id NOT IN ({others}))"
    return ""


def run(warehouse: Warehouse, sql: str, *, as_of: str | None = None, versions: Mapping[str, int] | None = None) -> pa.Table:
    """Answer one query of a person. Raises QueryError for wrong SQL, CorruptTable naming the file where a table cannot be read."""
    try:
        with connect(warehouse, as_of=as_of, versions=versions, lineage=True) as con:
            relation = con.sql(sql)
            return pa.table({"rows": pa.array([], pa.int64())}) if relation is None else relation.to_arrow_table()
    except duckdb.Error as error:
        raise QueryError(_readable(error)) from error


def _readable(error: duckdb.Error) -> str:
    return f"the query cannot be answered: {error}\nThe views are {', '.join(TABLES)}, lineage and lineage_nodes"
