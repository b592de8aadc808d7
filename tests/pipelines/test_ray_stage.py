"""Stages as jobs of a real Ray cluster: the same result, log and failures as a process beside Dagster gives."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.settings.execution import RunnerSettings
from assets.stages.failures import RETRYABLE
from assets.stages.requests import StageRequest, StageResult
from assets.stages.resources import ProfileResource, StageRunner
from benchmarks.common.ray_nodes import ROOT, ray_nodes
from pipelines import profiles
from pipelines.cluster.stage_jobs import JOB
from pipelines.orchestration.instance import open_instance
from pipelines.orchestration.runs import profile as run_profile
from pipelines.orchestration.work.folder import work_folder
from pipelines.orchestration.work.stage_runner import PipesStageRunner
from pipelines.plan import preflight
from pipelines.plan.ray_check import check_job_server
from tests.pipelines.test_stage_runner import BAD, GOOD, SEED
from warehouse.core.home import Home

pytestmark = pytest.mark.timeout(600)


@dataclass
class Ran:
    """One run of a stage."""

    run: dg.ExecuteInProcessResult
    result: StageResult | None
    log: list[str]

    @property
    def failure(self) -> tuple[str, bool]:
        """What Dagster was told, and whether another try may help."""
        (event,) = [event for event in self.run.all_events if event.event_type == dg.DagsterEventType.STEP_FAILURE]
        assert event.step_failure_data.user_failure_data is not None
        data = event.step_failure_data.user_failure_data
        return str(data.description), bool(data.metadata[RETRYABLE].value)


def ran(home: Path, instance: dg.DagsterInstance, request: StageRequest, runner: dict[str, Any]) -> Ran:
    found: list[StageResult] = []

    @dg.asset
    def stage(context: dg.AssetExecutionContext, runner: StageRunner, profile: ProfileResource) -> dg.MaterializeResult:
        found.append(runner.run(context, request))
        return dg.MaterializeResult()

    resources = {"runner": PipesStageRunner(root=str(home)), "profile": run_profile.build_resource(profiles.load("smoke"))}
    definitions = dg.Definitions([stage], jobs=[dg.define_asset_job("iteration", [stage])], resources=resources)
    config = run_profile.run_config("smoke", {f"runner.{name}": value for name, value in runner.items()})
    run = definitions.resolve_job_def("iteration").execute_in_process(instance=instance, raise_on_error=False, run_config=config)
    return Ran(run, found[0] if found else None, [entry.user_message for entry in instance.all_logs(run.run_id)])


def demonstrate_as_a_job(home: str, page: str) -> None:
    """In a process of its own, which is cancelled."""
    with open_instance(Home(Path(home))) as instance:
        ran(Path(home), instance, GOOD, {"kind": "ray", "address": page})


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    with ray_nodes(0, job_server=True) as (nodes, _):
        yield nodes.page


def jobs_of(page: str) -> Any:
    from ray.job_submission import JobSubmissionClient

    return JobSubmissionClient(page)


def job_under_way(page: str, folder: Path) -> str:
    """Its id, once the stage is at work."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (folder / JOB).exists() and (folder / "progress.json").exists():
            return (folder / JOB).read_text()
        time.sleep(0.1)
    raise TimeoutError(sorted(path.name for path in folder.iterdir()))


def test_runner_is_a_word_or_a_group_of_settings() -> None:
    assert RunnerSettings.model_validate("ray") == RunnerSettings(kind="ray")
    assert profiles.load("smoke", {"runner": "ray"}).runner.kind == "ray" and profiles.load("smoke").runner.kind == "local"
    with pytest.raises(ValueError, match="address"):
        RunnerSettings(kind="ray", address="head:8265")


def test_a_dry_run_asks_the_job_server(page: str) -> None:
    answered = check_job_server(profiles.load("smoke", {"runner": {"kind": "ray", "address": page}}))
    assert answered.status == "ok" and page in answered.found
    absent = profiles.load("smoke", {"runner": {"kind": "ray", "address": "http://127.0.0.1:9"}})
    checks = [check for check in preflight._check_runner(absent) if check.status == "fail"]
    assert "no Ray job server answers" in checks[0].found and "runner.address" in checks[0].fix
    assert preflight._check_runner(profiles.load("smoke")) == []


@pytest.mark.long
def test_a_job_gives_what_a_process_gives(place: Any, page: str) -> None:
    """Result, log and a failure that is the stage's own."""
    job = {"kind": "ray", "address": page}
    seeded = ran(place.home.root, place.instance, SEED, job)
    assert seeded.run.success, seeded.log
    demonstrated = ran(place.home.root, place.instance, GOOD, job)
    assert demonstrated.run.success, demonstrated.log
    assert any("episodes" in line for line in demonstrated.log), "its progress"
    for request, there in ((SEED, seeded.result), (GOOD, demonstrated.result)):
        PipesStageRunner(root=str(place.home.root)).forget(request.iteration, request.stage)
        here = ran(place.home.root, place.instance, request, {"kind": "local"}).result
        assert here is not None and there is not None
        assert (here.checkpoint_id, here.counts, here.metrics) == (there.checkpoint_id, there.counts, there.metrics)
        assert here.table_versions.keys() == there.table_versions.keys()
    said, may_try_again = ran(place.home.root, place.instance, BAD, job).failure
    assert "seed_demonstrations of iteration 0000: ConfigError" in said and not may_try_again


@pytest.mark.long
def test_a_job_that_is_stopped_is_seen_and_may_be_tried_again(place: Any, page: str) -> None:
    folder = work_folder(place.home, GOOD.iteration, GOOD.stage)

    def stop() -> None:
        jobs_of(page).stop_job(job_under_way(page, folder))

    stopping = threading.Thread(target=stop)
    stopping.start()
    stopped = ran(place.home.root, place.instance, GOOD, {"kind": "ray", "address": page})
    stopping.join()
    said, may_try_again = stopped.failure
    assert "WorkerKilled" in said and "STOPPED" in said and may_try_again


@pytest.mark.long
def test_a_cancelled_run_stops_its_job(place: Any, page: str) -> None:
    folder = work_folder(place.home, GOOD.iteration, GOOD.stage)
    program = "import sys; from tests.pipelines.test_ray_stage import demonstrate_as_a_job; demonstrate_as_a_job(*sys.argv[1:])"
    run = subprocess.Popen(
        [sys.executable, "-c", program, str(place.home.root), page], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        job = job_under_way(page, folder)
        run.send_signal(signal.SIGTERM)
        run.wait(timeout=120)
    finally:
        run.kill()
    deadline = time.monotonic() + 60
    while not (status := jobs_of(page).get_job_status(job)).is_terminal() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert status == "STOPPED"


@pytest.mark.long
def test_a_job_whose_run_was_killed_is_stopped_by_the_next_start(place: Any, page: str) -> None:
    folder = work_folder(place.home, GOOD.iteration, GOOD.stage)
    program = "import sys; from tests.pipelines.test_ray_stage import demonstrate_as_a_job; demonstrate_as_a_job(*sys.argv[1:])"
    run = subprocess.Popen(
        [sys.executable, "-c", program, str(place.home.root), page], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        job = job_under_way(page, folder)
    finally:
        run.kill()
        run.wait()
    again = ran(place.home.root, place.instance, GOOD, {"kind": "ray", "address": page})
    assert again.run.success, again.log
    assert (folder / JOB).read_text() != job and jobs_of(page).get_job_status(job).is_terminal()
