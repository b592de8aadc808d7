"""Versioned tables: replacement, time travel, damage and a full disk, on real Delta tables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.warehouse.conftest import Make, on_disk
from warehouse.core.errors import CorruptTable, SchemaMismatch, StorageFull, UnknownTable, WriteConflict
from warehouse.core.home import Home
from warehouse.storage import tables
from warehouse.storage.catalogue import TABLES
from warehouse.storage.files import data_files
from warehouse.storage.files.data_files import RESTORE
from warehouse.storage.log import table_log
from warehouse.storage.repair.integrity import find_damage
from warehouse.storage.tables import NO_VERSION, Warehouse

pytestmark = pytest.mark.usefixtures("tables_place")

ROOT = Path(__file__).parents[2]
FIRST = {"iteration": "0001", "stage": "rollouts"}


def _ids(warehouse: Warehouse, **where: Any) -> list[str]:
    return sorted(warehouse.read("episodes", columns=["episode_id"], **where).column(0).to_pylist())


def _damaged(warehouse: Warehouse, table: str) -> list[Path]:
    return [damage.path for damage in find_damage(warehouse.folder(table), warehouse.delta(table))]


def _data_files(warehouse: Warehouse, table: str) -> list[Path]:
    return sorted(warehouse.folder(table).glob("*/*/*.parquet"))


def test_a_table_that_nobody_wrote_reads_as_empty(warehouse: Warehouse) -> None:
    for name, table in TABLES.items():
        assert warehouse.read(name).equals(table.schema.empty_table())
        assert warehouse.version(name) == NO_VERSION
        assert warehouse.history(name) == []
    assert set(warehouse.versions().values()) == {NO_VERSION}


def test_running_a_stage_again_replaces_its_rows_and_nothing_else(warehouse: Warehouse, make: Any) -> None:
    other = {"iteration": "0001", "stage": "evaluation"}
    warehouse.replace_partition("episodes", [make.episode("kept")], **other)
    first = warehouse.replace_partition("episodes", [make.episode("a"), make.episode("b")], **FIRST)
    second = warehouse.replace_partition("episodes", [make.episode("b"), make.episode("c")], **FIRST)
    assert second == first + 1 == warehouse.version("episodes")
    assert _ids(warehouse) == ["b", "c", "kept"]
    assert _ids(warehouse, **FIRST) == ["b", "c"]
    assert _ids(warehouse, version=first) == ["a", "b", "kept"]
    warehouse.replace_partition("episodes", [], **FIRST)
    assert _ids(warehouse) == ["kept"]


def test_rows_in_parts_become_one_commit_or_none(warehouse: Warehouse, make: Any) -> None:
    parts = [pa.Table.from_pylist([make.episode(name) for name in names]) for names in ("ab", "c")]
    version = warehouse.replace_partition_by_parts("episodes", iter(parts), **FIRST)
    assert warehouse.version("episodes") == version and _ids(warehouse, **FIRST) == ["a", "b", "c"]
    broken = pa.Table.from_pylist([make.episode("d") | {"outcome": "unheard of"}])
    with pytest.raises(SchemaMismatch, match="unheard of"):
        warehouse.replace_partition_by_parts("episodes", iter([*parts, broken]), **FIRST)
    assert warehouse.version("episodes") == version and not list(warehouse.home.scratch.glob("episodes-*"))
    warehouse.replace_partition_by_parts("episodes", iter([]), **FIRST)
    assert _ids(warehouse) == []


def test_rows_aside_are_committed_together_or_gone(warehouse: Warehouse, make: Any) -> None:
    warehouse.replace_partition("episodes", [make.episode("before")], **FIRST)
    first, last = (pa.Table.from_pylist([make.episode(name) for name in names]) for names in ("ab", "cde"))
    parts = [first, first.slice(0, 0), last]
    with warehouse.rows_aside("episodes", **FIRST) as aside:
        for part in parts:
            assert aside.add(part).schema.equals(TABLES["episodes"].schema)
    assert _ids(warehouse) == ["before"], "nobody said that they are to be committed"
    with pytest.raises(KeyError), warehouse.rows_aside("episodes", **FIRST) as aside:
        aside.add(parts[0])
        raise KeyError("something else went wrong")
    assert _ids(warehouse) == ["before"] and not list(warehouse.home.scratch.iterdir())
    with warehouse.rows_aside("episodes", **FIRST) as aside:
        for part in parts:
            aside.add(part)
        version = aside.commit(without=np.array([1, 2, 4]))
    assert _ids(warehouse) == ["a", "d"] and warehouse.version("episodes") == version == 2
    with pytest.raises(SchemaMismatch, match="flywheel withdraw"), warehouse.rows_aside("sft_samples", iteration="0001", stage="withdrawn"):
        pass


def test_each_replacement_is_one_commit_that_names_its_partition(warehouse: Warehouse, make: Any) -> None:
    warehouse.replace_partition("episodes", [make.episode("a")], **FIRST)
    warehouse.replace_partition("episodes", [], iteration="0002", stage="rollouts")
    commits = warehouse.history("episodes")
    assert [(commit.version, commit.iteration, commit.stage) for commit in commits] == [
        (2, "0002", "rollouts"),
        (1, "0001", "rollouts"),
        (0, None, None),
    ]


def test_a_commit_goes_on_top_of_another_process_s(warehouse: Warehouse, make: Any) -> None:
    """Also where this process has kept the table open since its own."""
    warehouse.replace_partition("episodes", [make.episode("ours")], iteration="0001", stage="rollouts")
    code = (
        "import sys; from pathlib import Path; from warehouse.core.home import Home; from warehouse.storage.tables import Warehouse; "
        "made = Warehouse(Home(Path(sys.argv[1]))); rows = made.read('episodes').to_pylist(); "
        "made.replace_partition('episodes', [rows[0] | {'episode_id': 'theirs'}], iteration='0001', stage='rollouts')"
    )
    subprocess.run([sys.executable, "-c", code, str(warehouse.home.root)], cwd=ROOT, check=True, timeout=120)
    warehouse.replace_partition("episodes", [make.episode("later")], iteration="0002", stage="rollouts")
    assert sorted(warehouse.read("episodes").column("episode_id").to_pylist()) == ["later", "theirs"]
    warehouse.replace_partition("episodes", [make.episode("last")], iteration="0001", stage="rollouts")
    assert sorted(warehouse.read("episodes").column("episode_id").to_pylist()) == ["last", "later"]
    assert [commit.version for commit in warehouse.history("episodes")] == [4, 3, 2, 1, 0]


def test_as_of_is_the_last_commit_up_to_an_iteration_and_no_later_row(warehouse: Warehouse, make: Any) -> None:
    for iteration in ("0001", "0002", "0003"):
        warehouse.replace_partition("episodes", [make.episode(f"ep-{iteration}")], iteration=iteration, stage="rollouts")
    assert _ids(warehouse, as_of="0002") == ["ep-0001", "ep-0002"]
    assert _ids(warehouse, as_of="0000") == []
    # A repeated iteration 0001 sees the rows of 0002 and 0003 in its version, and as_of leaves them out.
    warehouse.replace_partition("episodes", [make.episode("again")], iteration="0001", stage="rollouts")
    assert warehouse.version("episodes", as_of="0001") == warehouse.version("episodes") == 4
    assert _ids(warehouse, as_of="0001") == ["again"]
    assert _ids(warehouse, as_of="0002") == ["again", "ep-0002"]
    assert _ids(warehouse, version=3) == ["ep-0001", "ep-0002", "ep-0003"]


@on_disk  # each example has a home of its own, but one store would be that of all
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["rollouts", "evaluation"]), st.integers(0, 3)), max_size=8))
def test_any_history_reads_like_a_dictionary_of_partitions(
    writes: list[tuple[int, str, int]], tmp_path_factory: pytest.TempPathFactory, make: Any
) -> None:
    warehouse = Warehouse(Home(tmp_path_factory.mktemp("home")))
    expected: dict[tuple[str, str], set[str]] = {}
    states: list[dict[tuple[str, str], set[str]]] = [{}]
    for number, (iteration, stage, count) in enumerate(writes):
        key = f"{iteration:04d}", stage
        rows = [make.episode(f"ep-{number}-{i}") for i in range(count)]
        version = warehouse.replace_partition("episodes", rows, iteration=key[0], stage=stage)
        expected = expected | {key: {row["episode_id"] for row in rows}}
        states.append(expected)
        assert version == len(states) - 1
    for version, state in enumerate(states[1:], start=1):
        assert _ids(warehouse, version=version) == sorted(set().union(*state.values()))


def test_bad_names_and_versions_are_refused_with_what_exists(warehouse: Warehouse, make: Any) -> None:
    warehouse.replace_partition("episodes", [make.episode("a")], **FIRST)
    with pytest.raises(UnknownTable, match="no table 'episode': the tables are tasks, task_instances, episodes"):
        warehouse.read("episode")
    with pytest.raises(UnknownTable, match="has no version 9: it has 0 to 1"):
        warehouse.read("episodes", version=9)
    with pytest.raises(UnknownTable, match="has no version 3: nothing was written"):
        warehouse.read("steps", version=3)
    with pytest.raises(UnknownTable, match="no column 'colour'"):
        warehouse.read("episodes", columns=["colour"])
    with pytest.raises(UnknownTable, match="no iteration '2'"):
        warehouse.read("episodes", as_of="2")
    with pytest.raises(UnknownTable, match="not for both"):
        warehouse.dataset("episodes", 1, as_of="0001")
    for iteration, stage in (("1", "rollouts"), ("0001", "Roll outs"), ("0001' OR '1'='1", "x")):
        with pytest.raises(SchemaMismatch, match="an iteration is four digits"):
            warehouse.replace_partition("episodes", [], iteration=iteration, stage=stage)
    with pytest.raises(SchemaMismatch, match="add_screenshots"):
        warehouse.replace_partition("screenshots", [], **FIRST)
    with pytest.raises(SchemaMismatch, match="flywheel withdraw"):
        warehouse.replace_partition("sft_samples", [], iteration="0001", stage="withdrawn")


def test_refused_rows_leave_no_version_behind(warehouse: Warehouse, make: Any) -> None:
    warehouse.replace_partition("episodes", [make.episode("a")], **FIRST)
    for bad in ([make.episode("a", outcome="odd")], [make.episode("a"), make.episode("a")]):
        with pytest.raises(SchemaMismatch):
            warehouse.replace_partition("episodes", bad, **FIRST)
    assert warehouse.version("episodes") == 1 and _ids(warehouse) == ["a"]


def test_rows_come_by_iteration_and_stage_and_then_as_they_were_written(
    warehouse: Warehouse, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of files are random: one commit of several files, and several commits."""
    monkeypatch.setattr(data_files, "GROUP_ROWS", 2)
    monkeypatch.setattr(data_files, "FILE_BYTES", 1)
    parts = [[f"{part}{number}" for number in (3, 1, 2, 0)] for part in "bca"]
    for iteration, stage in (("0002", "rollouts"), ("0001", "rollouts"), ("0001", "evaluation")):
        for part in parts:
            rows = [make.episode(f"{iteration}-{stage}-{name}") for name in part]
            warehouse.append_partition("episodes", rows, iteration=iteration, stage=stage)
    assert len(warehouse.listed("episodes")[1]) == 18, "two of each commit"
    places = [("0001", "evaluation"), ("0001", "rollouts"), ("0002", "rollouts")]
    expected = [f"{iteration}-{stage}-{name}" for iteration, stage in places for part in parts for name in part]
    assert warehouse.read("episodes", columns=["episode_id"]).column(0).to_pylist() == expected
    assert Warehouse(warehouse.home).read("episodes", version=warehouse.version("episodes")).column("episode_id").to_pylist() == expected


