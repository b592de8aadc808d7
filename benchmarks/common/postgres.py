"""A Postgres for as long as a measurement or a test lasts: a cluster in a folder of its own, reached by a socket in it; it listens on no
address, unless one is asked for. Postgres refuses to run as root, so that a root session runs it as `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warehouse.core.errors import ConfigError

USER = "flywheel"
"""The superuser."""
PASSWORD = "password-of-the-tests-0123"
"""Its password, for who comes by an address: by the socket none is asked for."""
PORT = 5432
TIMEOUT_S = 120
MISSING = "Postgres is not installed (Debian: apt-get install postgresql)"


def programs() -> Path | None:
    """The folder of initdb and postgres: on the path, or where Debian keeps them."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    return max((path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")), default=None)


@contextmanager
def a_postgres(*, is_durable: bool = True, listen: str | None = None, port: int = PORT) -> Iterator[Path]:
    """The folder with the socket of a running Postgres, which has the number `port`. `is_durable` False: it does not wait for the disk, as
    a test need not. `listen`: an address that it listens on as well, where it takes who is in the same network and asks for passwords.
    Raises ConfigError where it is not installed."""
    found = programs()
    if found is None:
        raise ConfigError(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="flywheel-pg-"))
    as_whom: dict[str, Any] = {"cwd": folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(folder)}}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        as_whom |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    data = folder / "data"
    where = [f"listen_addresses={listen or ''}", f"port={port}", f"unix_socket_directories={folder}"]
    settings = [*where, "max_connections=60", "shared_buffers=16MB"]
    options = " ".join(f"-c {setting}" for setting in [*settings, *([] if is_durable else ["fsync=off"])])
    try:
        password = folder / "password"
        password.write_text(PASSWORD)
        _run(
            [
                found / "initdb",
                "-D",
                data,
                "-U",
                USER,
                "--auth-local=trust",
                "--auth-host=scram-sha-256",
                f"--pwfile={password}",
                "-E",
                "UTF8",
                "--no-sync",
                "--no-instructions",
            ],
            as_whom,
        )
        with (data / "pg_hba.conf").open("a") as file:
            file.write("host all all samenet scram-sha-256\n")
        _run([found / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start"], as_whom, log=folder / "log")
        yield folder
    finally:
        subprocess.run([found / "pg_ctl", "-D", data, "-m", "immediate", "stop"], capture_output=True, timeout=TIMEOUT_S, **as_whom)
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: list[str | Path], as_whom: dict[str, Any], log: Path | None = None) -> None:
    """Raises ConfigError with what it said. A server that stays keeps our pipe open: what it says is in its log."""
    reported = subprocess.DEVNULL if log is not None else subprocess.PIPE
    ran = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=reported,
        stderr=subprocess.STDOUT if log is None else reported,
        text=True,
        timeout=TIMEOUT_S,
        **as_whom,
    )
    if ran.returncode != 0:
        said = ran.stdout if log is None else log.read_text() if log.exists() else ""
        raise ConfigError(f"{Path(command[0]).name} ended with {ran.returncode}: {said[-2000:]}")


def new_database(socket: Path, name: str, *, template: str = "template1", listen: str | None = None) -> str:
    """The address of a new database there: empty, or a copy of another that nobody is connected to. `listen`: of a server that listens
    there; other hosts reach that address too."""
    import psycopg

    with psycopg.connect(host=str(socket), user=USER, dbname="postgres", autocommit=True) as connection:
        connection.execute(f'create database "{name}" template "{template}"'.encode())
    if listen is not None:
        return f"postgresql+psycopg://{USER}:{PASSWORD}@{listen}/{name}"
    return f"postgresql+psycopg://{USER}@/{name}?host={socket}"
