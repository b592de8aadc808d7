"""The runner of stages with real workers: a request is worked once, a half-finished one goes on, and failures speak."""

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest

from assets.settings.execution import SandboxSettings
from assets.settings.profile import ActingSettings, SeedSettings, TaskSettings
from assets.stages.failures import RETRYABLE
from assets.stages.requests import DemonstrateRequest, InitialiseRequest, StageRequest, StageResult
from assets.stages.resources import StageRunner
from pipelines.orchestration.work.folder import REQUEST, RESULT, finished_result, start_afresh, work_folder
from pipelines.orchestration.work.stage_runner import PipesStageRunner
from sandbox.tasks.registry import SOURCES
from tests.sandbox.own_source import write_own_source
from warehouse.core.home import Home
from warehouse.core.locks import FileLock
from warehouse.core.machine import FULL_DISK_BYTES

pytestmark = pytest.mark.timeout(600)

SEED = InitialiseRequest(iteration="0000", stage="seed_policy", seed=0, curricula=("web",))


def demonstrate(task_list: str, *domains: str) -> DemonstrateRequest:
    return DemonstrateRequest(
        iteration="0000",
        stage="seed_demonstrations",
        seed=0,
        seed_data=SeedSettings(tutorials=1, demonstrations_per_task=1),
        acting=ActingSettings(tasks=TaskSettings(lists=(task_list,), domains=domains), sandbox=SandboxSettings(num_sessions=1)),
    )


BAD, GOOD = demonstrate("miniwob:nothing", "pointing"), demonstrate("miniwob:smoke", "pointing", "forms")


class Ran:
    """What one run of a stage came to: a result, or the failure that Dagster was told."""

    def __init__(self, place: Any, request: StageRequest, job: str = "iteration") -> None:
        self.result: StageResult | None = None

        @dg.asset
        def stage(context: dg.AssetExecutionContext, runner: StageRunner) -> dg.MaterializeResult:
            self.result = runner.run(context, request)
            return dg.MaterializeResult()

        resources = {"runner": PipesStageRunner(root=str(place.home.root))}
        definitions = dg.Definitions([stage], jobs=[dg.define_asset_job(job, [stage])], resources=resources)
        self.run = definitions.resolve_job_def(job).execute_in_process(instance=place.instance, raise_on_error=False)
        self.log = [entry.user_message for entry in place.instance.all_logs(self.run.run_id)]

    @property
    def failure(self) -> dg.Failure:
        (event,) = [event for event in self.run.all_events if event.event_type == dg.DagsterEventType.STEP_FAILURE]
        assert event.step_failure_data.user_failure_data is not None
        data = event.step_failure_data.user_failure_data
        return dg.Failure(description=data.description, metadata=data.metadata)

    @property
    def is_final(self) -> bool:
        return not (self.failure.metadata or {})[RETRYABLE].value


@pytest.fixture
def run_stage(place) -> Callable[..., Ran]:
    return lambda request, job="iteration": Ran(place, request, job)


@pytest.mark.slow
def test_a_request_is_worked_once_and_another_one_afresh(place, run_stage):
    first = run_stage(SEED)
    assert first.run.success and first.result.checkpoint_id and first.result.duration_s > 0
    assert first.result.read_versions == {}, "it reads no table"
    folder = work_folder(place.home, "0000", "seed_policy")
    worked_at = (folder / RESULT).stat().st_mtime_ns
    again = run_stage(SEED)
    assert again.result == first.result
    assert (folder / RESULT).stat().st_mtime_ns == worked_at
    assert any("was finished before; its result is reused" in line for line in again.log)
    assert finished_result(folder, SEED.model_copy(update={"seed": 1})) is None, "another request is not answered by it"
    fresh = run_stage(SEED, "ct")
    assert fresh.run.success and fresh.result.started_at > first.result.started_at
    assert fresh.result.checkpoint_id == first.result.checkpoint_id
    assert run_stage(SEED).result == fresh.result, "an iteration takes what the job of the stage made"


