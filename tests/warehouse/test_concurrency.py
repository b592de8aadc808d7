"""Several processes on the same tables, and a writer killed in the middle of a write."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warehouse.core.home import Home
from warehouse.storage.repair.integrity import find_damage
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.usefixtures("tables_place")
ROOT = Path(__file__).parents[2]
_PREAMBLE = """
import sys
from pathlib import Path
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse
warehouse = Warehouse(Home(Path(sys.argv[1])))
name = sys.argv[2]
def verdicts(count, judge):
    row = {"judge": judge, "judge_version": "1", "kind": "verdict", "origin": "verifier", "score": 1.0, "threshold": 0.5, "passed": True,
           "reasons": ["because"] * 20}
    return [row | {"episode_id": f"ep-{i}"} for i in range(count)]
"""


def _start(home: Path, name: str, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _PREAMBLE + code, str(home), name], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _finish(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.communicate(timeout=150)
    assert [process.returncode for process in processes] == [0] * len(processes)


def test_writers_of_different_partitions_never_lose_a_row_even_when_they_create_the_table(tmp_path: Path) -> None:
    code = """
for iteration in range(8):
    warehouse.replace_partition("verdicts", verdicts(10, name), iteration=f"{iteration:04d}", stage=name)
"""
    _finish(*(_start(tmp_path, name, code) for name in ("one", "two")))
    warehouse = Warehouse(Home(tmp_path))
    assert warehouse.read("verdicts").num_rows == 2 * 8 * 10
    written = warehouse.read("verdicts", columns=["iteration", "stage"]).to_pylist()
    assert len({(row["iteration"], row["stage"]) for row in written}) == 16
    assert sum(commit.iteration is not None for commit in warehouse.history("verdicts")) == 16


def test_writers_of_the_same_partition_leave_one_of_the_two_whole(tmp_path: Path) -> None:
    code = """
for count in range(1, 9):
    warehouse.replace_partition("verdicts", verdicts(count * 10, name), iteration="0001", stage="verdicts")
"""
    _finish(*(_start(tmp_path, name, code) for name in ("one", "two")))
    warehouse = Warehouse(Home(tmp_path))
    for version in range(1, warehouse.version("verdicts") + 1):
        rows = warehouse.read("verdicts", version=version)
        assert len(set(rows.column("judge").to_pylist())) == 1
        assert rows.num_rows % 10 == 0
    assert warehouse.read("verdicts").num_rows == 80
    assert sum(commit.iteration is not None for commit in warehouse.history("verdicts")) == 16


def test_screenshots_added_by_two_processes_are_stored_once(tmp_path: Path) -> None:
    code = """
for batch in range(8):
    rows = [{"screenshot_id": f"shot-{batch * 5 + i}", "format": "png", "width_px": 1, "height_px": 1, "data": b"x"} for i in range(10)]
    warehouse.add_screenshots(rows)
"""
    _finish(*(_start(tmp_path, name, code) for name in ("one", "two")))
    ids = Warehouse(Home(tmp_path)).read("screenshots").column("screenshot_id").to_pylist()
    assert sorted(ids) == sorted(f"shot-{i}" for i in range(45))


@pytest.mark.slow
def test_a_writer_killed_in_mid_write_leaves_the_rows_before_or_after_it(tmp_path: Path) -> None:
    code = """
print("ready", flush=True)
for generation in range(10_000):
    warehouse.replace_partition("verdicts", verdicts(3000, f"generation {generation}"), iteration="0001", stage="verdicts")
"""
    chance = random.Random(7)
    warehouse = Warehouse(Home(tmp_path))
    for _ in range(3):
        process = _start(tmp_path, "writer", code)
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            started = warehouse.version("verdicts")
            while warehouse.version("verdicts") < started + 2:
                time.sleep(0.02)
            time.sleep(chance.uniform(0, 0.2))
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        rows = warehouse.read("verdicts")
        assert rows.num_rows == 3000
        assert len(set(rows.column("judge").to_pylist())) == 1
        assert find_damage(warehouse.folder("verdicts"), warehouse.delta("verdicts")) == []
    version = warehouse.version("verdicts")
    assert warehouse.replace_partition("verdicts", [], iteration="0001", stage="verdicts") == version + 1


def test_screenshots_of_a_killed_process_do_not_lock_the_others_out(tmp_path: Path) -> None:
    code = """
from warehouse.core.locks import FileLock
lock = FileLock(warehouse.home.locks / "screenshots.lock")
lock.acquire()
print("locked", flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", _PREAMBLE + code, str(tmp_path), "one"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    process.kill()
    process.communicate()
    row = {"screenshot_id": "shot-1", "format": "png", "width_px": 1, "height_px": 1, "data": b"x"}
    assert Warehouse(Home(tmp_path)).add_screenshots([row]) == 1
