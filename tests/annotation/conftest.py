"""A database for each test: SQLite in its folder, and Postgres in a cluster that the test session starts for itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from benchmarks.common import postgres

NUMBERS = count()


@pytest.fixture(scope="session")
def postgres_socket() -> Iterator[Path]:
    """The folder with the socket of a running Postgres."""
    if postgres.programs() is None:
        pytest.skip(postgres.MISSING)
    with postgres.a_postgres(is_durable=False) as folder:
        yield folder


@pytest.fixture
def postgres_url(postgres_socket: Path) -> str:
    """An empty database on it."""
    return postgres.new_database(postgres_socket, f"test_{os.getpid()}_{next(NUMBERS)}")


@pytest.fixture(params=["sqlite", "postgres"])
def annotation_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/annotation.db"
    url: str = request.getfixturevalue("postgres_url")
    return url