@pytest.mark.slow
def test_a_stage_plays_the_tasks_of_a_user_s_own_source(tmp_path: Path, run_stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered here, as a profile does it; its worker and its fleet's workers are processes that only inherit the environment."""
    monkeypatch.setenv(SOURCES.variable, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    SOURCES.use("press.py:SOURCE", write_own_source(tmp_path))
    worked = run_stage(demonstrate("press", "pointing"))
    assert worked.run.success and worked.result.counts["episodes"] == 1, worked.log


def test_a_fresh_run_forgets_what_others_did_and_keeps_what_it_did_itself(place):
    folder = work_folder(place.home, "0000", "seed_policy")
    PipesStageRunner._prepare(folder, SEED)
    (folder / "half").write_text("of an earlier run")
    start_afresh(folder, "run-1")
    assert not (folder / REQUEST).exists() and not (folder / "half").exists()
    PipesStageRunner._prepare(folder, SEED)
    (folder / "half").write_text("of this one, whose worker was killed")
    start_afresh(folder, "run-1")
    assert (folder / "half").exists()
    start_afresh(folder, "run-2")
    assert not (folder / "half").exists()


def test_a_forgotten_stage_has_no_result(place):
    runner, folder = PipesStageRunner(root=str(place.home.root)), work_folder(place.home, "0001", "annotations")
    runner.forget("0001", "annotations")
    PipesStageRunner._prepare(folder, SEED)
    (folder / RESULT).write_text(StageResult().model_dump_json())
    assert finished_result(folder, SEED) == StageResult()
    runner.forget("0001", "annotations")
    assert finished_result(folder, SEED) is None


def test_a_half_finished_stage_keeps_what_it_has_and_a_different_one_does_not(place):
    folder = work_folder(place.home, "0000", "seed_policy")
    PipesStageRunner._prepare(folder, SEED)
    (folder / "half").write_text("kept")
    (folder / "error.json").write_text("{}")
    PipesStageRunner._prepare(folder, SEED)
    assert (folder / "half").exists() and not (folder / "error.json").exists()
    assert finished_result(folder, SEED) is None
    PipesStageRunner._prepare(folder, SEED.model_copy(update={"seed": 1}))
    assert sorted(path.name for path in folder.iterdir()) == [REQUEST]


def test_a_workers_own_error_is_reported_and_final(run_stage):
    ran = run_stage(BAD)
    assert "seed_demonstrations of iteration 0000: ConfigError" in ran.failure.description
    assert "nothing" in ran.failure.description and "quickstart" in ran.failure.description
    assert ran.is_final


@pytest.mark.slow
def test_a_missing_browser_is_reported_and_final(run_stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("FLYWHEEL_CHROMIUM", str(tmp_path / "nowhere"))
    ran = run_stage(GOOD)
    assert "BrowserMissing" in ran.failure.description and str(tmp_path / "nowhere") in ran.failure.description
    assert ran.is_final


def test_a_killed_worker_may_be_tried_again(run_stage, place):
    mark = str(work_folder(place.home, "0000", "seed_demonstrations"))

    def kill() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    if mark in process.cmdline():
                        process.kill()
                        return
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    ran = run_stage(GOOD)
    killer.join()
    assert "WorkerKilled" in ran.failure.description and not ran.is_final


@pytest.mark.long
def test_a_folder_that_another_worker_holds_is_left_alone(run_stage, place):
    folder = work_folder(place.home, "0000", "seed_demonstrations")
    with FileLock(folder / "lock") as lock:
        ran = run_stage(GOOD)
        assert f"process {lock.holder()} still works in" in ran.failure.description
    assert not ran.is_final


@pytest.mark.slow
def test_a_disk_that_fills_up_is_named_and_final(small_disk: Path, place):
    """Dagster's records are elsewhere, so that it can tell; the stage meets the full disk when it stores its rows."""
    home = Home(small_disk / "home")
    PipesStageRunner._prepare(work_folder(home, "0000", "seed_demonstrations"), GOOD)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (shutil.disk_usage(small_disk).free - FULL_DISK_BYTES))
    there = replace(place, home=home)
    ran = Ran(there, GOOD)
    assert "StorageFull" in ran.failure.description and "space" in ran.failure.description
    assert ran.is_final
    filler.unlink()
    again = Ran(there, GOOD)
    assert again.run.success, json.dumps(again.log[-5:])
    assert again.result.counts["outcome/success"] == again.result.counts["episodes"] == 5
