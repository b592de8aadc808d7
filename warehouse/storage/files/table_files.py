"""Which data files a table has now, and how many rows of which partition each holds, by its log alone: no file is opened. A file never
changes, so the names of an iteration's files say whether what was once made of its rows still holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from warehouse.storage.catalogue import TABLES, WITHDRAWN_STAGE
from warehouse.storage.partitions import DataFile
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse


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
        """Of each iteration, a digest of the names of its files: the same as long as its rows are. `taken_back`: of these tables it covers
        the rows that tombstones of any iteration take back."""
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
        with connect(self._warehouse, tables=[table], natively=True) as con:
            return dict(con.execute(query).fetchall())

    def num_rows(self, table: str) -> dict[str, int]:
        """Rows by iteration, as the view of the table has them: a tombstone counts where nothing is left of what it takes back."""
        found: dict[str, int] = {}
        for file in self.files[table]:
            if not file.is_of_tombstones:
                found[file.iteration] = found.get(file.iteration, 0) + file.num_rows
        if any(file.is_of_tombstones for file in self.files[table]):
            with connect(self._warehouse, tables=[table], natively=True) as con:
                query = f"select iteration, count(*) from {table} where stage = '{WITHDRAWN_STAGE}' group by iteration"
                for iteration, num in con.execute(query).fetchall():
                    found[iteration] = found.get(iteration, 0) + num
        return found
