"""A lost log file in the middle of a history: after the repair only the rows of its commit are missing, whatever came after it. On a disk,
which has the only one: in an object store the log is the store's, a copy's file is fetched again, and there is nothing to repair."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.warehouse.conftest import Make
from warehouse.core.home import Home
from warehouse.core.identity import bytes_id
from warehouse.storage import tables
from warehouse.storage.log import table_log
from warehouse.storage.log.table_log import TableLog
from warehouse.storage.repair.repairing import find_steps
from warehouse.storage.repair.restoring import restore
from warehouse.storage.tables import Warehouse

Rows = dict[str, list[str]]
Change = Callable[[Rows], None]
"""What one commit does to the rows of each stage."""


def route(name: str) -> dict[str, Any]:
    return {"episode_id": name, "route": "ct", "reason": "V=0"}


def repaired(warehouse: Warehouse) -> list[str]:
    """The repairs' report on it."""
    said: list[str] = []
    while steps := find_steps(warehouse):
        assert len(said) < 4, said
        for step in steps:
            step.act()
            said.append(f"{step.found}: {step.does}; lost {step.lost}")
    return said


def rows_of(warehouse: Warehouse) -> Rows:
    found: Rows = {}
    for row in warehouse.read("routes", columns=["stage", "episode_id"]).to_pylist():
        found.setdefault(row["stage"], []).append(row["episode_id"])
    return {stage: sorted(names) for stage, names in found.items()}


class History:
    """Random commits to one table, each with what it changes, so that it can be told what a table without one of them holds."""

    def __init__(self, warehouse: Warehouse, random_: random.Random) -> None:
        self.warehouse, self.random, self.changes = warehouse, random_, [lambda rows: None]
        """Version 0 only makes the table."""

    def go_on(self) -> None:
        stage = self.random.choice(("one", "two", "three"))
        names = [f"ep-{len(self.changes)}-{number}" for number in range(self.random.randrange(3))]
        kind = self.random.choice(("replace", "replace", "append", "erase"))
        at = {"iteration": "0001", "stage": stage}
        if kind == "replace":
            self.warehouse.replace_partition("routes", [route(name) for name in names], **at)
            self.changes.append(lambda rows: rows.update({stage: names}))
        elif kind == "append" and names:
            self.warehouse.append_partition("routes", [route(name) for name in names], **at)
            self.changes.append(lambda rows: rows.update({stage: [*rows.get(stage, []), *names]}))
        else:
            there = rows_of(self.warehouse).get(stage, [])
            gone = there[:1]
            if gone:
                self.warehouse.erase("routes", gone, **at)
                self.changes.append(lambda rows: rows.update({stage: there[1:]}))

    def without(self, lost: set[int]) -> Rows:
        rows: Rows = {}
        for version, change in enumerate(self.changes):
            if version not in lost:
                change(rows)
        return {stage: sorted(names) for stage, names in rows.items() if names}


@pytest.mark.parametrize("seed", range(8))
def test_only_the_rows_of_lost_commits_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(table_log, "COMMITS_PER_CHECKPOINT", 7)
    monkeypatch.setattr(tables, "COMMITS_PER_CHECKPOINT", 7)
    warehouse, random_ = Warehouse(Home(tmp_path)), random.Random(seed)
    history, log = History(warehouse, random_), TableLog(Home(tmp_path), "routes")
    while len(history.changes) < 14:
        history.go_on()
    lost = set(random_.sample(range(8, 14), 1 + seed % 2)) if seed % 4 else {13}
    digests = {version: warehouse.commit_digest("routes", version) for version in range(14)}
    for version in lost:
        log.file(version).unlink()
    fresh = Warehouse(Home(tmp_path))
    assert repaired(fresh)
    assert rows_of(fresh) == history.without(lost)
    assert fresh.version("routes") == 13
    assert {version for version, digest in digests.items() if fresh.commit_digest("routes", version) != digest} == lost
    assert [commit.version for commit in fresh.history("routes")] == list(range(13, -1, -1))
    fresh.replace_partition("routes", [route("new")], iteration="0001", stage="one")
    assert rows_of(fresh) == history.without(lost) | {"one": ["new"]}


