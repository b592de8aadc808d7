"""Tables read by DuckDB's own Parquet reader, for queries over all of a large table. People's queries go through query.connect, which is
sealed; this way is faster where texts are read whole, and the memory that it takes is DuckDB's, within its limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb

from warehouse.storage.sql.file_sql import later_columns, stored_rows
from warehouse.storage.sql.query import MEMORY_LIMIT, connect
from warehouse.storage.tables import Warehouse


@contextmanager
def connect_to_scan(
    warehouse: Warehouse, tables: Iterable[str], *, memory_limit: str = MEMORY_LIMIT, threads: int | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """`query.connect`, with `tables` read by DuckDB itself, as they are stored: what was withdrawn since is not seen there. For our own SQL
    only: nothing is sealed."""
    with connect(warehouse, sealed=False, memory_limit=memory_limit, threads=threads) as con:
        con.execute("SET preserve_insertion_order = false")
        for table in tables:
            files = warehouse.files(table)
            if files:
                stored = f"FROM {stored_rows(table, files)}"
                con.execute(f"CREATE OR REPLACE VIEW {table} AS SELECT * {stored}")
                if later := later_columns(table, con.table(table).columns):
                    con.execute(f"CREATE OR REPLACE VIEW {table} AS SELECT *{later} {stored}")
        yield con


def execute_within_memory(con: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
    """Execute a statement that may be retried, with fewer threads from then on where memory is too short for that many. DuckDB puts
    rows aside, but not what each thread has just read: of files with large pages, over 100 MB. Raises duckdb.OutOfMemoryException where one
    thread alone needs more than the limit."""
    while True:
        try:
            con.execute(sql, parameters or {})
            return
        except duckdb.OutOfMemoryException:
            (threads,) = con.execute("select current_setting('threads')").fetchall()[0]
            if threads == 1:
                raise
            con.execute(f"set threads = {threads // 2}")
