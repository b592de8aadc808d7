"""What was deleted is in no byte of an SQLite database any more, or the caller hears that it still is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from warehouse.core.errors import NotNow
from warehouse.core.sqlite_files import compact_sqlite


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_what_was_deleted_is_gone_unless_somebody_still_reads_it(tmp_path: Path, mode: str) -> None:
    path, said = tmp_path / "a.db", "the aardvark is mauve"

    def held() -> bool:
        return any(said.encode() in file.read_bytes() for file in tmp_path.iterdir())

    with closing(sqlite3.connect(path, timeout=0.1)) as connection, closing(sqlite3.connect(path)) as reader:
        connection.execute(f"pragma journal_mode={mode}")
        connection.execute("create table said (words text)")
        connection.executemany("insert into said values (?)", [(said,)] * 100)
        connection.commit()
        reader.execute("begin")
        assert reader.execute("select count(*) from said").fetchone() == (100,)
        if mode == "wal":
            connection.execute("delete from said")
            connection.commit()
        with pytest.raises(NotNow, match=r"the file of a\.db could not be rewritten.*(in use|locked)"):
            compact_sqlite(connection, "a.db")
        reader.rollback()
        connection.execute("delete from said")
        connection.commit()
        assert held() or mode != "wal"
        compact_sqlite(connection, "a.db")
        assert not held()
