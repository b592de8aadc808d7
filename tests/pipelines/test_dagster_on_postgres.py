"""Dagster's history in Postgres, as a deployment has it: commands that change the home report to it, and forgetting reaches it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from rich.console import Console
from sqlalchemy import create_engine, text

from assets.collection import SCREENS
from benchmarks.common import postgres
from pipelines.forgetting.dagster_events import INSTEAD, take_out_screens
from pipelines.orchestration.instance import POSTGRES_VARIABLE, is_known, open_instance, open_known
from pipelines.orchestration.reported_changes import CHANGED_BY, reported
from tests.pipelines.test_schedules_and_sensors import sample
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.datasets.withdrawal import withdraw
from warehouse.storage.tables import Warehouse

PICTURE = "![a screen](data:image/png;base64,aGVyZSBpcyBhIHBpY3R1cmU=)"
LOCAL = "history"
"""The folder of a history in SQLite."""


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if postgres.programs() is None:
        pytest.skip(postgres.MISSING)
    for name in ("DAGSTER_HOME", "FLYWHEEL_HOME", "DAGSTER_DISABLE_TELEMETRY"):  # set by an instance that is opened
        monkeypatch.setenv(name, "")
    with postgres.a_postgres(is_durable=False) as folder:
        url = f"postgresql://{postgres.USER}@/postgres?host={folder}"
        monkeypatch.setenv(POSTGRES_VARIABLE, url)
        yield url.replace("postgresql", "postgresql+psycopg2", 1)


@pytest.mark.slow
def test_changes_are_reported_to_it_and_pictures_are_taken_out_of_it(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    warehouse = Warehouse(home)
    warehouse.replace_partition("sft_samples", [sample(1), sample(2)], iteration="0001", stage="routing")
    assert not is_known(home)
    with open_instance(home) as instance:
        shown = {SCREENS: dg.MarkdownMetadataValue(PICTURE)}
        instance.report_runless_asset_event(dg.AssetMaterialization("rollouts", partition="0001", metadata=shown))
    assert is_known(home) and not (home.dagster / LOCAL).exists()

    with reported(warehouse, "flywheel withdraw", Console(quiet=True)):
        withdraw(warehouse, "sft_samples", ["sample-2"], iteration="0001")
    with open_known(home) as instance:
        (record,) = instance.fetch_materializations(dg.AssetKey("sft_samples"), limit=5).records
        assert record.asset_materialization is not None
        assert record.asset_materialization.metadata[CHANGED_BY].value == "flywheel withdraw"

    assert take_out_screens(home, [("0001", "rollouts")]) == 1 and take_out_screens(home, [("0001", "rollouts")]) == 0
    with open_known(home) as instance:
        (record,) = instance.fetch_materializations(dg.AssetKey("rollouts"), limit=5).records
        assert record.asset_materialization is not None and record.asset_materialization.metadata[SCREENS].value == INSTEAD
    with create_engine(address).connect() as connection:
        old = connection.execute(text("select count(*) from asset_keys where last_materialization like '%base64%'")).scalar()
        connection.execute(text("create extension if not exists pgstattuple"))
        dead = connection.execute(text("select dead_tuple_count from pgstattuple('event_logs')")).scalar()
    assert (old, dead) == (0, 0), "no row that was rewritten is still there"

    monkeypatch.delenv(POSTGRES_VARIABLE)
    with pytest.raises(ConfigError, match=f"keeps its history in Postgres, and {POSTGRES_VARIABLE} is not set"):
        take_out_screens(home, [("0001", "rollouts")])
    console = Console(record=True, width=400)
    with reported(warehouse, "flywheel withdraw", console):
        withdraw(warehouse, "sft_samples", ["sample-1"], iteration="0001")
    assert f"{POSTGRES_VARIABLE} is not set" in console.export_text() and not (home.dagster / LOCAL).exists()
