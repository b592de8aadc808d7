"""Databases with today's tables, for tests of what is in them: migrated once in each process, then copied. How an empty database comes to
its tables is tests/annotation/storage/test_database.py's."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from annotation.storage.migrating import open_database


def sqlite_url(folder: Path) -> str:
    """The address of the annotation database of a folder, made if it is missing."""
    path = folder / "annotation.db"
    if not path.exists():
        path.write_bytes(_migrated())
    return f"sqlite:///{path}"


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "annotation.db"
        open_database(f"sqlite:///{path}").close()
        assert [each.name for each in path.parent.iterdir()] == [path.name], "all of it is in one file"
        return path.read_bytes()
