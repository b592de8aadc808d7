"""Taking rows back, and erasing them."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest

from warehouse.core.errors import UnknownId, UnknownTable
from warehouse.datasets.withdrawal import num_to_purge, purge, withdraw, withdrawn_ids
from warehouse.storage.sql import query
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.usefixtures("tables_place")

SEED = {"iteration": "0000", "stage": "seed_demonstrations"}


def _live(warehouse: Warehouse, as_of: str | None = None) -> list[str]:
    with query.connect(warehouse, as_of=as_of) as con:
        return [row[0] for row in con.execute("SELECT sample_id FROM sft_samples WHERE NOT withdrawn ORDER BY ALL").fetchall()]


@pytest.fixture
def three(warehouse: Warehouse, make: Any) -> Warehouse:
    warehouse.replace_partition("sft_samples", [make.sample(name) for name in "abc"], **SEED)
    return warehouse


def test_a_withdrawn_sample_is_out_from_its_iteration_on(three: Warehouse) -> None:
    withdraw(three, "sft_samples", ["b"], iteration="0002")
    assert _live(three) == ["a", "c"]
    assert _live(three, as_of="0001") == ["a", "b", "c"]
    assert withdrawn_ids(three, "sft_samples") == {"b"}
    assert withdrawn_ids(three, "sft_samples", as_of="0001") == set()
    rows = three.read("sft_samples", stage="withdrawn").to_pylist()
    assert [(row["sample_id"], row["withdrawn"], row["messages"]) for row in rows] == [("b", True, [])]


def test_running_the_stage_again_does_not_bring_it_back(three: Warehouse, make: Any) -> None:
    withdraw(three, "sft_samples", ["b"], iteration="0002")
    three.replace_partition("sft_samples", [make.sample(name) for name in "abcd"], **SEED)
    assert _live(three) == ["a", "c", "d"]


def test_withdrawing_twice_is_once(three: Warehouse) -> None:
    version = withdraw(three, "sft_samples", ["b", "b"], iteration="0002")
    assert withdraw(three, "sft_samples", ["b"], iteration="0003") == version
    assert withdraw(three, "sft_samples", [], iteration="0003") == version
    assert three.read("sft_samples").num_rows == 4


def test_a_tombstone_is_no_row_of_its_own_until_it_is_all_that_is_left(three: Warehouse) -> None:
    withdraw(three, "sft_samples", ["b"], iteration="0002")

    def seen(as_of: str | None = None) -> list[tuple[str, bool]]:
        with query.connect(three, as_of=as_of) as con:
            return con.execute("select sample_id, withdrawn from sft_samples order by 1").fetchall()

    assert seen() == [("a", False), ("b", True), ("c", False)] and seen("0001") == [("a", False), ("b", False), ("c", False)]
    assert num_to_purge(three) == 1
    purge(three)
    assert num_to_purge(three) == 0
    assert seen() == [("a", False), ("b", True), ("c", False)]


def test_unknown_ids_and_tables_are_refused_whole(three: Warehouse) -> None:
    with pytest.raises(UnknownId, match="no sample_id 'z'"):
        withdraw(three, "sft_samples", ["a", "z"], iteration="0002")
    assert _live(three) == ["a", "b", "c"]
    with pytest.raises(UnknownTable, match="annotations, ct_samples, sft_samples, orm_samples can"):
        withdraw(three, "episodes", ["a"], iteration="0002")


def test_an_annotation_loses_its_content_in_its_tombstone(warehouse: Warehouse, make: Any) -> None:
    warehouse.replace_partition("annotations", [make.annotation("note", "ep")], iteration="0001", stage="annotations")
    withdraw(warehouse, "annotations", ["note"], iteration="0001")
    (row,) = warehouse.read("annotations", stage="withdrawn").to_pylist()
    assert (row["proposal"], row["response"], row["messages"], row["withdrawn"]) == ("", None, [], True)


def test_a_purge_erases_the_content_from_the_disk_in_every_version(three: Warehouse, make: Any) -> None:
    secret = "a phone number"
    rows = [make.sample("a"), make.sample("b", messages=make.messages(secret)), make.sample("it's")]
    three.replace_partition("sft_samples", rows, iteration="0001", stage="routing")
    assert any(secret in str(three.read("sft_samples", version=2).to_pylist()) for _ in [0])
    withdraw(three, "sft_samples", ["b", "it's"], iteration="0002")
    (purged,) = purge(three)
    assert (purged.table, purged.num_rows) == ("sft_samples", 3)
    assert _live(three) == ["a", "a", "c"] and _live(three, as_of="0001") == ["a", "a", "c"]
    assert withdrawn_ids(three, "sft_samples") == {"b", "it's"}
    on_disk = sorted(path.name for path in three.folder("sft_samples").glob("*/*/*.parquet"))
    delta = three.delta("sft_samples")
    assert delta is not None and on_disk == sorted(uri.rsplit("/", 1)[1] for uri in delta.file_uris())
    with pytest.raises(UnknownTable, match="a purge erased version 2"):
        three.read("sft_samples", version=2)
    assert purge(three) == []


def test_a_purge_that_was_cut_off_is_finished_by_the_next(three: Warehouse) -> None:
    withdraw(three, "sft_samples", ["b"], iteration="0002")
    assert three.erase("sft_samples", ["b"], **SEED) == 1  # what a purge did before it was killed
    (purged,) = purge(three)
    assert purged.num_rows == 0 and purged.num_files == 1


def test_a_purge_erases_what_a_killed_writer_left_without_a_commit(three: Warehouse) -> None:
    (file,) = (path for path in three.folder("sft_samples").rglob("*.parquet"))
    orphan = file.with_name("part-00000-orphan.parquet")
    orphan.write_bytes(file.read_bytes())
    withdraw(three, "sft_samples", ["b"], iteration="0002")
    purge(three)
    assert not orphan.exists() and not file.exists() and _live(three) == ["a", "c"]


def test_after_a_purge_texts_of_all_files_can_be_compared(three: Warehouse, make: Any) -> None:
    three.replace_partition("sft_samples", [make.sample("d", origin="rollout")], iteration="0001", stage="routing")
    withdraw(three, "sft_samples", ["b"], iteration="0002")
    purge(three)
    with query.connect(three) as con:
        for word in ("d", "a"):
            assert con.execute("select sample_id from sft_samples where sample_id = ?", [word]).fetchall() == [(word,)]


def test_a_purge_of_nothing_keeps_every_version(three: Warehouse) -> None:
    version = three.version("sft_samples")
    assert purge(three) == []
    assert three.version("sft_samples") == version


def _recording(make: Any, warehouse: Warehouse, name: str, shots: list[str], *, said: str, teaches: bool = True) -> None:
    """One recording as the asset stores it, in an iteration of its own: task, episode, steps, and a sample of each step if it `teaches`."""
    place = {"iteration": f"000{ord(name) - ord('a')}", "stage": "recordings"}
    steps = [
        make.step(name, index, screenshot_id=shot, observation=said, response=said, thought=said, messages=make.messages(said), action=said)
        for index, shot in enumerate(shots)
    ]
    warehouse.replace_partition("tasks", [make.task(f"task-{name}", name=f"mail-{said}")], **place)
    episode = make.episode(name, task_id=f"task-{name}", task_name=f"mail-{said}", instruction=said, num_steps=len(steps))
    warehouse.replace_partition("episodes", [episode], **place)
    warehouse.replace_partition("steps", steps, **place)
    samples = [make.sample(f"{name}{index}", episode_id=name, messages=make.messages(said)) for index in range(len(shots))]
    warehouse.replace_partition("ct_samples", samples if teaches else [], **place)
    warehouse.add_screenshots([make.screenshot(shot, shot.encode() * 50) for shot in shots], **place)


def _on_disk(warehouse: Warehouse) -> str:
    """All that any version of any file still holds."""
    tables = ("tasks", "episodes", "steps", "ct_samples", "screenshots")
    return str([pq.read_table(path, partitioning=None).to_pylist() for t in tables for path in warehouse.folder(t).rglob("*.parquet")])


def test_a_purge_empties_a_recording_that_was_taken_back_though_it_gave_no_sample(warehouse: Warehouse, make: Any) -> None:
    _recording(make, warehouse, "a", ["own", "shared"], said="kassel", teaches=False)
    _recording(make, warehouse, "b", ["shared", "other"], said="bremen")
    assert num_to_purge(warehouse) == 0 and purge(warehouse) == [], "no tombstone tells of it"
    back = ["a", "b", "of nothing"]
    assert num_to_purge(warehouse, taken_back=back) == 2 + 1 + 1 + 1, "two steps, an episode, a task, a picture; the other still teaches"
    num_rows = {one.table: one.num_rows for one in purge(warehouse, taken_back=back)}
    assert num_rows == {"screenshots": 1, "steps": 2, "episodes": 1, "tasks": 1}
    held = _on_disk(warehouse)
    assert "kassel" not in held and "ownown" not in held and "bremen" in held and "sharedshared" in held
    assert num_to_purge(warehouse, taken_back=back) == 0 and purge(warehouse, taken_back=back) == []


def test_a_purge_empties_a_recording_that_was_taken_back_and_erases_its_own_pictures(warehouse: Warehouse, make: Any) -> None:
    _recording(make, warehouse, "a", ["own", "shared"], said="kassel")
    _recording(make, warehouse, "b", ["shared", "other"], said="bremen")
    withdraw(warehouse, "ct_samples", ["a0"], iteration="0002")
    purge(warehouse)
    assert "ownown" in _on_disk(warehouse), "some of it still teaches"
    withdraw(warehouse, "ct_samples", ["a1"], iteration="0002")
    assert num_to_purge(warehouse) == 1 + 2 + 1 + 1 + 1, "a sample, two steps, an episode, a task, a picture"
    num_rows = {one.table: one.num_rows for one in purge(warehouse)}
    assert num_rows == {"screenshots": 1, "steps": 2, "episodes": 1, "tasks": 1, "ct_samples": 1}
    held = _on_disk(warehouse)
    assert "kassel" not in held and "ownown" not in held and "bremen" in held and "sharedshared" in held and "otherother" in held
    assert warehouse.read("steps").num_rows == 4 and warehouse.read("episodes").num_rows == 2, "that they were there stays"
    assert num_to_purge(warehouse) == 0 and purge(warehouse) == []
    add = {"iteration": "0003", "stage": "recordings"}
    warehouse.add_screenshots([make.screenshot("own", b"again"), make.screenshot("other", b"again")], **add)
    assert sorted(warehouse.read("screenshots").column("screenshot_id").to_pylist()) == ["other", "own", "shared"], "it may come again"


def test_what_people_said_of_an_episode_that_stays_goes_and_what_judges_said_does_not(warehouse: Warehouse, make: Any) -> None:
    warehouse.replace_partition("episodes", [make.episode("a")], **SEED)
    said = [make.verdict("a", judge=judge, origin=judge, reasons=[f"{judge} says"]) for judge in ("human", "orm")]
    warehouse.replace_partition("verdicts", said, **SEED)
    assert {one.table: one.num_rows for one in purge(warehouse, unsaid=["a"])} == {"verdicts": 1}
    left = {row["judge"]: row["reasons"] for row in warehouse.read("verdicts").to_pylist()}
    assert left == {"human": [], "orm": ["orm says"]}
    assert purge(warehouse, unsaid=["a"]) == []
    assert {one.table for one in purge(warehouse, forgotten=["a"])} >= {"verdicts"}
    assert not any(row["reasons"] for row in warehouse.read("verdicts").to_pylist()), "of one that is forgotten all of it goes"
