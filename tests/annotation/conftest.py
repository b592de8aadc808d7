"""A database for each test: SQLite in its folder, and Postgres in a cluster that the test session starts for itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from annotation.storage.migrating import open_database
from benchmarks.common import postgres
from tests.annotation import fresh

NUMBERS = count()


@pytest.fixture(scope="session")
def postgres_socket() -> Iterator[Path]:
    """The folder with the socket of a running Postgres."""
    if postgres.programs() is None:
        pytest.skip(postgres.MISSING)
    with postgres.a_postgres(is_durable=False) as folder:
        yield folder


@pytest.fixture(scope="session")
def postgres_template(postgres_socket: Path) -> str:
    """The name of a database on it with today's tables, to be copied."""
    name = f"template_{os.getpid()}"
    open_database(postgres.new_database(postgres_socket, name)).close()
    return name


@pytest.fixture
def postgres_url(postgres_socket: Path, postgres_template: str) -> str:
    """A database on it with today's tables and nothing in them."""
    return postgres.new_database(postgres_socket, f"test_{os.getpid()}_{next(NUMBERS)}", template=postgres_template)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def annotation_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database with today's tables and nothing in them, of either kind. What the two do differently is tested on both in
    the everyday run too, in storage/."""
    if request.param == "sqlite":
        return fresh.sqlite_url(tmp_path)
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without tables, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/annotation.db"
    return postgres.new_database(request.getfixturevalue("postgres_socket"), f"test_{os.getpid()}_{next(NUMBERS)}")
