"""A database for each test: SQLite in its folder, and Postgres in a cluster that the test session starts for itself.

Postgres refuses to run as root, so that a root session runs it as `nobody`, on a socket in a folder of its own: nothing listens on a port.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

NUMBERS = count()


def postgres_programs() -> Path | None:
    """The folder of initdb and postgres: on the path, or where Debian keeps them."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    return max((path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")), default=None)


@pytest.fixture(scope="session")
def postgres_socket() -> Iterator[Path]:
    """The folder with the socket of a running Postgres, whose superuser is `flywheel`."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("Postgres is not installed (Debian: apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="flywheel-pg-"))
    as_whom: dict[str, object] = {"cwd": folder}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        as_whom |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    data = folder / "data"
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(folder)}
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": environment, "text": True, "timeout": 120}
    initdb = [programs / "initdb", "-D", data, "-U", "flywheel", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions"]
    made = subprocess.run(initdb, **quiet, **as_whom)
    assert made.returncode == 0, made.stdout
    settings = ("listen_addresses=", f"unix_socket_directories={folder}", "fsync=off", "max_connections=60", "shared_buffers=16MB")
    options = " ".join(f"-c {setting}" for setting in settings)
    start = [programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start"]
    started = subprocess.run(start, stdin=subprocess.DEVNULL, **{**quiet, "stdout": subprocess.DEVNULL}, **as_whom)
    assert started.returncode == 0, (folder / "log").read_text()
    yield folder
    subprocess.run([programs / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **quiet, **as_whom)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_socket: Path) -> str:
    """An empty database on it."""
    import psycopg

    name = f"test_{os.getpid()}_{next(NUMBERS)}"
    with psycopg.connect(host=str(postgres_socket), user="flywheel", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return f"postgresql+psycopg://flywheel@/{name}?host={postgres_socket}"


@pytest.fixture(params=["sqlite", "postgres"])
def annotation_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/annotation.db"
    url: str = request.getfixturevalue("postgres_url")
    return url
