"""Where the annotation server of a home is: `flywheel annotate serve` writes its address into the home, and commands that print it read it.

A killed server leaves its address behind: it counts only while the process that wrote it lives. A lock shows that: the kernel takes
it from a process that ends, and other containers see it, where the process's id says nothing. A server that names no lock is
recognised by the process's id and start time, since another process may have the id by then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from warehouse.core.durable import digest, make_folder
from warehouse.core.home import Home, atomic_write
from warehouse.core.locks import LOOKED_AT_S, FileLock, holder_of

STARTED_WITHIN_S = 2.0
"""How far two tellings of when a process began may differ."""


class Served(BaseModel):
    """A server as it says of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(description="what it listens on")]
    public_url: Annotated[str | None, Field(description="what people reach it at, where that is another")]
    database: Annotated[str, Field(description="name of its database, without what is secret")]
    pid: int
    started_at_s: Annotated[float, Field(description="when the process began")]
    is_locked: Annotated[bool, Field(description="whether it holds the lock of its database beside this file")] = False

    @property
    def address(self) -> str:
        """What people open."""
        return self.public_url or self.url


@contextmanager
def announced(home: Home, url: str, public_url: str | None, database: str) -> Iterator[Served]:
    """Say in the home, for as long as the block lasts, that this process serves."""
    own = psutil.Process().create_time()
    make_folder(_path(home).parent)
    lock = FileLock(_lock_path(home, database))
    is_locked = lock.acquire(timeout_s=LOOKED_AT_S)
    said = Served(url=url, public_url=public_url, database=database, pid=os.getpid(), started_at_s=own, is_locked=is_locked)
    try:
        atomic_write(_path(home), said.model_dump_json(indent=2).encode())
        yield said
    finally:
        # A server on another database of the same home may have said so since.
        if _read(home) == said:
            _path(home).unlink(missing_ok=True)
        lock.release()


def living(home: Home, database: str | None = None) -> Served | None:
    """The server that lives on this home (`database`: on this one); None where there is none, or only what a killed one left."""
    said = _read(home)
    if said is None or (database is not None and said.database != database):
        return None
    if said.is_locked:
        return said if holder_of(_lock_path(home, said.database)) is not None else None
    try:
        began_s = psutil.Process(said.pid).create_time()
    except psutil.Error:
        return None
    return said if abs(began_s - said.started_at_s) <= STARTED_WITHIN_S else None


def _path(home: Home) -> Path:
    return home.root / "annotation" / "server.json"


def _lock_path(home: Home, database: str) -> Path:
    """Of the only server that a database has at a time (annotation/storage/one_server.py)."""
    return _path(home).with_name(f"server-{digest(database.encode())[:8]}.lock")


def _read(home: Home) -> Served | None:
    """None for what is not there, or is not such a record."""
    try:
        return Served.model_validate_json(_path(home).read_bytes())
    except (OSError, ValidationError):
        return None
