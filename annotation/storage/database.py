"""The database of an annotation server: SQLite in the home by default, Postgres by URL. Opening, transactions, locks; what is asked of it
is in the other files of this folder, as functions of a session. How its tables come to be those of today is migrating.py's.

Sessions are synchronous and run in threads of the database's own, a bounded number: a transaction is a few short statements, SQLite has no
other way, and a shared thread pool (`asyncio.to_thread`) would let slow readers starve its other users. SQLite lets one write at a
time, so that its writers queue up in one thread here, in order; between processes they wait for each other (`BUSY_TIMEOUT_S`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from warehouse.core.durable import make_folder
from warehouse.core.errors import ConfigError, DatabaseUnusable, missing_extra
from warehouse.core.home import Home
from warehouse.core.identity import stable_seed

P = ParamSpec("P")
T = TypeVar("T")
BUSY_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10
NUM_THREADS = 8
"""Connections to Postgres at most, and readers of SQLite."""
NUM_TRIES = 4
RETRIED = frozenset({"40001", "40P01"})
"""Postgres: serialization failure, deadlock. The transaction was rolled back whole."""
_ALIVE = {"keepalives_idle": 30, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 15_000}
"""Of connections to Postgres over a network: one whose other end is gone breaks, instead of waiting for ever."""
_WRITES = "flywheel_writes"


def default_url(home: Home) -> str:
    """The SQLite file of a home, whose folder is made."""
    file = _default_file(home)
    make_folder(file.parent)
    return URL.create("sqlite", database=str(file)).render_as_string()


def has_default(home: Home) -> bool:
    """Whether the SQLite file of a home is there."""
    return _default_file(home).is_file()


def _default_file(home: Home) -> Path:
    return home.root / "annotation" / "annotation.db"


class Database:
    """An open database. `read` and `write` are for threads and commands, `reading` and `writing` for the event loop."""

    def __init__(self, url: str) -> None:
        """Opens nothing yet. Raises ConfigError for an address that is neither SQLite's nor Postgres's."""
        self.url = _checked(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._engine = make_engine(self.url)
        reads: dict[str, Any] = {} if self.is_sqlite else {"postgresql_readonly": True, "isolation_level": "REPEATABLE READ"}
        self._for_reading, self._for_writing = self._engine.execution_options(**reads), self._engine.execution_options(**{_WRITES: True})
        self._write_lock = threading.Lock()
        self._readers = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="annotation-reads")
        self._writers = ThreadPoolExecutor(1 if self.is_sqlite else NUM_THREADS, thread_name_prefix="annotation-writes")

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def name(self) -> str:
        """For messages: the address without its password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one state and changes nothing."""
        with Session(self._for_reading, expire_on_commit=False, autoflush=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that commits when the block ends, and changes nothing when it raises. On SQLite nobody else writes meanwhile
        (BEGIN IMMEDIATE); on Postgres lock the rows that are decided on (`with_for_update`), or a name (`lock`)."""
        with self._exclusive(), Session(self._for_writing, expire_on_commit=False) as session, session.begin():
            yield session

    async def reading(self, work: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(session, …)` in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, partial(self._read, work, *args, **kwargs))

    async def writing(self, work: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(session, …)` in a thread, as one transaction, which runs again where Postgres broke off a deadlock. Whoever is cancelled
        meanwhile does not undo it: what has begun is committed."""
        return await asyncio.get_running_loop().run_in_executor(self._writers, partial(self.transact, work, *args, **kwargs))

    def transact(self, work: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same, in this thread."""
        for left in reversed(range(NUM_TRIES)):
            try:
                with self.write() as session:
                    return work(session, *args, **kwargs)
            except DBAPIError as error:
                if not left or getattr(error.orig, "sqlstate", None) not in RETRIED:
                    raise
        raise AssertionError("unreachable")

    def _read(self, work: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        with self.read() as session:
            return work(session, *args, **kwargs)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self.is_sqlite:
            yield
            return
        with self._write_lock:
            yield

    def close(self) -> None:
        """Wait for what is under way and disconnect; may be called twice."""
        self._readers.shutdown()
        self._writers.shutdown()
        self._engine.dispose()


def lock(session: Session, name: str) -> None:
    """Hold a name until the transaction ends, so that transactions which hold the same one follow one another. On SQLite all do."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("select pg_advisory_xact_lock(:key)"), {"key": stable_seed("annotation", name)})


def make_engine(url: URL, *, foreign_keys: bool = True) -> Engine:
    """`foreign_keys`: whether SQLite holds to them, which migrations have to do without."""
    if url.get_backend_name() != "sqlite":
        arguments = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "flywheel annotation", **_ALIVE}
        return create_engine(url, pool_size=NUM_THREADS, max_overflow=NUM_THREADS, pool_pre_ping=True, connect_args=arguments)
    engine = create_engine(url, pool_size=NUM_THREADS + 1, max_overflow=4, connect_args={"timeout": BUSY_TIMEOUT_S})

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # we say when a transaction begins; the driver would only at the first change
        cursor = connection.cursor()
        cursor.execute("pragma journal_mode=wal")
        # Each commit reaches the disk: a reader of a change may rely on its number.
        cursor.execute("pragma synchronous=full")
        cursor.execute(f"pragma foreign_keys={'on' if foreign_keys else 'off'}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("begin immediate" if writes else "begin")

    return engine


def _checked(url: str) -> URL:
    allowed = "allowed are sqlite:////path/to/annotation.db and postgresql+psycopg://user@host/name"
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigError(f"the annotation database's address cannot be read: {allowed}") from error
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        if find_spec("psycopg") is None:
            raise ConfigError(missing_extra("psycopg", "postgres"))
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername in ("sqlite", "sqlite+pysqlite") and parsed.database and parsed.database != ":memory:":
        path = Path(parsed.database)
        if not path.parent.is_dir():
            raise ConfigError(
                f"there is no folder {path.parent} for the annotation database {path.name}: make it, or name another --database"
            )
        return parsed
    raise ConfigError(f"{parsed.render_as_string(hide_password=True)} is not a database for annotations: {allowed}")


def unusable(database: Database, error: SQLAlchemyError) -> DatabaseUnusable:
    """The error for a database that does not open."""
    why = str(error.orig).strip().splitlines()[0] if isinstance(error, OperationalError) and str(error.orig).strip() else str(error)
    return DatabaseUnusable(f"the annotation database {database.name} cannot be used: {why}. Is it running, and is this its address?")
