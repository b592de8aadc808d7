"""Erases deleted rows of an SQLite database from its file. Its owner deletes the rows."""

from __future__ import annotations

import sqlite3

from warehouse.core.errors import NotNow


def compact_sqlite(connection: sqlite3.Connection, name: str) -> None:
    """Have the files of a database hold what its rows hold and nothing older: pages that are free keep what was deleted, and so does the
    write-ahead log. No transaction may be open on the connection. `name` is for messages. Raises NotNow where somebody else keeps the file
    open for reading or writing."""
    try:
        _empty_log(connection)
        connection.execute("vacuum")
        _empty_log(connection)
    except sqlite3.OperationalError as error:
        raise NotNow(
            f"the rows are erased, but the file of {name} could not be rewritten, so it still holds them ({error}): stop what has it open "
            "(the annotation server, Dagster's page and daemon) and give the command again"
        ) from error


def _empty_log(connection: sqlite3.Connection) -> None:
    """A checkpoint that others keep from being complete does not raise: the first column of its row says so
    (sqlite.org/pragma.html#pragma_wal_checkpoint)."""
    is_busy, *_ = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
    if is_busy:
        raise sqlite3.OperationalError("the write-ahead log is in use")
