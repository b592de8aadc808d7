"""One server a database: the runs that are live are in its memory, and a second one would play them again. The lock goes with the process,
however that ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text

from annotation.storage.database import Database
from warehouse.errors import ConfigError
from warehouse.identity import stable_seed
from warehouse.locks import FileLock

_TOLD = "another annotation server works on {name}{who}: end it, or give this one another --database"


@contextmanager
def only_server(database: Database) -> Iterator[None]:
    """Raises ConfigError where another server has the database."""
    if database.is_sqlite:
        lock = FileLock(Path(f"{database.url.database}.server.lock"))
        if not lock.acquire(timeout_s=1.0):
            raise ConfigError(_TOLD.format(name=database.name, who=f" (process {lock.holder()})"))
        try:
            yield
        finally:
            lock.release()
        return
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if not connection.scalar(text("select pg_try_advisory_lock(:key)"), {"key": stable_seed("annotation", "server")}):
            raise ConfigError(_TOLD.format(name=database.name, who=""))
        yield
