"""Data files in an object store that no commit names: a purge deletes what killed writers left, however young, and nothing of a writer that
is at work. And copies of the store's files, of which a home keeps so many bytes. All of it is of a store, hence not by `tables_place`;
those of a disk are in test_withdrawal.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipelines.cli.data.verify import verify
from tests.warehouse.conftest import Make
from tests.warehouse.test_remote_tables import _data_files, _hosts, _start
from warehouse.core.errors import ConfigError
from warehouse.core.store import Store
from warehouse.datasets.withdrawal import purge
from warehouse.storage.remote import copies
from warehouse.storage.remote.table import RemoteTable
from warehouse.storage.tables import Warehouse

SHOWN = b"\x89PNG of the forgotten"
KILLED = """
import os, signal
from warehouse.storage.remote.table import RemoteTable
def killed(self, version, log):
    if self._folder.name == "screenshots":
        os.kill(os.getpid(), signal.SIGKILL)
    return publish(self, version, log)
publish, RemoteTable.publish = RemoteTable.publish, killed
row = {"screenshot_id": "mine", "format": "png", "width_px": 1, "height_px": 1, "data": b"\\x89PNG of the forgotten"}
warehouse.add_screenshots([row])
"""


def _bytes_in(store: Store) -> bytes:
    return b"".join(store.read(each.name) or b"" for each in store.list("tables/screenshots"))


@pytest.mark.slow
def test_what_a_writer_left_that_was_killed_just_before_is_found_and_purged(tmp_path: Path, store: Store) -> None:
    one, two = _hosts(tmp_path, 2)
    one.replace_partition("episodes", [Make.episode("gone", task_id="t")], iteration="0001", stage="rollouts")
    one.add_screenshots([Make.screenshot("kept", b"of another")])
    process = _start(two.home.root, "killed", KILLED)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL and SHOWN in _bytes_in(store)
    console = Console(record=True, width=200, quiet=False)
    assert verify(one, console, all_versions=False, as_json=False) == 0
    text = console.export_text()
    assert "screenshots: 1 data files" in text and "of no commit" in text
    purge(one, forgotten=["gone"])
    assert SHOWN not in _bytes_in(store) and b"of another" in _bytes_in(store)
    assert one.unnamed_files("screenshots") == {}
    assert Warehouse(two.home).read("screenshots", columns=["screenshot_id"]).column(0).to_pylist() == ["kept"]


def _in_between(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Once, after the data files of the next commit were sent and before it is made."""
    upload = RemoteTable.upload

    def uploaded(self: RemoteTable, paths: Any) -> None:
        upload(self, paths)
        monkeypatch.setattr(RemoteTable, "upload", upload)
        do()

    monkeypatch.setattr(RemoteTable, "upload", uploaded)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["episodes", "screenshots"])
def test_a_writer_at_work_writes_again_what_a_purge_of_another_host_deleted(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    one, two = _hosts(tmp_path, 2)

    def write(warehouse: Warehouse, name: str) -> None:
        if table == "screenshots":
            warehouse.add_screenshots([Make.screenshot(name)])
        else:
            warehouse.append_partition(table, [Make.episode(name)], iteration="0001", stage="rollouts")

    write(one, "first")
    two.read(table)
    _in_between(monkeypatch, lambda: purge(one))
    write(two, "second")
    key = "screenshot_id" if table == "screenshots" else "episode_id"
    for warehouse in (one, Warehouse(two.home)):
        assert sorted(warehouse.read(table, columns=[key]).column(0).to_pylist()) == ["first", "second"]
    assert one.unnamed_files(table) == {} and len(_data_files(store, table)) == 2
    assert any(commit.operation == "VACUUM START" for commit in one.history(table)), "the purge met the file"


@pytest.mark.slow
def test_a_purge_that_was_killed_before_its_end_is_done_again(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = _hosts(tmp_path, 2)
    one.add_screenshots([Make.screenshot("kept", b"of another")])
    process = _start(two.home.root, "killed", KILLED)
    process.communicate(timeout=60)
    killed = """
import os, signal
from warehouse.storage.remote.table import RemoteTable
from warehouse.datasets.withdrawal import purge
def erase(self, paths):
    os.kill(os.getpid(), signal.SIGKILL)
RemoteTable.erase = erase
purge(warehouse)
"""
    process = _start(one.home.root, "purge", killed)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL and SHOWN in _bytes_in(store)
    purge(Warehouse(one.home))
    assert SHOWN not in _bytes_in(store)
    assert Warehouse(two.home).read("screenshots", columns=["screenshot_id"]).column(0).to_pylist() == ["kept"]


def test_copies_that_were_not_used_for_longest_go_first(tmp_path: Path) -> None:
    for index, age_s in enumerate((9000, 8000, 7000, 10)):
        path = tmp_path / "episodes" / f"{index}.parquet"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 100)
        at = path.stat().st_mtime - age_s
        os.utime(path, (at, at))
    copies.note_use(tmp_path / "episodes" / "0.parquet")
    (tmp_path / "episodes" / "_delta_log").mkdir()
    (tmp_path / "episodes" / "_delta_log" / "0.checkpoint.parquet").write_bytes(b"x" * 1000)
    assert [path.name for path in copies.prune(tmp_path, 300)] == ["1.parquet"]
    assert [path.name for path in copies.prune(tmp_path, 0)] == ["2.parquet"], "what was used within the hour stays"
    assert [path.name for path in copies.prune(tmp_path, 0, in_use_s=-1)] == ["3.parquet", "0.parquet"]


def test_the_limit_of_copies_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(copies.LIMIT_VARIABLE, raising=False)
    assert copies.limit_bytes() == copies.DEFAULT_LIMIT_GB * 1e9
    monkeypatch.setenv(copies.LIMIT_VARIABLE, "0.5")
    assert copies.limit_bytes() == 5e8
    for wrong in ("much", "-1", "nan"):
        monkeypatch.setenv(copies.LIMIT_VARIABLE, wrong)
        with pytest.raises(ConfigError, match=f"{copies.LIMIT_VARIABLE}='{wrong}'"):
            copies.limit_bytes()


@pytest.mark.slow
def test_a_read_prunes_copies_and_what_was_pruned_is_copied_again(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = _hosts(tmp_path, 2)
    one.append_partition("episodes", [Make.episode("a")], iteration="0001", stage="rollouts")
    (path,) = two.files("episodes")
    os.utime(path, (0, path.stat().st_mtime))
    one.append_partition("steps", [Make.step("a", 0)], iteration="0001", stage="rollouts")
    monkeypatch.setenv(copies.LIMIT_VARIABLE, "0")
    monkeypatch.setattr(copies, "_LOOKED", {})
    two.files("steps")
    assert not path.exists()
    assert two.read("episodes", columns=["episode_id"]).num_rows == 1
