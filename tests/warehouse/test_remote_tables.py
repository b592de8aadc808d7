"""Tables in an object store, as several hosts see them: each has a home of its own and the store is the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.warehouse.conftest import Make
from tests.warehouse.test_concurrency import _PREAMBLE, ROOT
from warehouse.core.errors import ConfigError, CorruptTable, StoreUnreachable, UnknownTable, WriteConflict
from warehouse.core.home import Home
from warehouse.core.identity import bytes_id
from warehouse.core.store import STORE_VARIABLE, Store
from warehouse.datasets.withdrawal import purge, withdraw
from warehouse.storage import tables
from warehouse.storage.log import table_log
from warehouse.storage.remote.log import log_of
from warehouse.storage.remote.table import RemoteTable
from warehouse.storage.screenshots.stored import pictures
from warehouse.storage.sql import query
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.slow
FIRST = {"iteration": "0001", "stage": "rollouts"}


def _hosts(folder: Path, num: int) -> list[Warehouse]:
    return [Warehouse(Home(folder / f"host-{index}")) for index in range(num)]


def _ids(warehouse: Warehouse, **where: Any) -> list[str]:
    return sorted(warehouse.read("episodes", columns=["episode_id"], **where).column(0).to_pylist())


def _start(home: Path, name: str, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _PREAMBLE + code, str(home), name], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_what_one_host_commits_the_others_read_at_once_and_at_every_version(tmp_path: Path, store: Store) -> None:
    one, two = _hosts(tmp_path, 2)
    assert _ids(two) == []
    one.replace_partition("episodes", [Make.episode("a"), Make.episode("b")], **FIRST)
    assert _ids(two) == ["a", "b"]
    two.replace_partition("episodes", [Make.episode("c")], **FIRST)
    two.append_partition("episodes", [Make.episode("d")], **FIRST)
    assert _ids(one) == ["c", "d"] and _ids(one, version=1) == ["a", "b"] and _ids(two, version=2) == ["c"]
    assert query.run(one, "select count(*) as n from episodes").to_pylist() == [{"n": 2}]
    assert [commit.version for commit in one.history("episodes")] == [3, 2, 1, 0]
    found = DeltaTable(f"{store.url}/tables/episodes").to_pyarrow_table(columns=["episode_id"])
    assert sorted(found.column(0).to_pylist()) == ["c", "d"], "any reader of Delta tables reads it where it lies"
    assert not (one.home.root / "tables").exists()


@pytest.mark.parametrize("num_hosts", [2, 3])
def test_appends_of_several_hosts_are_all_there_once(tmp_path: Path, store: Store, num_hosts: int) -> None:
    code = """
row = verdicts(1, name)[0]
for number in range(25):
    warehouse.append_partition("verdicts", [row | {"episode_id": f"{name}-{number}"}], iteration="0001", stage="verdicts")
"""
    names = [f"host-{index}" for index in range(num_hosts)]
    processes = [_start(tmp_path / name, name, code) for name in names]
    for process in processes:
        process.communicate(timeout=150)
    assert [process.returncode for process in processes] == [0] * num_hosts
    reader = Warehouse(Home(tmp_path / "reader"))
    found = reader.read("verdicts", columns=["episode_id"]).column(0).to_pylist()
    assert sorted(found) == sorted(f"{name}-{number}" for name in names for number in range(25))
    assert sum(commit.stage == "verdicts" for commit in reader.history("verdicts")) == 25 * num_hosts


def test_two_hosts_that_write_one_partition_leave_one_of_the_two_whole_at_every_version(tmp_path: Path, store: Store) -> None:
    code = """
for count in range(1, 9):
    warehouse.replace_partition("verdicts", verdicts(count * 10, name), iteration="0001", stage="verdicts")
"""
    processes = [_start(tmp_path / name, name, code) for name in ("host-0", "host-1")]
    for process in processes:
        process.communicate(timeout=150)
    assert [process.returncode for process in processes] == [0, 0]
    third = Warehouse(Home(tmp_path / "host-2"))
    for version in range(1, third.version("verdicts") + 1):
        rows = third.read("verdicts", version=version)
        assert len(set(rows.column("judge").to_pylist())) == 1 and rows.num_rows % 10 == 0
    assert third.read("verdicts").num_rows == 80


def test_pictures_that_two_hosts_add_are_stored_once_and_copied_only_where_they_are_looked_at(tmp_path: Path, store: Store) -> None:
    code = """
for batch in range(8):
    rows = [{"screenshot_id": f"shot-{batch * 5 + i}", "format": "png", "width_px": 1, "height_px": 1, "data": b"x"} for i in range(10)]
    warehouse.add_screenshots(rows)
