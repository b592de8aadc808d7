"""Which data files a table has now, and how many rows of which partition each holds: told by its log alone, no file is opened. A file never
changes, so the names of an iteration's files say whether what was once made of its rows still holds. Who reads some of the files by
DuckDB's own reader finds the SQL here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import sha256
from pathlib import Path

from warehouse.storage.catalogue import TABLES, WITHDRAWN_STAGE
from warehouse.storage.partitions import DataFile
from warehouse.storage.query import connect
from warehouse.storage.tables import Warehouse

SQL_TYPES = {
    "string": "VARCHAR", "int64": "BIGINT", "double": "DOUBLE", "bool": "BOOLEAN", "list<item: string>": "VARCHAR[]",
    "list<item: int64>": "BIGINT[]",
}  # fmt: skip
"""DuckDB's, by Arrow's name."""


def stored_rows(table: str, paths: Iterable[Path]) -> str:
    """SQL of the rows of these data files, read by DuckDB itself: `SELECT … FROM` it, on a connection that may read files."""
    spec = TABLES[table]
    listed = ", ".join(f"'{file}'" for file in (str(path).replace("'", "''") for path in sorted(paths)))
    partitions = ", ".join(f"'{name}': VARCHAR" for name in spec.partition_by)
    hive = f", hive_partitioning = true, hive_types = {{{partitions}}}" if spec.partition_by else ", hive_partitioning = false"
    return f"read_parquet([{listed}], union_by_name = true{hive})"


def later_columns(table: str, stored: Collection[str]) -> str:
    """SQL that completes a list of columns, `SELECT *{}`, by those that the catalogue has gained since files with the columns `stored` were
    written: null, as query.connect has them."""
    missing = [column for column in TABLES[table].columns if column.nullable and column.name not in stored]
    return "".join(f", NULL::{SQL_TYPES[str(column.type)]} AS {column.name}" for column in missing)


class Listing:
    """The files of several tables, each listed once, and the versions that have them."""

    def __init__(self, warehouse: Warehouse, tables: Iterable[str]) -> None:
        self._warehouse = warehouse
        self.files: dict[str, list[DataFile]] = {}
        self.versions: dict[str, int] = {}
        for table in tables:
            self.versions[table], self.files[table] = warehouse.listed(table)

    def iterations(self, *tables: str) -> list[str]:
        """Those that have rows in one of the tables, in order."""
        return sorted({file.iteration for table in tables for file in self.files[table] if file.num_rows})

    def digests(self, tables: Iterable[str], *, taken_back: Iterable[str] = ()) -> dict[str, str]:
        """Of each iteration, a digest of the names of its files: the same as long as its rows are. `taken_back`: of these tables it tells
        of the rows that tombstones of any iteration take back."""
        parts: dict[str, list[str]] = {}
        for table in sorted(tables):
            for file in self.files[table]:
                parts.setdefault(file.iteration, []).append(f"{table}/{file.path}")
        for table in taken_back:
            for iteration, ids in self._taken_back(table).items():
                parts.setdefault(iteration, []).extend(ids)
        return {iteration: sha256("\n".join(names).encode()).hexdigest() for iteration, names in parts.items()}

    def _taken_back(self, table: str) -> dict[str, list[str]]:
        """Ids by the iteration of the rows that tombstones take back."""
        if not any(file.is_of_tombstones for file in self.files[table]):
            return {}
        (key,) = TABLES[table].key
        query = (
            f"select iteration, list({key} order by {key}) from {table}_stored where stage <> '{WITHDRAWN_STAGE}' and {key} in "
            f"(select {key} from {table}_stored where stage = '{WITHDRAWN_STAGE}') group by iteration"
        )
        with connect(self._warehouse, tables=[table]) as con:
            return dict(con.execute(query).fetchall())

    def num_rows(self, table: str) -> dict[str, int]:
        """Rows by iteration, as the view of the table has them: a tombstone counts where nothing is left of what it takes back."""
        found: dict[str, int] = {}
        for file in self.files[table]:
            if not file.is_of_tombstones:
                found[file.iteration] = found.get(file.iteration, 0) + file.num_rows
        if any(file.is_of_tombstones for file in self.files[table]):
            with connect(self._warehouse, tables=[table]) as con:
                query = f"select iteration, count(*) from {table} where stage = '{WITHDRAWN_STAGE}' group by iteration"
                for iteration, num in con.execute(query).fetchall():
                    found[iteration] = found.get(iteration, 0) + num
        return found
