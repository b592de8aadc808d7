"""One server a database: the runs that are live are in its memory, and a second one would play them again. The lock goes with the process,
however that ends. On Postgres it also goes with a connection, so that a server watches that one and ends when it is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from annotation.storage.database import Database
from warehouse.core.errors import ConfigError, DatabaseUnusable
from warehouse.core.identity import stable_seed
from warehouse.core.locks import FileLock

CHECK_EVERY_S, CHECK_WITHIN_S = 5.0, 20.0
LET_GO_S = 1.0
"""How long the lock of a server that has just ended may still be there."""
_IN_USE = "another annotation server works on {name}{who}: end it, or give this one another --database"


class Alone:
    """The right to be the only server of a database, while the block of `only_server` lasts."""

    def __init__(self, name: str, connection: Connection | None) -> None:
        """`connection`: None where the right cannot get lost."""
        self._name, self._connection = name, connection
        self._backend = None if connection is None else connection.scalar(text("select pg_backend_pid()"))

    def check(self) -> None:
        """Raises DatabaseUnusable where another server may have begun by now. Blocks, and is for one thread at a time."""
        if self._connection is None:
            return
        try:
            # The connection would open itself again, without the lock: it has to be the same one at the other end.
            if self._connection.scalar(text("select pg_backend_pid()")) == self._backend:
                return
            why = "it was opened again"
        except SQLAlchemyError as error:
            why = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise self._lost(why)

    async def watch(self) -> None:
        """Check for ever. Raises DatabaseUnusable."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                await asyncio.wait_for(asyncio.to_thread(self.check), CHECK_WITHIN_S)
            except TimeoutError:
                raise self._lost(f"no answer in {CHECK_WITHIN_S:.0f} s") from None

    def _lost(self, why: str) -> DatabaseUnusable:
        return DatabaseUnusable(
            f"the connection to the annotation database {self._name} that keeps other servers away from it was lost ({why}): this server "
            "ends, so that no second one works beside it. Start it again when the database answers; everybody's work is kept"
        )


@contextmanager
def only_server(database: Database) -> Iterator[Alone]:
    """Raises ConfigError where another server has the database."""
    if database.is_sqlite:
        lock = FileLock(Path(f"{database.url.database}.server.lock"))
        if not lock.acquire(timeout_s=LET_GO_S):
            raise ConfigError(_IN_USE.format(name=database.name, who=f" (process {lock.holder()})"))
        try:
            yield Alone(database.name, None)
        finally:
            lock.release()
        return
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.detach()  # closed at the end, and the lock with it: a pool would keep both
        deadline_s = time.monotonic() + LET_GO_S
        while not connection.scalar(text("select pg_try_advisory_lock(:key)"), {"key": stable_seed("annotation", "server")}):
            if time.monotonic() > deadline_s:
                raise ConfigError(_IN_USE.format(name=database.name, who=""))
            time.sleep(0.05)
        yield Alone(database.name, connection)
