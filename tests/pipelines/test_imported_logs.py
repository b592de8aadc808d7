"""Logs that come in are an asset with a partition a day, and a schedule takes the days that are over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.dagster_run import RunOpConcurrency

from agent.gateway.intake import logs_of
from assets.settings.profile import LogSettings
from assets.stages.resources import WarehouseResource
from assets.stages.stage_assets import CONCURRENCY_POOL
from pipelines.definitions import build_defs
from pipelines.orchestration.imported_logs import build_logs, days_over
from tests.pipelines.test_import_logs import FILES, LOGS
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

DAY = "2026-11-20"


@pytest.fixture
def came_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path))

    def put(format: str, day: str = DAY, source: Path | None = None) -> Path:
        folder = logs_of(Home(tmp_path)) / day / format
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(source or LOGS / FILES[format], folder))

    return put


@pytest.mark.slow
def test_a_day_is_a_partition_and_what_is_stored_is_not_stored_again(tmp_path: Path, came_in: Callable[..., Path]) -> None:
    came_in("openai-chat")
    came_in("playwright-trace")
    (asset,) = build_logs(LogSettings()).assets
    resources = {"tables": WarehouseResource(root=str(tmp_path))}
    for added in (2, 0):
        ran = dg.materialize([asset], partition_key=DAY, resources=resources)
        (made,) = ran.asset_materializations_for_node("imported_logs")
        assert made.metadata["openai-chat/added"].value == added
        assert made.metadata["began"].value > (logs_of(Home(tmp_path)) / DAY / "openai-chat" / FILES["openai-chat"]).stat().st_ctime
    stages = {row["stage"] for row in Warehouse(Home(tmp_path)).read("episodes").to_pylist()}
    assert stages == {"imported_logs_2026_11_20_openai_chat", "imported_logs_2026_11_20_playwright_trace"}


@pytest.mark.slow
def test_what_cannot_be_read_costs_nothing_else_of_its_day(tmp_path: Path, came_in: Callable[..., Path]) -> None:
    came_in("browser-use", source=LOGS / FILES["openai-chat"]).rename(logs_of(Home(tmp_path)) / DAY / "browser-use" / "a.json")
    came_in("browser-use", source=LOGS / FILES["browser-use"])
    came_in("no-format", source=LOGS / FILES["browser-use"])
    came_in("openai-chat")
    (asset,) = build_logs(LogSettings()).assets
    resources = {"tables": WarehouseResource(root=str(tmp_path))}
    with pytest.raises(dg.Failure, match=r"the rest is imported: browser-use: .*a\.json is not a JSON document.*no-format"):
        dg.materialize([asset], partition_key=DAY, resources=resources)
    stages = {row["stage"] for row in Warehouse(Home(tmp_path)).read("episodes").to_pylist()}
    assert stages == {"imported_logs_2026_11_20_openai_chat"}
    assert (tmp_path / "imports" / "logs_2026_11_20_browser_use" / "import.json").is_file()


def test_the_schedule_asks_for_the_days_that_are_over_and_not_imported(tmp_path: Path, came_in: Callable[..., Path]) -> None:
    logs = build_logs(LogSettings())
    (schedule,) = logs.schedules
    tables = WarehouseResource(root=str(tmp_path))
    place = dg.Definitions(assets=logs.assets, jobs=logs.jobs, schedules=logs.schedules, resources={"tables": tables}).get_repository_def()
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        assert schedule.evaluate_tick(dg.build_schedule_context(instance=instance, repository_def=place)).skip_message is not None
        came_in("openai-chat")
        came_in("openai-chat", (datetime.now(UTC) + timedelta(days=1)).date().isoformat())
        (logs_of(Home(tmp_path)) / "not a day").mkdir()
        came_in("openai-chat", "2026-11-19")
        instance.report_runless_asset_event(dg.AssetMaterialization("imported_logs", partition="2026-11-19"))
        ticked = schedule.evaluate_tick(dg.build_schedule_context(instance=instance, repository_def=place))
        works = RunOpConcurrency(root_key_counts={CONCURRENCY_POOL: 1}, has_unconstrained_root_nodes=False, all_pools={CONCURRENCY_POOL})
        waiting = dg.DagsterRun(
            job_name="import_logs", status=dg.DagsterRunStatus.STARTING, tags={"dagster/partition": DAY}, run_op_concurrency=works
        )
        instance.add_run(waiting)
        meanwhile = schedule.evaluate_tick(dg.build_schedule_context(instance=instance, repository_def=place))
        os.utime(came_in("openai-chat", "2026-11-19"), (0, 0))
        grown = schedule.evaluate_tick(dg.build_schedule_context(instance=instance, repository_def=place))
    assert [one.partition_key for one in ticked.run_requests or ()] == [DAY]
    assert not meanwhile.run_requests, "its run waits already"
    assert [one.partition_key for one in grown.run_requests or ()] == ["2026-11-19"], "a file came after its import"
    assert days_over(Home(tmp_path), datetime(2026, 11, 20, tzinfo=UTC)) == ["2026-11-19"]


def test_a_day_that_goes_on_is_no_partition() -> None:
    (asset,) = build_logs(LogSettings()).assets
    assert asset.partitions_def is not None
    keys = asset.partitions_def.get_partition_keys(current_time=datetime(2026, 11, 20, 12, tzinfo=UTC))
    assert keys[-1] == "2026-11-19"


def test_a_profile_says_whether_there_is_such_an_asset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("extends: smoke\nname: mine\nlogs: {policy: my-agent}\n")
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path))
    found = {}
    for profile in ("smoke", str(tmp_path / "mine.yaml")):
        monkeypatch.setenv("FLYWHEEL_PROFILE", profile)
        definitions = build_defs()
        found[profile] = {spec.key.to_user_string() for spec in definitions.resolve_all_asset_specs()}
    assert found[str(tmp_path / "mine.yaml")] - found["smoke"] == {"imported_logs"}
    assert definitions.resolve_job_def("import_logs").partitions_def is not None
