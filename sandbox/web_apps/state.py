"""The state of an application, as its database says: rows by table, read from the host's side. And the difference between two states, which
is what verifiers judge. Page text is never looked at.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sandbox.web_apps.apps import StateTable
from warehouse.errors import WebAppSpoiled

Cells = Mapping[str, str | None]
State = Mapping[str, Mapping[str, Cells]]
"""Rows by table and key; every value as text, None for NULL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row that came, went or changed. `cells` of an insert are the whole row but its key, of an update the columns that changed, with
    their new values; a removed row has none. The key of a row that came is its application's business and is None."""

    op: Literal["insert", "update", "delete"]
    table: str
    key: str | None = None
    cells: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def sorting(self) -> tuple[str, str, str, tuple[tuple[str, str], ...]]:
        return (self.table, self.op, self.key or "", tuple(sorted((name, repr(value)) for name, value in self.cells.items())))

    def told(self) -> str:
        values = ", ".join(f"{name} {value!r}" for name, value in self.cells.items())
        return " ".join(part for part in (self.op, self.table, self.key or "", f"({values})" if values else "") if part)


def read_state(content: bytes, tables: Mapping[str, StateTable]) -> State:
    """From a database file's bytes. Raises WebAppSpoiled where it cannot be read."""
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(content)
        return {name: _rows(database, table.query) for name, table in tables.items()}
    except sqlite3.Error as error:
        raise WebAppSpoiled(f"the application's database cannot be read: {error}") from error
    finally:
        database.close()


def _rows(database: sqlite3.Connection, query: str) -> Mapping[str, Cells]:
    try:
        cursor = database.execute(query)
    except sqlite3.OperationalError as error:
        if "no such" in str(error):  # somebody dropped the table, or a column of it: its rows are gone
            return {}
        raise
    names = [column[0] for column in cursor.description]
    found: dict[str, Cells] = {}
    for row in cursor:
        values = [None if value is None else str(value) for value in row]
        found[str(values[0])] = dict(zip(names[1:] if len(names) > 1 else names, values[1:] if len(names) > 1 else values, strict=True))
    return found


def difference(before: State, after: State) -> list[Change]:
    """What has changed, in an order of its own. A renamed key is a row that went and one that came."""
    changes = []
    for table in before:
        old, new = before[table], after[table]
        for key in old.keys() | new.keys():
            if key not in new:
                changes.append(Change(op="delete", table=table, key=key))
            elif key not in old:
                changes.append(Change(op="insert", table=table, cells=new[key]))
            elif cells := {name: value for name, value in new[key].items() if old[key].get(name) != value}:
                changes.append(Change(op="update", table=table, key=key, cells=cells))
    return sorted(changes, key=lambda change: change.sorting)


def unmet(wanted: list[Change], found: list[Change]) -> list[str]:
    """Why what was found is not just what was wanted: a line for each change that is missing, and each that nobody asked for."""
    rest = list(found)
    reasons = []
    for change in wanted:
        match = next((each for each in rest if each.sorting == change.sorting), None)
        if match is None:
            reasons.append(f"missing: {change.told()}")
        else:
            rest.remove(match)
    return reasons + [f"not asked for: {change.told()}" for change in rest]
