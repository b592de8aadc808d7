"""The state of an application, as its database says: rows by table, read from the host's side. And the difference between two states, which
is what verifiers judge. Page text is never looked at.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from sandbox.tasks.web_apps.apps import StateTable
from sandbox.terminal.apart import Reading, Unreadable
from warehouse.core.errors import WebAppSpoiled
from warehouse.core.identity import bytes_id

Cells = Mapping[str, str | None]
State = Mapping[str, Mapping[str, Cells]]
"""Rows by table and key; every value as text, None for NULL."""
_FOUND: TypeAdapter[dict[str, tuple[list[str], list[list[str | None]]]]] = TypeAdapter(dict[str, tuple[list[str], list[list[str | None]]]])
"""Column names and rows by table, as inside/read.py prints them."""
NUM_KNOWN = 8
_known: dict[str, State] = {}
"""What was read last, by the file and what was asked: episodes begin alike, and few steps change anything."""
MAX_SHOWN_CHARS = 200
MAX_REASONS = 20


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

    def describe(self) -> str:
        values = ", ".join(f"{name} {value!r}" for name, value in self.cells.items())
        return " ".join(part for part in (self.op, self.table, self.key or "", f"({values})" if values else "") if part)

    def summary(self) -> str:
        text = self.describe()
        return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"


async def read_state(content: bytes, tables: Mapping[str, StateTable]) -> State:
    """From a database file's bytes, read in a jail. Raises WebAppSpoiled where it cannot be read, and what jails raise."""
    queries = json.dumps({name: table.query for name, table in tables.items()})
    key = bytes_id("database", queries.encode() + content)
    if key in _known:
        return _known[key]
    try:
        found = _FOUND.validate_json(await Reading(program=_program(), arguments=[queries]).of(content))
    except (Unreadable, ValidationError) as error:
        raise WebAppSpoiled(str(error)) from error
    while len(_known) >= NUM_KNOWN:
        del _known[next(iter(_known))]
    _known[key] = {name: dict(_keyed(*found[name])) for name in tables}
    return _known[key]


@cache
def _program() -> str:
    return Path(__file__).with_name("inside").joinpath("read.py").read_text(encoding="utf-8")


def _keyed(names: list[str], rows: list[list[str | None]]) -> Iterator[tuple[str, Cells]]:
    """A key that several rows have gets a number, so that none hides another."""
    num_seen: Counter[str] = Counter()
    for row in rows:
        key = str(row[0])
        num_seen[key] += 1
        cells = dict(zip(names[1:] or names, row[1:] or row, strict=True))
        yield (key if num_seen[key] == 1 else f"{key} #{num_seen[key]}"), cells


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
    """Why what was found is not just what was wanted: a line for each change that is missing, and each that nobody asked for, up to
    MAX_REASONS of these."""
    rest = list(found)
    reasons = []
    for change in wanted:
        match = next((each for each in rest if each.sorting == change.sorting), None)
        if match is None:
            reasons.append(f"missing: {change.summary()}")
        else:
            rest.remove(match)
    reasons += [f"not asked for: {change.summary()}" for change in rest[:MAX_REASONS]]
    return reasons + ([f"and {len(rest) - MAX_REASONS} other changes"] if len(rest) > MAX_REASONS else [])