def test_a_screenshot_is_stored_once(warehouse: Warehouse, make: Any) -> None:
    one, two, three = (make.screenshot(f"shot-{i}", bytes([i])) for i in range(3))
    first = warehouse.add_screenshots([one, two, one])
    assert warehouse.add_screenshots([two, one]) == first == warehouse.add_screenshots([])
    assert Warehouse(warehouse.home).add_screenshots([two, three], iteration="0001", stage="rollouts") == first + 1
    warehouse.add_screenshots([three])
    stored = warehouse.read("screenshots")
    assert sorted(stored.column("screenshot_id").to_pylist()) == ["shot-0", "shot-1", "shot-2"]
    assert warehouse.version("screenshots", as_of="0000") == first + 1


def test_old_versions_are_kept_for_ever(warehouse: Warehouse, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_log, "COMMITS_PER_CHECKPOINT", 4)
    monkeypatch.setattr(tables, "COMMITS_PER_CHECKPOINT", 4)
    warehouse.replace_partition("episodes", [make.episode("a")], **FIRST)
    delta = warehouse.delta("episodes")
    assert delta is not None
    configuration = delta.metadata().configuration
    assert configuration["delta.enableExpiredLogCleanup"] == "false"
    assert configuration["delta.logRetentionDuration"] == "interval 36500 days"
    for _ in range(6):  # past the log's first checkpoint
        warehouse.replace_partition("routes", [{"episode_id": "a", "route": "ct", "reason": "V=0"}], **FIRST)
    assert list((warehouse.folder("routes") / "_delta_log").glob("*.checkpoint.parquet"))
    assert warehouse.read("routes", version=1).num_rows == 1
    assert len(warehouse.history("routes")) == 7


