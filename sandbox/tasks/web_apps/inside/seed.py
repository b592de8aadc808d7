"""Makes the data that an application starts with, in the jail: `seed.py tables` fills a plain database, `seed.py tracker` a Trac
environment. The rows are in world.json: {table: [row]}. What is made lies in the folder data.
"""

from __future__ import annotations

import configparser
import json
import sqlite3
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

DATA = Path("data")
START_US = 1_767_258_000_000_000
DAY_US = 86_400_000_000
Rows = list[dict[str, Any]]


def tables(world: dict[str, Any]) -> None:
    DATA.mkdir()
    with sqlite3.connect(DATA / f"{world['database']}.db") as database:
        for statement in world["schema"]:
            database.execute(statement)
        for table, rows in world["tables"].items():
            insert(database, table, rows)
    database.close()
    for name, content in world.get("files", {}).items():
        (DATA / name).write_text(content)


def insert(database: sqlite3.Connection, table: str, rows: Rows) -> None:
    for row in rows:
        names = ", ".join(f'"{name}"' for name in row)
        database.execute(f'INSERT INTO "{table}" ({names}) VALUES ({", ".join("?" * len(row))})', list(row.values()))


def tracker(world: dict[str, Any]) -> None:
    sys.path.insert(0, "/opt/app")
    console = import_module("trac.admin.console")
    if console.run([str(DATA), "initenv", world["name"], "sqlite:db/trac.db"]):
        raise SystemExit("trac-admin initenv failed")
    settings = configparser.ConfigParser(interpolation=None)
    place = DATA / "conf" / "trac.ini"
    settings.read(place)
    settings.read_dict(world["settings"])
    with place.open("w") as file:
        settings.write(file)
    with sqlite3.connect(DATA / "db" / "trac.db") as database:
        for statement in world["statements"]:
            database.execute(statement)
        for table, rows in world["tables"].items():
            for number, row in enumerate(rows):
                insert(database, table, [_dated(table, row, START_US - DAY_US * (len(rows) - number))])
    database.close()


def _dated(table: str, row: dict[str, Any], at_us: int) -> dict[str, Any]:
    """Rows of the tracker with the times and marks that it expects."""
    if table == "ticket":
        return {**row, "time": at_us, "changetime": at_us, "reporter": "anonymous"}
    if table == "wiki":
        return {**row, "version": 1, "time": at_us, "author": "anonymous", "comment": "", "readonly": 0}
    if table == "milestone":
        return {**row, "due": 0, "completed": 0}
    return row


if __name__ == "__main__":
    {"tables": tables, "tracker": tracker}[sys.argv[1]](json.loads(Path("world.json").read_text()))