"""
    processes = [_start(tmp_path / name, name, code) for name in ("host-0", "host-1")]
    for process in processes:
        process.communicate(timeout=150)
    assert [process.returncode for process in processes] == [0, 0]
    third = Warehouse(Home(tmp_path / "host-2"))
    assert third.version("screenshots") > 0 and not list(third.folder("screenshots").glob("*.parquet"))
    ids = third.read("screenshots", columns=["screenshot_id"]).column(0).to_pylist()
    assert sorted(ids) == sorted(f"shot-{i}" for i in range(45))


def test_a_copy_that_was_lost_or_damaged_is_made_again(tmp_path: Path, store: Store) -> None:
    (one,) = _hosts(tmp_path, 1)
    one.replace_partition("episodes", [Make.episode("a")], **FIRST)
    one.append_partition("episodes", [Make.episode("b")], **FIRST)
    (data, *_), log = one.files("episodes"), log_of(one.home, "episodes")
    for path in (data, log.file(1)):
        path.write_bytes(b"garbled" * 10)
        assert _ids(Warehouse(one.home)) == ["a", "b"]
    data.unlink()
    log.file(2).unlink()
    assert _ids(Warehouse(one.home)) == ["a", "b"]
    shutil.rmtree(one.home.root / "cache" / "store")
    assert _ids(Warehouse(one.home)) == ["a", "b"]


@pytest.mark.parametrize("what", ["missing", "cut off", "changed"])
def test_a_damaged_object_is_named_and_never_read(tmp_path: Path, store: Store, what: str) -> None:
    one, two = _hosts(tmp_path, 2)
    one.replace_partition("episodes", [Make.episode("a")], **FIRST)
    (path,) = one.files("episodes")
    name = f"tables/episodes/{path.relative_to(one.folder('episodes')).as_posix()}"
    data = path.read_bytes()
    match what:
        case "missing":
            store.delete([name])
        case "cut off":
            store.write(name, data[:-40])
        case _:
            store.write(name, data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(CorruptTable, match=r"\.parquet .*(is missing|was changed|bytes where)"):
        two.read("episodes")
    assert _ids(one) == ["a"], "a sound copy is sound"


@pytest.mark.parametrize("what", ["lost", "changed"])
def test_a_commit_that_was_changed_in_the_store_is_noticed(tmp_path: Path, store: Store, what: str) -> None:
    one, two = _hosts(tmp_path, 2)
    for name in "abc":
        one.append_partition("episodes", [Make.episode(name)], **FIRST)
    log = log_of(one.home, "episodes").file(2)
    name = f"tables/episodes/_delta_log/{log.name}"
    if what == "lost":
        store.delete([name])
    else:
        store.write(name, log.read_bytes().replace(b'"numRecords', b'"numrecords'))
    with pytest.raises(CorruptTable, match="is missing, though later commits follow" if what == "lost" else "does not follow the commits"):
        two.read("episodes")


@pytest.mark.parametrize("what", ["emptied", "put back", "written again"])
def test_a_copy_of_what_the_store_no_longer_has_is_neither_read_nor_written_on(tmp_path: Path, store: Store, what: str) -> None:
    one, two = _hosts(tmp_path, 2)
    for name in "abc":
        one.append_partition("episodes", [Make.episode(name)], **FIRST)
    before = [each.name for each in store.list("tables/episodes")]
    store.delete([name for name in before if what != "put back" or name.endswith("3.json")])
    if what == "written again":
        for name in "xyz":
            two.append_partition("episodes", [Make.episode(name)], **FIRST)
    there = [each.name for each in store.list("tables/episodes")]
    said = "3.json is another" if what == "written again" else "3.json is missing"
    with pytest.raises(CorruptTable, match=f"{said}, though it was committed.*delete .*cache/store/"):
        one.read("episodes")
    with pytest.raises(CorruptTable, match=said):
        one.append_partition("episodes", [Make.episode("d")], **FIRST)
    assert [each.name for each in store.list("tables/episodes") if each.name.endswith(".json")] == [
        name for name in there if name.endswith(".json")
    ]
    shutil.rmtree(one.home.tables.parent)
    assert _ids(one) == {"emptied": [], "put back": ["a", "b"], "written again": ["x", "y", "z"]}[what]


def test_a_commit_that_is_missing_before_later_ones_is_noticed_by_who_commits(tmp_path: Path, store: Store) -> None:
    one, two = _hosts(tmp_path, 2)
    one.append_partition("episodes", [Make.episode("a")], **FIRST)
    assert _ids(two) == ["a"]
    for name in "bc":
        one.append_partition("episodes", [Make.episode(name)], **FIRST)
    store.delete(["tables/episodes/_delta_log/00000000000000000002.json"])
    with pytest.raises(CorruptTable, match=r"2\.json is missing, though later commits follow"):
        two.append_partition("episodes", [Make.episode("d")], **FIRST)


def test_a_writer_that_was_killed_before_its_commit_counted_leaves_nothing_to_read(tmp_path: Path, store: Store) -> None:
    one, two = _hosts(tmp_path, 2)
    one.append_partition("verdicts", _verdicts(1), iteration="0001", stage="verdicts")
    code = """
