"""Only one server a database, also when the connection breaks that says so."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from fastapi import FastAPI
from sqlalchemy import text

from annotation.storage import one_server
from annotation.storage.database import Database
from annotation.storage.one_server import only_server
from annotation.web.serve import serve
from sandbox.http.serving import bind
from warehouse.core.errors import ConfigError, DatabaseUnusable

CUT = text(
    "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and "
    "database = (select oid from pg_database where datname = current_database())"
)


def cut(database: Database) -> None:
    """End the connection that holds the lock, as a database that is restarted does."""
    with database.engine.connect() as connection:
        assert connection.scalars(CUT).all() == [True]


def test_a_second_server_is_refused_and_the_next_is_not(annotation_url: str) -> None:
    first, second = Database(annotation_url), Database(annotation_url)
    for _ in range(2):
        with only_server(first) as alone:
            alone.check()
            with pytest.raises(ConfigError, match="another annotation server"), only_server(second):
                raise AssertionError
        with only_server(second) as alone:
            alone.check()
    first.close()
    second.close()


def test_a_lost_connection_is_noticed_and_stays_lost(postgres_url: str) -> None:
    first, second = Database(postgres_url), Database(postgres_url)
    with only_server(first) as alone:
        cut(second)
        for _ in range(2):
            with pytest.raises(DatabaseUnusable, match="keeps other servers away"):
                alone.check()
        with only_server(second) as other:
            other.check()
    first.close()
    second.close()


def test_the_server_ends_and_says_why(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_server, "CHECK_EVERY_S", 0.05)
    database = Database(postgres_url)
    ended: list[int] = []

    async def run() -> None:
        with only_server(database) as alone, bind("127.0.0.1", 0) as listener:

            def ready() -> None:
                asyncio.get_running_loop().call_later(0.3, cut, database)

            await serve(FastAPI(), listener, ready, on_end=lambda: ended.append(1), watch=alone.watch)

    with pytest.raises(DatabaseUnusable, match="Start it again"):
        asyncio.run(asyncio.wait_for(run(), 30))
    assert ended
    database.close()


def test_without_a_reason_the_server_ends_by_its_signal(tmp_path: Path) -> None:

    database = Database(f"sqlite:///{tmp_path}/annotation.db")

    async def run() -> None:
        with only_server(database) as alone, bind("127.0.0.1", 0) as listener:
            await serve(FastAPI(), listener, lambda: os.kill(os.getpid(), signal.SIGTERM), watch=alone.watch)

    asyncio.run(asyncio.wait_for(run(), 30))
    database.close()
