"""What benchmarks/forks.py publishes of its samples, the page that shows it, and one fork and one replay by hand on a real page."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.page import between
from benchmarks.common.provenance import MEASURED
from benchmarks.forks import ARMS, PAGE, measured, page, published, published_rows, sections
from sandbox.tasks.sources import tasks_in
from sandbox.tasks.task import Split

ROOT = Path(__file__).resolve().parents[2]


def row(seed: int, depths: dict[str, list[float]], not_met: tuple[str, ...] = ()) -> dict[str, Any]:
    depths = {
        depth: {
            arm: {"wall_ms": wall, "cpu_ms": [10.0 * (1 + place)] * len(wall), "not_met": list(not_met)} for place, arm in enumerate(ARMS)
        }
        for depth, wall in depths.items()
    }
    machine = {"commit": "0123456789", "date": "2026-11-27", "machine": "a CPU"}
    return {"task": "login-user", "seed": seed, "steps": 5, "depths": depths, "measured": machine}


def test_a_row_is_of_all_instances_that_have_the_depth() -> None:
    found = published([row(0, {"1": [4.0, 6.0], "4": [9.0]}), row(1, {"1": [8.0]}, not_met=("step 1 shows another screen",))])
    assert list(found) == ["login-user 1", "login-user 4"]
    first = found["login-user 1"]
    assert first["instances"] == 2 and found["login-user 4"]["instances"] == 1
    assert first["arms"]["fork"] == {"met": 3, "of": 4, "wall_ms": 6.0, "cpu_ms": 10.0, "not_met": ["step 1 shows another screen"]}
    wall, cpu = sections(found)
    assert wall.lines[0] == ("login-user", "1", "6", "6", "1.00", "6", "6", "1.00", "6 of 8", "6 of 8")
    assert cpu.lines[1] == ("login-user", "4", "10", "20", "0.50", "30", "40", "0.75", "2 of 2", "2 of 2")


def test_what_nobody_came_to_is_left_blank() -> None:
    found = published([row(0, {"1": []}, not_met=("step 1 shows other elements",))])
    assert sections(found)[0].lines == [("login-user", "1", "", "", "", "", "", "", "0 of 2", "0 of 2")]


def test_the_page_says_what_is_published() -> None:
    assert between(ROOT / PAGE, "forks") == page(published_rows(ROOT / MEASURED))


@pytest.mark.slow
def test_on_a_real_page_forks_and_hands_come_to_the_parents_state() -> None:
    task, depths = tasks_in(["miniwob"])["login-user"], list[None]()
    found = asyncio.run(measured(task, task.seeds(Split.TRAIN, 1)[0], (1, 9), 1, lambda: depths.append(None)))
    assert len(depths) == 2 and found["steps"] == 5 and list(found["depths"]) == ["1"], "the parent has no step 9"
    for arm in ARMS:
        samples = found["depths"]["1"][arm]
        assert samples["not_met"] == [] and len(samples["wall_ms"]) == len(samples["cpu_ms"]) == 1 and samples["wall_ms"][0] > 0