import os, signal
from warehouse.storage.remote.table import RemoteTable
def killed(self, version, log):
    os.kill(os.getpid(), signal.SIGKILL)
RemoteTable.publish = killed
warehouse.append_partition("verdicts", verdicts(3, name), iteration="0001", stage="verdicts")
"""
    process = _start(one.home.root, "killed", code)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert two.read("verdicts").num_rows == 1
    two.append_partition("verdicts", _verdicts(2), iteration="0002", stage="verdicts")
    assert one.read("verdicts").num_rows == 3, "its commit was overtaken"
    assert any(path.name.endswith(".json") for path in one.home.set_aside.rglob("*"))


def _verdicts(count: int) -> list[dict[str, Any]]:
    return [Make.verdict(f"ep-{uuid.uuid4().hex}") for _ in range(count)]


def test_a_purge_erases_the_objects_and_the_copies_of_other_hosts(tmp_path: Path, store: Store) -> None:
    one, two = _hosts(tmp_path, 2)
    seed = {"iteration": "0000", "stage": "seed_demonstrations"}
    one.replace_partition("sft_samples", [Make.sample("keep"), Make.sample("private")], **seed)
    (path,) = two.files("sft_samples")
    assert path.exists()
    withdraw(one, "sft_samples", ["private"], iteration="0001")
    purge(one)
    rows = {row["sample_id"]: row["messages"] for row in two.read("sft_samples", stage="seed_demonstrations").to_pylist()}
    assert list(rows) == ["keep"]
    assert not path.exists() and not any(each.name.endswith(path.name) for each in store.list("tables/sft_samples"))
    with pytest.raises(UnknownTable, match="a purge erased version 1"):
        two.read("sft_samples", version=1)


def test_a_purge_that_another_writer_overtakes_is_done_again_and_one_of_files_that_are_not_here_tells_the_others(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = _hosts(tmp_path, 3)
    seed = {"iteration": "0000", "stage": "seed_demonstrations"}
    one.replace_partition("sft_samples", [Make.sample("keep"), Make.sample("private")], **seed)
    (path,) = two.files("sft_samples")
    withdraw(one, "sft_samples", ["private"], iteration="0001")
    publish, num = RemoteTable.publish, 0

    def overtaken(self: RemoteTable, version: int, log: bytes) -> bool:
        nonlocal num
        if b"VACUUM" in log and num < 2:
            num += 1
            monkeypatch.setattr(RemoteTable, "publish", publish)
            three.append_partition("sft_samples", [Make.sample(f"more-{num}")], iteration="0001", stage="routing")
            monkeypatch.setattr(RemoteTable, "publish", overtaken)
        return publish(self, version, log)

    monkeypatch.setattr(RemoteTable, "publish", overtaken)
    purge(one, ["sft_samples"])
    assert num == 2 and not any(each.name.endswith(path.name) for each in store.list("tables/sft_samples"))
    ids = two.read("sft_samples", columns=["sample_id"], stage="seed_demonstrations").column(0).to_pylist()
    assert ids == ["keep"] and not path.exists()
    assert two.read("sft_samples", stage="routing").num_rows == 2
    withdraw(one, "sft_samples", ["keep"], iteration="0001")
    (path,) = (each for each in two.files("sft_samples") if "seed_demonstrations" in str(each))
    one.erase("sft_samples", ["keep"], **seed)
    purge(Warehouse(Home(tmp_path / "fresh")), ["sft_samples"])
    assert not any(each.name.endswith(path.name) for each in store.list("tables/sft_samples"))
    assert two.read("sft_samples", stage="seed_demonstrations").num_rows == 0 and not path.exists()


def _overtake(monkeypatch: pytest.MonkeyPatch, commit: Callable[[], object]) -> None:
    """Have another host commit before the next commit is put."""
    publish = RemoteTable.publish

    def overtaken(self: RemoteTable, version: int, log: bytes) -> bool:
        monkeypatch.setattr(RemoteTable, "publish", publish)
        commit()
        return publish(self, version, log)

    monkeypatch.setattr(RemoteTable, "publish", overtaken)


def _data_files(store: Store, table: str) -> list[str]:
    return [each.name for each in store.list(f"tables/{table}") if each.name.endswith(".parquet")]


def test_who_adds_pictures_copies_none_and_sends_a_file_once_whoever_is_faster(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = _hosts(tmp_path, 2)
    for name in "ab":
        one.add_screenshots([Make.screenshot(name, b"x" * 2**20)])
    two.add_screenshots([Make.screenshot(name) for name in "abc"])
    assert len(_data_files(store, "screenshots")) == 3
    assert len(list(two.folder("screenshots").glob("*.parquet"))) == 1, "its own"
    write, sent = Store.write, []

    def counted(self: Store, name: str, data: bytes | Path) -> None:
        sent.append(name)
        write(self, name, data)

    monkeypatch.setattr(Store, "write", counted)
    _overtake(monkeypatch, lambda: one.add_screenshots([Make.screenshot("d")]))
    two.add_screenshots([Make.screenshot("e")])
    assert len(sent) == 2 and len(_data_files(store, "screenshots")) == 5
    _overtake(monkeypatch, lambda: one.add_screenshots([Make.screenshot("f")]))
    two.add_screenshots([Make.screenshot("f")])
    assert len(sent) == 4 and len(_data_files(store, "screenshots")) == 6, "what the other was faster with is not left there"
    found = Warehouse(Home(tmp_path / "third")).read("screenshots", columns=["screenshot_id"]).column(0).to_pylist()
    assert sorted(found) == list("abcdef")
    monkeypatch.setattr("warehouse.storage.tables.ATTEMPTS_OF_HOSTS", 1)
    one.replace_partition("episodes", [Make.episode("a")], **FIRST)
    _overtake(monkeypatch, lambda: one.replace_partition("episodes", [Make.episode("b")], **FIRST))
    with pytest.raises(WriteConflict):
        two.replace_partition("episodes", [Make.episode("c")], **FIRST)
    assert len(_data_files(store, "episodes")) == 2 and _ids(two) == ["b"]


def test_a_reader_that_cannot_copy_what_others_committed_says_so(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = _hosts(tmp_path, 2)
    one.append_partition("episodes", [Make.episode("a")], **FIRST)
    assert _ids(two) == ["a"]
    monkeypatch.setattr("warehouse.storage.remote.log._LOOK_S", 0.2)
    with log_of(two.home, "episodes").lock():
        assert _ids(Warehouse(two.home)) == ["a"], "there is nothing that it lacks"
        one.append_partition("episodes", [Make.episode("b")], **FIRST)
        with pytest.raises(StoreUnreachable, match=f"process {os.getpid()}.* has not let them be copied"):
            _ids(Warehouse(two.home))
    assert _ids(two) == ["a", "b"]


def test_pictures_are_read_through_the_copy(tmp_path: Path, store: Store) -> None:
    one, two = _hosts(tmp_path, 2)
    data = b"not looked into"
    picture_id = bytes_id("screen", data)
    one.add_screenshots([Make.screenshot(picture_id, data)])
    assert pictures(two, [picture_id])[picture_id].data == data


def test_what_is_wrong_with_the_address_or_the_keys_is_said(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "s3://no-such-bucket/x")
    with pytest.raises(ConfigError, match="there is no bucket of s3://no-such-bucket/x"):
        Warehouse(Home(tmp_path)).read("episodes")
    monkeypatch.setenv(STORE_VARIABLE, "ftp://x")
    with pytest.raises(ConfigError, match="s3://bucket/prefix"):
        Home(tmp_path)


def test_a_long_history_has_checkpoints_of_its_log_in_each_copy(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (table_log, tables):
        monkeypatch.setattr(module, "COMMITS_PER_CHECKPOINT", 10)
    one, two, three = _hosts(tmp_path, 3)
    for number in range(70):
        (one, two)[number % 2].append_partition("episodes", [Make.episode(f"e-{number:02d}")], **FIRST)
    expected = [f"e-{number:02d}" for number in range(70)]
    assert _ids(one) == _ids(two) == _ids(three) == expected and _ids(three, version=41) == expected[:41]
    log = log_of(two.home, "episodes")
    assert log.checkpoint(70).exists() and not any("checkpoint" in each.name for each in store.list("tables/episodes"))
    log.checkpoint(70).write_bytes(b"torn")
    again = Warehouse(two.home)
    assert _ids(again) == expected
    again.append_partition("episodes", [Make.episode("e-70")], **FIRST)
    assert _ids(again) == _ids(three) == [*expected, "e-70"]


def test_versions_that_many_hosts_raced_for_are_reported_by_the_log_of_each(tmp_path: Path, store: Store) -> None:
    one, two = _hosts(tmp_path, 2)
    for number in range(4):
        (one, two)[number % 2].append_partition("episodes", [Make.episode(f"e-{number}")], **FIRST)
    logs = [log_of(each.home, "episodes") for each in (one, two)]
    assert one.version("episodes") == two.version("episodes") == 4
    assert logs[0].commits.head_link() == logs[1].commits.head_link(), "both have the same chain"
    for line in logs[0].file(4).read_text().splitlines():
        json.loads(line)
    assert os.environ[STORE_VARIABLE] == store.url
