"""What the benchmark of kills calls lost, doubled or left is what is lost, doubled or left; an interrupted one goes on where it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.common.acknowledged import Digests, Promise, broken
from benchmarks.common.process import left_after
from benchmarks.kills import ONE, TREE, Log, differences, doubled
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

PLACE = {"iteration": "0001", "stage": "ct_model"}


def losses(*steps: int) -> list[dict[str, object]]:
    return [{"run": "ct_model", "step": step, "metric": "loss", "value": 1.0, "checkpoint_id": "policy-a"} for step in steps]


def test_a_step_of_training_that_is_stored_twice_is_doubled(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path))
    warehouse.append_partition("training_metrics", losses(1, 2, 3), **PLACE)
    assert doubled(warehouse.home) == []
    warehouse.append_partition("training_metrics", losses(3, 4), **PLACE)
    assert doubled(warehouse.home) == ["1 training metrics twice"]


def test_what_was_acknowledged_and_is_gone_is_lost(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path))
    warehouse.append_partition("training_metrics", losses(1, 2), **PLACE)
    digests = Digests(tmp_path)
    promise = Promise(said="seen", tables=digests.of(digests.versions()))
    assert broken(tmp_path, promise) == []
    for path in (warehouse.folder("training_metrics") / "_delta_log").glob("*1.json"):
        path.unlink()
    assert len(broken(tmp_path, promise)) == 1


def test_a_process_of_the_home_that_lives_on_is_left(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(tmp_path)])
    try:
        (line,) = left_after(tmp_path, 0.5)
        assert line.startswith(f"{process.pid} ")
    finally:
        process.kill()
        process.wait()
    assert left_after(tmp_path, 0.5) == []


def test_other_numbers_of_rows_than_without_kills_are_reported_but_where_chance_has_a_part() -> None:
    unkilled = {"training_metrics/0001/ct_model": 9, "steps/0001/rollouts": 30, "episodes/0001/rollouts": 10}
    killed = {"training_metrics/0001/ct_model": 12, "steps/0001/rollouts": 28}
    assert differences(killed, unkilled) == [
        "episodes/0001/rollouts has 0 rows, not 10",
        "training_metrics/0001/ct_model has 12 rows, not 9",
    ]


def test_each_step_is_killed_at_in_both_ways_and_an_interrupted_benchmark_goes_on(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", num=3, per_place=1)
    assert log.wants(0, "0001/ct_model") and log.kind("0001/ct_model") == TREE
    log.add({"home": 0, "place": "0001/ct_model", "kind": TREE})
    again = Log(tmp_path / "log", num=3, per_place=1)
    assert not again.wants(0, "0001/ct_model") and again.wants(1, "0001/ct_model") and again.wants(0, "0002/ct_model")
    assert again.kind("0002/ct_model") == again.kind("0001/sft_model") == ONE
    again.add({"home": 0, "place": "0002/ct_model", "kind": ONE})
    again.add({"home": 0, "place": "0001/sft_model", "kind": ONE})
    assert not again.wants(1, "0001/rl_model__forms"), "three were asked for"
