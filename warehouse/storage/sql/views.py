"""The tables of a DuckDB connection as views that are made when a statement first names them: making all of them takes longer than most
queries. query.py says what they show."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import duckdb

from warehouse.lineage.relations import LINEAGE_SQL
from warehouse.storage.catalogue import TABLES

if TYPE_CHECKING:
    import pyarrow.dataset as pads

_WORD = re.compile(r"\w+")
_OF_ALL = {
    "lineage",
    "lineage_nodes",
    "ancestors",
    "descendants",
    "information_schema",
    "describe",
    "pragma",
    "query",
    "query_table",
    "show",
}
_OF_ALL_BEGIN = ("duckdb_", "pg_", "pragma_", "sqlite_")
"""Words of a query that may be about tables which it does not name."""


class Connection:
    """A DuckDB connection that makes the view of a table before the first statement that names it: `stored(table)` gives the rows, a
    dataset or SQL, that are `<table>_stored`, and `view(table)` the statement that makes the view from them. The views of lineage, where it
    is to have them, come in the same way. Everything else is DuckDB's own."""

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        tables: Collection[str],
        stored: Callable[[str], pads.Dataset | str],
        view: Callable[[str], str],
        *,
        lineage: bool,
    ) -> None:
        self._con = con
        self._stored = stored
        self._view = view
        self._missing = [table for table in TABLES if table in tables]
        self._lineage = LINEAGE_SQL if lineage else ()

    def execute(self, query: Any, *arguments: Any, **options: Any) -> duckdb.DuckDBPyConnection:
        self._con.abort()  # drops what was not fetched of the last result, as DuckDB's own does, before views are made
        self._prepare(query)
        return self._con.execute(query, *arguments, **options)

    def sql(self, query: Any, *arguments: Any, **options: Any) -> duckdb.DuckDBPyRelation:
        self._prepare(query)
        return self._con.sql(query, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._con, name)

    def _prepare(self, query: Any) -> None:
        """Make the views that a statement can be about."""
        if not self._missing and not self._lineage:
            return
        first, *rest = _WORD.findall(str(query).lower()) or [""]
        words = {first, *rest}
        is_of_all = first == "desc" or not words.isdisjoint(_OF_ALL) or any(word.startswith(_OF_ALL_BEGIN) for word in words)
        for table in [table for table in self._missing if is_of_all or table in words or f"{table}_stored" in words]:
            self._make(table)
        if is_of_all:
            statements, self._lineage = self._lineage, ()
            for statement in statements:
                self._con.execute(statement)

    def _make(self, table: str) -> None:
        if table not in self._missing:  # made for another that needed it
            return
        self._missing.remove(table)
        try:
            stored = self._stored(table)
            if isinstance(stored, str):
                self._con.execute(f"CREATE OR REPLACE VIEW {table}_stored AS {stored}")
            else:
                self._con.register(f"{table}_stored", stored)
            self.execute(self._view(table))
        except BaseException:
            self._missing.append(table)
            raise
