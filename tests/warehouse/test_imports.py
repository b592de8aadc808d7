"""Which imported rows a gate has not looked at yet."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.warehouse.conftest import Make
from warehouse.core.home import Home
from warehouse.datasets.imports import unchecked_imports
from warehouse.storage.repair.restoring import restore
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.usefixtures("tables_place")

SNAPSHOTS = ("ct_dataset", "sft_dataset")


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(Home(tmp_path))


def write(warehouse: Warehouse, table: str, stage: str, *rows: dict[str, Any], iteration: str = "0000") -> None:
    time.sleep(0.002)  # commits are told apart by the millisecond
    warehouse.replace_partition(table, list(rows), iteration=iteration, stage=stage)


def unchecked(warehouse: Warehouse, iteration: str) -> list[tuple[str, str | None]]:
    return list(unchecked_imports(warehouse, iteration, seeded=("seed_demonstrations",), snapshots=SNAPSHOTS))


def test_what_came_since_an_earlier_iteration_made_its_snapshots(warehouse: Warehouse) -> None:
    assert unchecked(warehouse, "0001") == []
    write(warehouse, "sft_samples", "seed_demonstrations", Make.sample("seed"))
    write(warehouse, "sft_samples", "imported_a", Make.sample("a"))
    write(warehouse, "sft_samples", "routing", Make.sample("routed"), iteration="0001")
    assert unchecked(warehouse, "0001") == [("sft_samples", "imported_a")]
    for stage in SNAPSHOTS:
        write(warehouse, "datasets", stage, iteration="0001")
    assert unchecked(warehouse, "0001") == [("sft_samples", "imported_a")], "its own snapshots do not count: the gate comes after"
    assert unchecked(warehouse, "0002") == []
    write(warehouse, "ct_samples", "general_b", Make.sample("b"))
    write(warehouse, "datasets", "orm_dataset", iteration="0001")
    write(warehouse, "datasets", "ct_dataset", iteration="0001")
    assert unchecked(warehouse, "0002") == [("ct_samples", "general_b")], "only a gate after both snapshots has seen it"


def test_an_older_version_that_was_put_back_is_looked_at_again(warehouse: Warehouse) -> None:
    write(warehouse, "sft_samples", "imported_a", Make.sample("a"))
    write(warehouse, "sft_samples", "imported_b", Make.sample("b"))
    version = warehouse.version("sft_samples")
    for stage in SNAPSHOTS:
        write(warehouse, "datasets", stage, iteration="0001")
    assert unchecked(warehouse, "0002") == []
    time.sleep(0.002)
    restore(warehouse, "sft_samples", version - 1)
    assert unchecked(warehouse, "0002") == [("sft_samples", "imported_a")]


def test_so_it_is_where_later_iterations_have_written_the_table(warehouse: Warehouse) -> None:
    write(warehouse, "sft_samples", "imported_a", Make.sample("a"))
    write(warehouse, "sft_samples", "routing", Make.sample("routed"), iteration="0001")
    version = warehouse.version("sft_samples")
    write(warehouse, "sft_samples", "imported_a")
    for stage in SNAPSHOTS:
        write(warehouse, "datasets", stage, iteration="0001")
    assert unchecked(warehouse, "0002") == []
    time.sleep(0.002)
    restore(warehouse, "sft_samples", version)
    assert unchecked(warehouse, "0002") == [("sft_samples", "imported_a")]


def test_screenshots_are_looked_at_together(warehouse: Warehouse) -> None:
    picture = {"format": "png", "width_px": 1, "height_px": 1, "data": b"x"}
    warehouse.add_screenshots([picture | {"screenshot_id": "seed"}], iteration="0000", stage="seed_demonstrations")
    warehouse.add_screenshots([picture | {"screenshot_id": "acted"}], iteration="0001", stage="rollouts")
    assert unchecked(warehouse, "0001") == []
    warehouse.add_screenshots([picture | {"screenshot_id": "imported"}], iteration="0000", stage="imported_a")
    assert unchecked(warehouse, "0001") == [("screenshots", None)]
