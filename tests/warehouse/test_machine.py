"""What the machine refuses is named in errors of ours, with the path and the way out, whichever library met it. Real disks, limits and
database files.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
import torch

from warehouse.core.errors import ConfigError, CorruptDatabase, FlywheelError, MachineLimit, StorageFull
from warehouse.core.machine import refusal


def named(error: BaseException, place: Path) -> FlywheelError:
    found = refusal(error, place)
    assert found is not None, f"{error!r} was not named"
    return found


def test_a_full_disk_under_sqlalchemy(small_disk: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{small_disk / 'runs.db'}")
    with pytest.raises(sa.exc.OperationalError) as wrong, engine.begin() as con:
        con.execute(sa.text("create table t (x blob)"))
        con.execute(sa.text("insert into t values (zeroblob(8000000))"))
    engine.dispose()
    found = named(wrong.value, small_disk)
    assert isinstance(found, StorageFull) and str(small_disk) in str(found) and "MiB" in str(found)


def test_a_full_disk_that_the_library_does_not_name(small_disk: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="unexpected pos") as wrong:
        torch.save(torch.zeros(1 << 20), small_disk / "optimizer.pt")
    assert isinstance(named(wrong.value, small_disk), StorageFull)
    assert refusal(wrong.value, tmp_path) is None, "a disk with room is not to blame"


def test_a_read_only_disk(small_disk: Path, tmp_path: Path) -> None:
    database = small_disk / "runs.db"
    with contextlib.closing(sqlite3.connect(database)) as con:
        con.execute("create table t (x)")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError) as wrong:
        (small_disk / "file").write_text("x")
    found = named(wrong.value, small_disk)
    assert isinstance(found, ConfigError) and str(small_disk / "file") in str(found) and "--home" in str(found)
    assert refusal(wrong.value, tmp_path / "home") is None, "another folder's matter"
    with contextlib.closing(sqlite3.connect(database)) as con, pytest.raises(sqlite3.OperationalError) as wrote:
        con.execute("insert into t values (1)")
    assert isinstance(named(wrote.value, small_disk), ConfigError)
    with pytest.raises(sqlite3.OperationalError, match="unable to open") as opened:
        sqlite3.connect(small_disk / "another.db")
    assert isinstance(named(opened.value, small_disk), ConfigError)


def test_a_damaged_database_is_named_among_sound_ones(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "events.db")) as con:
        con.execute("create table events (id integer)")
    (tmp_path / "runs.db").write_bytes(b"not a database at all" * 100)
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'runs.db'}")
    with pytest.raises(sa.exc.DatabaseError) as wrong, engine.begin() as con:
        con.execute(sa.text("select * from runs"))
    engine.dispose()
    found = named(wrong.value, tmp_path)
    assert isinstance(found, CorruptDatabase) and f"{tmp_path / 'runs.db'} is damaged" in str(found)


def test_too_few_open_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        with pytest.raises(OSError) as wrong:
            for number in range(80):
                opened.enter_context((tmp_path / str(number)).open("w"))
        found = named(wrong.value, tmp_path)
    assert isinstance(found, MachineLimit) and "64 files" in str(found) and "ulimit -n" in str(found)


MEMORY = """
import resource, sys
from pathlib import Path
from warehouse.core.machine import refusal
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    bytearray(4 << 30)
except MemoryError as error:
    print(type(refusal(error, Path(sys.argv[1]))).__name__, refusal(error, Path(sys.argv[1])))
"""


def test_too_little_memory(tmp_path: Path) -> None:
    said = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True).stdout
    assert said.startswith("MachineLimit") and "ulimit -v" in said and f"{2 << 30:,}" in said


def test_what_was_not_the_machine_stays_what_it_was(tmp_path: Path) -> None:
    assert shutil.disk_usage(tmp_path).free > 1 << 20
    assert refusal(ValueError("something else"), tmp_path) is None