@pytest.mark.slow
@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("version", [0, 2])
def test_a_lost_log_file_of_a_store_s_copy_needs_no_stand_in(tmp_path: Path, version: int) -> None:
    warehouse = Warehouse(Home(tmp_path))
    for stage in ("one", "two", "three"):
        warehouse.replace_partition("routes", [route(stage)], iteration="0001", stage=stage)
    digest = warehouse.commit_digest("routes", version)
    (lost := TableLog(warehouse.home, "routes").file(version)).unlink()
    fresh = Warehouse(Home(tmp_path))
    assert rows_of(fresh) == {name: [name] for name in ("one", "two", "three")}
    assert repaired(fresh) == [] and fresh.commit_digest("routes", version) == digest and lost.is_file()


def test_the_first_log_file_is_made_again(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path))
    for stage in ("one", "two"):
        warehouse.replace_partition("routes", [route(stage)], iteration="0001", stage=stage)
    TableLog(warehouse.home, "routes").file(0).unlink()
    fresh = Warehouse(Home(tmp_path))
    (said,) = repaired(fresh)
    assert "version 0 is damaged or missing: leaves it out and keeps the 2 commits after it; lost ()" in said
    assert rows_of(fresh) == {"one": ["one"], "two": ["two"]}


def test_whose_rows_are_lost_is_known_by_where_their_files_lie(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path))
    for stage in ("one", "two", "three"):
        warehouse.append_partition("routes", [route(stage)], iteration="0001", stage=stage)
    TableLog(warehouse.home, "routes").file(2).write_bytes(b"")
    (said,) = repaired(Warehouse(Home(tmp_path)))
    assert said.endswith("lost (('0001', 'two'),)")


def test_pictures_of_later_commits_stay(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path))
    ids = [bytes_id("screen", data) for data in (b"one", b"two", b"three")]
    for name, data in zip(ids, (b"one", b"two", b"three"), strict=True):
        warehouse.add_screenshots([Make.screenshot(name, data)])
    TableLog(warehouse.home, "screenshots").file(2).unlink()
    fresh = Warehouse(Home(tmp_path))
    repaired(fresh)
    assert sorted(fresh.read("screenshots").column("screenshot_id").to_pylist()) == sorted([ids[0], ids[2]])


def test_what_depends_on_the_lost_commit_is_set_aside(tmp_path: Path) -> None:
    """A restored version is told as a difference to what is lost."""
    warehouse = Warehouse(Home(tmp_path))
    for name in ("a", "b", "c"):
        warehouse.replace_partition("routes", [route(name)], iteration="0001", stage="one")
    warehouse.replace_partition("routes", [route("d")], iteration="0001", stage="two")
    restore(warehouse, "routes", 1)
    warehouse.append_partition("routes", [route("e")], iteration="0001", stage="two")
    log = TableLog(warehouse.home, "routes")
    log.file(2).unlink()
    fresh = Warehouse(Home(tmp_path))
    (said,) = repaired(fresh)
    assert "keeps the 2 commits after it up to version 4: 2 later commits depend on what was lost and are set aside" in said
    assert rows_of(fresh) == {"one": ["c"], "two": ["d"]} and fresh.version("routes") == 4


def test_a_repair_that_was_cut_off_is_done_again(tmp_path: Path) -> None:
    """The stand-in is there, and the chain does not know it yet."""
    warehouse = Warehouse(Home(tmp_path))
    for stage in ("one", "two", "three"):
        warehouse.replace_partition("routes", [route(stage)], iteration="0001", stage=stage)
    path = TableLog(warehouse.home, "routes").file(2)
    info = {"timestamp": 1, "operation": "REPAIR", "operationParameters": {}, "repair": "true"}
    path.write_text(json.dumps({"commitInfo": info}) + "\n")
    fresh = Warehouse(Home(tmp_path))
    repaired(fresh)
    assert rows_of(fresh) == {"one": ["one"], "three": ["three"]}
