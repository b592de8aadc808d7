"""The chain of commits, and what becomes of commits that nobody acknowledged: real tables, real files, damaged by hand. On a disk, where
the chain alone says what was acknowledged. In an object store a commit counts once its log file is there, by a conditional put, and the
chain is of the copy: test_remote_tables.py and test_store_faults.py."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from warehouse.core.errors import CorruptTable
from warehouse.core.home import Home
from warehouse.storage import tables
from warehouse.storage.log import actions as log_actions
from warehouse.storage.log import table_log
from warehouse.storage.log.chain import RECORD_BYTES, Chain, Record
from warehouse.storage.log.table_log import TableLog
from warehouse.storage.tables import Warehouse

FIRST = {"iteration": "0001", "stage": "rollouts"}
FILE = "0" * 32


def records(num: int) -> list[Record]:
    return [Record(version, 100 + version, f"{version:032x}") for version in range(num)]


def ids(warehouse: Warehouse, **where: Any) -> list[str]:
    return sorted(warehouse.read("episodes", columns=["episode_id"], **where).column(0).to_pylist())


def test_records_are_found_by_their_place(tmp_path: Path) -> None:
    chain = Chain(tmp_path / "chain" / "steps.commits")
    assert len(chain) == 0 and chain.head() is None
    for record in records(5):
        chain.append([record])
    assert chain.records(0, 5) == records(5) and chain.records(3, 4) == records(5)[3:4]
    assert chain.head() == records(5)[4] and chain.path.stat().st_size == 5 * RECORD_BYTES
    assert chain.path.read_bytes() == chain.lines(records(5))


@pytest.mark.parametrize("tail", [b"", b"0000", b"\0" * 50, b"\0" * RECORD_BYTES, b"\0" * (3 * RECORD_BYTES + 7)], ids=len)
def test_a_torn_tail_is_not_there_and_is_written_over(tmp_path: Path, tail: bytes) -> None:
    chain = Chain(tmp_path / "steps.commits")
    chain.append(records(3))
    chain.path.write_bytes(chain.path.read_bytes() + tail)
    assert len(chain) == 3
    chain.append(records(4)[3:])
    assert chain.records(0, 4) == records(4)


def test_every_flipped_bit_of_a_record_that_is_read_is_noticed(tmp_path: Path) -> None:
    chain = Chain(tmp_path / "steps.commits")
    chain.append(records(3))
    whole = chain.path.read_bytes()
    for bit in range(RECORD_BYTES * 8, 2 * RECORD_BYTES * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        chain.path.write_bytes(damaged)
        with pytest.raises(CorruptTable, match="chain of commits"):
            chain.records(0, 3)


def test_the_chain_of_another_table_does_not_pass(tmp_path: Path) -> None:
    chain, other = Chain(tmp_path / "steps.commits"), Chain(tmp_path / "routes.commits")
    chain.append(records(3))
    shutil.copy(chain.path, other.path)
    with pytest.raises(CorruptTable, match="record 0"):
        other.records(0, 3)


def unacknowledged(warehouse: Warehouse, make: Any) -> TableLog:
    """A table whose newest commit, of episode b, is in its log and not in its chain: its writer was killed between the two."""
    warehouse.replace_partition("episodes", [make.episode("a")], **FIRST)
    log = TableLog(warehouse.home, "episodes")
    before = log.commits.path.read_bytes()
    warehouse.replace_partition("episodes", [make.episode("b")], **FIRST)
    log.commits.path.write_bytes(before)
    return log


def test_a_whole_commit_that_nobody_acknowledged_is_taken(warehouse: Warehouse, make: Any) -> None:
    log = unacknowledged(warehouse, make)
    assert ids(warehouse) == ["b"] and warehouse.version("episodes") == 2
    head = log.commits.head()
    assert head is not None and head.version == 2


def test_while_another_writer_is_at_work_its_commit_is_not_read(warehouse: Warehouse, make: Any) -> None:
    log = unacknowledged(warehouse, make)
    with log.lock():
        assert ids(warehouse) == ["a"] and warehouse.version("episodes") == 1
    assert ids(warehouse) == ["b"]


@pytest.mark.parametrize("harm", ["empty", "cut", "zeros", "data cut", "data zeros", "data gone"])
def test_a_torn_commit_that_nobody_acknowledged_is_set_aside(warehouse: Warehouse, make: Any, harm: str) -> None:
    log = unacknowledged(warehouse, make)
    (data,) = [log.folder / name for name, _ in log_actions.added_files(log_actions.read_log(log.file(2)))]
    path = data if "data" in harm else log.file(2)
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": content[:60], "zeros": bytes(len(content))}.get(harm.removeprefix("data "), b""))
    if harm == "data gone":
        path.unlink()
    assert ids(warehouse) == ["a"] and warehouse.version("episodes") == 1
    (moved,) = warehouse.home.set_aside.glob("episodes-*/*")
    assert moved.name == log.file(2).name
    assert warehouse.replace_partition("episodes", [make.episode("c")], **FIRST) == 2 and ids(warehouse) == ["c"]


def test_a_home_of_before_gets_a_chain_with_its_first_commit(warehouse: Warehouse, make: Any, caplog: pytest.LogCaptureFixture) -> None:
    from deltalake import write_deltalake

    warehouse.replace_partition("episodes", [make.episode("a")], **FIRST)
    old = warehouse.read("episodes")
    shutil.rmtree(warehouse.folder("episodes"))
    shutil.rmtree(warehouse.home.chain)
    write_deltalake(warehouse.folder("episodes"), old.slice(0, 0), partition_by=["iteration", "stage"])
    write_deltalake(warehouse.folder("episodes"), old, mode="append")
    assert ids(warehouse) == ["a"] and not warehouse.home.chain.exists()
    assert [commit.version for commit in warehouse.history("episodes")] == [1, 0] and not warehouse.home.chain.exists()
    assert warehouse.append_partition("episodes", [make.episode("b")], **FIRST) == 2
    assert "its chain of commits begins at version 1" in caplog.text
    assert ids(warehouse) == ["a", "b"] and ids(warehouse, version=1) == ["a"]
    TableLog(warehouse.home, "episodes").file(2).write_bytes(b"")
    with pytest.raises(CorruptTable, match="were committed"):
        warehouse.read("episodes")


def test_a_lost_chain_is_noticed(warehouse: Warehouse, make: Any) -> None:
    warehouse.replace_partition("episodes", [make.episode("a")], **FIRST)
    shutil.rmtree(warehouse.home.chain)
    for use in (lambda: warehouse.read("episodes"), lambda: warehouse.replace_partition("episodes", [], **FIRST)):
        with pytest.raises(CorruptTable, match=r"its chain of commits .* is missing"):
            use()


def test_a_torn_checkpoint_of_a_log_is_set_aside(warehouse: Warehouse, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_log, "COMMITS_PER_CHECKPOINT", 2)
    monkeypatch.setattr(tables, "COMMITS_PER_CHECKPOINT", 2)
    for name in "abc":
        warehouse.replace_partition("episodes", [make.episode(name)], **FIRST)
    log = TableLog(warehouse.home, "episodes")
    assert log.checkpoint(2).exists() and len(log.checkpoints) == 1
    log.checkpoints.path.write_bytes(b"")
    log.checkpoint(2).write_bytes(b"")
    assert ids(warehouse) == ["c"] and not log.checkpoint(2).exists()


def test_a_home_that_cannot_be_written_is_read(warehouse: Warehouse, make: Any) -> None:
    """A reader that may not settle what others left reads what counts."""
    log = unacknowledged(warehouse, make)
    (warehouse.home.locks / "episodes.commit.lock").unlink()
    (warehouse.home.locks / "episodes.commit.lock").mkdir()
    assert ids(Warehouse(Home(warehouse.home.root))) == ["a"]
    assert log.file(2).exists()
