"""What people did, taken in a second time after it was taken back, disputed or lost: what a tombstone or a purge has to find stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import update

from annotation.storage import run_endings
from annotation.storage.parts import PartStore
from annotation.storage.schema import Run, RunStep
from assets import recordings
from assets.people import RECORDED_STAGE, RUN_TABLES, STAGE, human_annotations
from tests.annotation.recording import made_recording
from tests.annotation.service.live_parts import ANN
from tests.annotation.service.review_parts import History
from tests.assets.people_parts import ITERATION, NEXT, approve, principal, take_again, take_recordings, upload, work_in
from warehouse.core.home import Home
from warehouse.datasets.withdrawal import num_to_purge, purge
from warehouse.storage.tables import Warehouse


def rows_of(warehouse: Warehouse, tables: tuple[str, ...], stage: str) -> dict[str, list[Any]]:
    return {table: sorted(warehouse.read(table, stage=stage).to_pylist(), key=str) for table in tables}


def recorded_rows(warehouse: Warehouse) -> dict[str, list[Any]]:
    return rows_of(warehouse, recordings.RECORDED_TABLES, RECORDED_STAGE)


def on_disk(warehouse: Warehouse) -> str:
    """All that any version of any file still holds of recordings."""
    files = [path for table in recordings.RECORDED_TABLES for path in warehouse.folder(table).rglob("*.parquet")]
    return str([pq.read_table(path, partitioning=None).to_pylist() for path in files])


def test_runs_that_count_no_longer_stay_for_their_tombstones(tmp_path: Path) -> None:
    work, warehouse = work_in(tmp_path), Warehouse(Home(tmp_path))
    history = History(work.database)
    back, disputed, _ = (history.run("ann", seed=seed) for seed in range(3))
    picture = work.blobs.put(made_recording.drawn("a page"))
    with work.database.write() as session:
        prompt = [{"role": "user", "content": "a long prompt", "screenshot_id": picture, "loss": 0.0}]
        session.execute(update(RunStep).values(screenshot_id=picture, messages=prompt))
    reported = take_again(tmp_path, ITERATION, human_annotations)
    assert (reported["runs"], reported["kept as they were"]) == (3, 0)
    held = rows_of(warehouse, RUN_TABLES, STAGE)
    assert all(held.values())

    with work.database.write() as session:
        run_endings.withdraw(session, session.get_one(Run, back), now_s=1.0)
        run_endings.dispute(session, session.get_one(Run, disputed), now_s=1.0)
    reported = take_again(tmp_path, ITERATION, human_annotations)
    assert (reported["runs"], reported["annotations"], reported["kept as they were"]) == (1, 1, 2)
    assert rows_of(warehouse, RUN_TABLES, STAGE) == held
    (withdrawals,) = take_recordings(tmp_path, NEXT).asset_materializations_for_node("withdrawals")
    assert (withdrawals.metadata["taken back"].value, withdrawals.metadata["rows"].value) == (1, 1)
    work.close()


@pytest.mark.slow
def test_what_was_taken_back_stays_until_a_purge_finds_it_also_where_recordings_are_taken_in_again(tmp_path: Path) -> None:
    work = work_in(tmp_path)
    there, bundle = upload(work, Home(tmp_path), made_recording.make(tmp_path / "own"))
    warehouse, recording_id = Warehouse(Home(tmp_path)), bundle.manifest.recording_id
    approve(there, recording_id)
    assert take_again(tmp_path, ITERATION)["kept as they were"] == 0
    held = recorded_rows(warehouse)
    assert all(held.values())
    part = PartStore.of_home(Home(tmp_path)).of(ANN).path(bundle.manifest.screens[-1].sha256)
    part.rename(part.with_suffix(".away"))
    reported = take_again(tmp_path, ITERATION)
    assert (reported["recordings"], reported["unreadable"], reported["kept as they were"]) == (0, 1, 1) and recorded_rows(warehouse) == held
    part.with_suffix(".away").rename(part)
    asyncio.run(there.withdraw(recording_id, "I would rather not", by=principal(ANN, "annotator")))
    reported = take_again(tmp_path, ITERATION)
    assert (reported["recordings"], reported["kept as they were"]) == (0, 1) and recorded_rows(warehouse) == held

    take_recordings(tmp_path, NEXT)
    assert "i press new" in on_disk(warehouse) and num_to_purge(warehouse) > len(held["ct_samples"])
    purge(warehouse)
    left = on_disk(warehouse)
    assert "i press new" not in left and "Emma" not in left and warehouse.read("screenshots").num_rows == 0
    emptied = recorded_rows(warehouse)
    assert take_again(tmp_path, ITERATION)["kept as they were"] == 1
    assert recorded_rows(warehouse) == emptied and num_to_purge(warehouse) == 0
    work.close()


def test_of_a_recording_that_is_erased_while_it_is_read_no_picture_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = work_in(tmp_path)
    there, bundle = upload(work, Home(tmp_path), made_recording.make(tmp_path / "own"))
    warehouse, recording_id = Warehouse(Home(tmp_path)), bundle.manifest.recording_id
    approve(there, recording_id)
    keep, kept = recordings._Pictures.keep, list[str]()

    def keep_and_erase(pictures: recordings._Pictures, screenshot_id: str, png: bytes) -> None:
        keep(pictures, screenshot_id, png)
        kept.append(screenshot_id)
        asyncio.run(there.withdraw(recording_id, "I would rather not", by=principal(ANN, "annotator")))
        asyncio.run(there.erase(recording_id))

    monkeypatch.setattr(recordings._Pictures, "keep", keep_and_erase)
    reported = take_again(tmp_path, ITERATION)
    assert len(kept) == 1 and (reported["recordings"], reported["unreadable"]) == (0, 1)
    assert warehouse.read("screenshots").num_rows == 0
    work.close()
