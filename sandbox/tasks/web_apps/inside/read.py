"""Reads the state of an application out of its database file, in a jail of its own: `read.py QUERIES < FILE`, where QUERIES is JSON,
{table: query}. Prints {table: [[column], [[cell]]]}, each cell as text or null. Fails for a database with views or virtual tables: to read
one is to run what somebody wrote into the database.
"""

from __future__ import annotations

import json
import sqlite3
import sys


def rows(database: sqlite3.Connection, query: str) -> tuple[list[str], list[list[str | None]]]:
    try:
        cursor = database.execute(query)
    except sqlite3.OperationalError as error:
        if "no such" in str(error):  # somebody dropped the table, or a column of it: its rows are gone
            return [], []
        raise
    return [column[0] for column in cursor.description], [[None if cell is None else str(cell) for cell in row] for row in cursor]


def main() -> int:
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(sys.stdin.buffer.read())
        database.execute("PRAGMA trusted_schema = OFF")
        for _, name, kind, *_ in database.execute("PRAGMA main.table_list"):
            if kind in ("view", "virtual"):
                print(f"{name!r} is a {kind}{'' if kind == 'view' else ' table'}; only tables can be read")
                return 1
        found = {name: rows(database, query) for name, query in json.loads(sys.argv[1]).items()}
        print(json.dumps(found))
    except (sqlite3.Error, MemoryError) as error:
        print(error or "reading it takes more memory than it may")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
