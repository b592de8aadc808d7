"""Dagster's history in SQLite: pictures that are taken out of it are in no byte of its files."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import dagster as dg
import pytest

from assets.collection import SCREENS
from pipelines.forgetting.dagster_events import INSTEAD, take_out_screens
from pipelines.orchestration.instance import open_instance
from tests.pipelines.forgetting_home import files_with
from warehouse.core.errors import NotNow
from warehouse.core.home import Home

PICTURE = "![a screen](data:image/png;base64,aGVyZSBpcyBhIHBpY3R1cmU=)"
PLACES = [("0001", "rollouts")]


def test_pictures_are_gone_from_the_files_once_nobody_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DAGSTER_HOME", "FLYWHEEL_HOME", "DAGSTER_DISABLE_TELEMETRY"):  # set by an instance that is opened
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("dagster._core.storage.event_log.sqlite.sqlite_event_log.SQLITE_BUSY_TIMEOUT_SECONDS", 0.1)
    home = Home(tmp_path)
    with open_instance(home) as instance:
        shown = {SCREENS: dg.MarkdownMetadataValue(PICTURE)}
        instance.report_runless_asset_event(dg.AssetMaterialization("rollouts", partition="0001", metadata=shown))
    assert files_with(home.dagster, ["base64,aGVyZSBp"])
    (index,) = home.dagster.rglob("index.db")
    with closing(sqlite3.connect(index)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from event_logs").fetchone()
        with pytest.raises(NotNow, match=r"Dagster's history could not be rewritten.*stop what has it open"):
            take_out_screens(home, PLACES)
        reader.rollback()
        reader.execute("begin immediate")
        with pytest.raises(NotNow, match="stop"):
            take_out_screens(home, PLACES)
    take_out_screens(home, PLACES)
    assert files_with(home.dagster, ["base64,aGVyZSBp"]) == []
    with open_instance(home) as instance:
        (record,) = instance.fetch_materializations(dg.AssetKey("rollouts"), limit=5).records
        assert record.asset_materialization is not None and record.asset_materialization.metadata[SCREENS].value == INSTEAD
