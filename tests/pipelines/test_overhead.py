"""The share of orchestration: all from the start of the run's process counts, but for what workers did outside Prefect."""

from __future__ import annotations

import time
from typing import Any

import dagster as dg
import pytest

from assets.stages.requests import StageResult
from benchmarks.overhead import measure
from pipelines.orchestration.runs.executor import LAUNCHED_TAG
from pipelines.orchestration.work.folder import RESULT, work_folder


def run_iteration(place: Any, key: str, **tags: str) -> None:
    @dg.op
    def nothing() -> None: ...

    @dg.job(name="iteration", executor_def=dg.in_process_executor)
    def iteration() -> None:
        nothing()

    assert iteration.execute_in_process(instance=place.instance, tags={"dagster/partition": key, **tags}).success


def test_imports_before_dagster_counts_and_waiting_for_prefect_are_orchestration(place):
    now = time.time()
    for stage, started_at, metrics in (("sft_model", now - 60, {}), ("rollouts", now - 40, {"prefect_s": 5.0})):
        folder = work_folder(place.home, "0001", stage)
        folder.mkdir(parents=True)
        result = StageResult(started_at=started_at, duration_s=20.0, metrics=metrics)
        (folder / RESULT).write_text(result.model_dump_json())
    run_iteration(place, "0001", **{LAUNCHED_TAG: str(now - 100)})
    run_iteration(place, "0002", **{LAUNCHED_TAG: str(now)})
    run_iteration(place, "0001")
    (row,) = measure(place.home)
    assert row["iteration"] == "0001" and row["work_s"] == 40.0
    assert row["wall_s"] == pytest.approx(time.time() - now + 100, abs=20) and row["wall_s"] > 100
    assert row["overhead_s"] == pytest.approx(row["wall_s"] - 35.0)