def test_a_home_of_an_older_catalogue_gains_the_new_column(warehouse: Warehouse, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    new = TABLES["routes"]
    old = tuple(column for column in new.columns if column.name != "decided_by")
    row = {"route": "ct", "reason": "V=0"}
    with monkeypatch.context() as before:
        before.setitem(TABLES, "routes", replace(new, columns=old))
        warehouse.replace_partition("routes", [row | {"episode_id": "a"}], **FIRST)
    assert warehouse.read("routes").column("decided_by").to_pylist() == [None]
    warehouse.replace_partition("routes", [row | {"episode_id": "b", "decided_by": "orm"}], iteration="0002", stage="routing")
    assert sorted(warehouse.read("routes").column("decided_by").to_pylist(), key=str) == [None, "orm"]


@on_disk
@pytest.mark.parametrize("harm", ["cut", "garble", "delete"])
def test_a_damaged_data_file_is_named_and_running_the_stage_again_fixes_it(warehouse: Warehouse, make: Any, harm: str) -> None:
    rows = [make.episode(f"ep-{i}", instruction=os.urandom(400).hex()) for i in range(50)]
    warehouse.replace_partition("episodes", rows, **FIRST)
    (path,) = _data_files(warehouse, "episodes")
    content = path.read_bytes()
    if harm == "cut":
        path.write_bytes(content[:200])
    elif harm == "garble":
        path.write_bytes(content[:1000] + bytes(3000) + content[4000:])
    else:
        path.unlink()
    with pytest.raises(CorruptTable) as caught:
        warehouse.read("episodes")
    assert str(path) in str(caught.value) and f"To fix it: {RESTORE}" in str(caught.value)
    assert _damaged(warehouse, "episodes") == [path]
    warehouse.replace_partition("episodes", rows, **FIRST)
    assert warehouse.read("episodes").num_rows == 50 and _damaged(warehouse, "episodes") == []


@on_disk
@pytest.mark.parametrize("version", [1, 2], ids=["middle", "newest"])
@pytest.mark.parametrize("harm", ["cut", "empty", "delete", "swap"])
def test_a_damaged_log_is_named_and_nothing_is_written_on_top(warehouse: Warehouse, make: Any, version: int, harm: str) -> None:
    for name in "ab":
        warehouse.replace_partition("episodes", [make.episode(name)], **FIRST)
    log = warehouse.folder("episodes") / "_delta_log"
    path = log / f"{version:020d}.json"
    content = path.read_bytes()
    if harm == "delete":
        path.unlink()
    else:
        path.write_bytes({"cut": content[:50], "empty": b"", "swap": (log / f"{3 - version:020d}.json").read_bytes()}[harm])
    for use in (lambda: warehouse.read("episodes"), lambda: warehouse.replace_partition("episodes", [], **FIRST)):
        with pytest.raises(CorruptTable) as caught:
            use()
        assert str(path) in str(caught.value) and f"leaves version {version} out of the table" in str(caught.value)
    path.write_bytes(content)
    assert _ids(warehouse) == ["b"]


@on_disk
@pytest.mark.parametrize("lost", ["log", "folder"])
def test_a_missing_log_is_not_an_empty_table(warehouse: Warehouse, make: Any, lost: str) -> None:
    warehouse.replace_partition("episodes", [make.episode("a")], **FIRST)
    folder = warehouse.folder("episodes")
    shutil.rmtree(folder / "_delta_log" if lost == "log" else folder)
    for use in (lambda: warehouse.read("episodes"), lambda: warehouse.replace_partition("episodes", [], **FIRST)):
        with pytest.raises(CorruptTable, match="is missing, though version 0 was committed"):
            use()


def test_a_partition_lost_to_other_writers_ends_in_a_conflict(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltalake.exceptions import CommitFailedError

    from warehouse.storage.log import commits

    monkeypatch.setattr(commits, "LONGEST_WAIT_S", 0.001)
    tries = []

    def beaten() -> int:
        tries.append(1)
        raise CommitFailedError("another writer was first")

    with pytest.raises(WriteConflict, match="is this stage running twice"):
        commits.retry_commit("table episodes", Path(), beaten)
    assert len(tries) == commits.MAX_ATTEMPTS


_FILL = """
import os, resource, sys
from pathlib import Path
from warehouse.core.errors import StorageFull
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse
warehouse = Warehouse(Home(Path(sys.argv[1])))
row = {"judge": "j", "judge_version": "1", "kind": "verdict", "origin": "verifier", "score": 1.0, "threshold": 0.5, "passed": True}
def write(count):
    rows = [row | {"episode_id": str(i), "reasons": [os.urandom(100).hex()]} for i in range(count)]
    return warehouse.replace_partition("verdicts", rows, iteration="0001", stage="verdicts")
write(5)
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write(20_000)
except StorageFull as error:
    print(error)
print(warehouse.version("verdicts"), warehouse.read("verdicts").num_rows, write(6), warehouse.read("verdicts").num_rows)
"""


def _fill(home: Path, how: str) -> str:
    result = subprocess.run([sys.executable, "-c", _FILL, str(home), how], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


@on_disk
def test_a_file_over_the_limit_commits_nothing(tmp_path: Path) -> None:
    said = _fill(tmp_path / "home", "limit")
    folder = tmp_path / "home" / "tables" / "verdicts"
    assert f"no room for table verdicts, partition 0001/verdicts: the disk of {folder} has" in said and "256.0 MiB are wanted" in said
    assert "Free space there, then run it again; nothing was committed" in said
    assert said.splitlines()[-1] == "1 5 2 6"
    assert issubclass(StorageFull, OSError)


def test_a_full_disk_commits_nothing_and_the_next_small_write_works(small_disk: Path) -> None:
    said = _fill(small_disk / "home", "full")
    assert "no room for table verdicts" in said and " bytes left, 256.0 MiB are wanted" in said and "nothing was committed" in said
    assert said.splitlines()[-1] == "1 5 2 6"


def test_arrow_tables_are_written_as_they_are(warehouse: Warehouse, make: Any) -> None:
    warehouse.replace_partition("episodes", [make.episode("a")], **FIRST)
    copied = warehouse.read("episodes").drop_columns(["iteration", "stage"])
    warehouse.replace_partition("episodes", copied, iteration="0002", stage="rollouts")
    assert warehouse.read("episodes", iteration="0002").drop_columns(["iteration", "stage"]).equals(copied)
    assert isinstance(warehouse.dataset("episodes").to_table(columns=["seed"]), pa.Table)


@on_disk
def test_a_home_may_have_a_space_in_its_path(tmp_path: Path) -> None:
    home = Home(tmp_path / "a home")
    warehouse, place = Warehouse(home), {"iteration": "0001", "stage": "rollouts"}
    version = warehouse.replace_partition("episodes", [Make.episode("ep-a")], **place)
    assert all(path.is_file() for path in warehouse.files("episodes")) and len(warehouse.files("episodes")) == 1
    warehouse.check_commit("episodes", version)
    warehouse.add_screenshots([Make.screenshot("shot-0", b"a")])
    Warehouse(home).add_screenshots([Make.screenshot("shot-0", b"a"), Make.screenshot("shot-1", b"b")])
    assert warehouse.read("screenshots").num_rows == 2, "each once"
    warehouse.files("episodes")[0].unlink()
    with pytest.raises(CorruptTable, match="a home/tables/episodes"):
        Warehouse(home).check_commit("episodes", version)
