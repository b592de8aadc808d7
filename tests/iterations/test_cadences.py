"""What starts by itself does, with nobody there: Dagster's own daemons tick every schedule and sensor on a home with an iteration, with
a code server, a queue and runs as `dagster dev` has them. Only the clock is ours: a week of ticks takes seconds.

That such a run completes an iteration is test_unattended.py's. Here most are ended once they stand in the queue.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import dagster._time
import pytest
import yaml
from dagster._core.remote_representation.external import RemoteSchedule
from dagster._core.scheduler.instigation import InstigatorTick, TickStatus
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget
from dagster._daemon.freshness import FreshnessDaemon
from dagster._daemon.monitoring.run_monitoring import execute_run_monitoring_iteration
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from dagster._daemon.sensor import execute_sensor_iteration
from dagster._scheduler.scheduler import launch_scheduled_runs

from annotation.storage import changes
from annotation.storage.database import default_url
from annotation.storage.migrating import open_database
from assets.stages.asset_keys import ITERATION_OUTPUT
from pipelines.orchestration.alerts.channels import WEBHOOK_VARIABLE
from pipelines.orchestration.instance import open_instance
from pipelines.orchestration.runs.iteration_lock import lock_path
from pipelines.orchestration.sensors import RELAUNCH_TAG
from pipelines.profiles import OVERRIDES_VARIABLE
from tests.pipelines.test_alerts import webhook
from tests.pipelines.test_schedules_and_sensors import annotation, evaluation, sample
from warehouse.core.locks import holder_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "schedule.cron": "0 2 * * 1,3,4,6",
    "schedule.ct": "0 3 * * 0",
    "schedule.sft": "0 4 * * 1,4",
    "schedule.rl": "0 5 * * 5",
    "schedule.new_samples": 3,
    "schedule.new_annotations": 2,
    "schedule.new_work": 2,
    "schedule.regression": 0.1,
    "schedule.late_after_h": 1e-3,
}
GROWTH = ("enough_new_data", "new_annotations", "people_finished")
LOOK_S = 31
"""Longer than every sensor's least interval."""
LOGGER = logging.getLogger("dagster.daemon")


@dataclass
class Daemons:
    """The daemons of `dagster dev`, each iteration of theirs when a test asks for it; a code server of their own launches the runs."""

    workspace: Any
    context: WorkspaceProcessContext
    instance: dg.DagsterInstance
    alerts: list[dict[str, Any]]
    """What the webhook was sent."""
    ahead: timedelta = timedelta()
    """Of the daemons' clock, which sensors' intervals and freshness are counted by."""
    coordinator: QueuedRunCoordinatorDaemon = field(default_factory=lambda: QueuedRunCoordinatorDaemon(interval_seconds=1))

    def _repository(self) -> Any:
        (location,) = self.context.create_request_context().code_locations
        (repository,) = location.get_repositories().values()
        return repository

    def schedules(self) -> dict[str, RemoteSchedule]:
        return {schedule.name: schedule for schedule in self._repository().get_schedules()}

    def switch_on(self, *sensors: str) -> None:
        for sensor in self._repository().get_sensors():
            if sensor.name in sensors:
                self.instance.start_sensor(sensor)

    def tick(self, when: datetime) -> list[dg.DagsterRun]:
        """The scheduler's iteration at that time; the runs that it has put into the queue."""
        before = {run.run_id for run in self.instance.get_runs()}
        for problem in launch_scheduled_runs(self.context, LOGGER, end_datetime_utc=when, iteration_times={}):
            assert problem is None, problem
        return [run for run in self.instance.get_runs() if run.run_id not in before]

    def look(self) -> list[dg.DagsterRun]:
        """The sensors' iteration, when each is due again; the runs that it has put into the queue."""
        self.ahead += timedelta(seconds=LOOK_S)
        before = {run.run_id for run in self.instance.get_runs()}
        for problem in execute_sensor_iteration(self.context, LOGGER, None, None):
            assert problem is None, problem
        return [run for run in self.instance.get_runs() if run.run_id not in before]

    def launch_queued(self) -> None:
        for problem in self.coordinator.run_iteration(self.context):
            assert problem is None, problem

    def find_dead(self) -> None:
        for problem in execute_run_monitoring_iteration(self.context, LOGGER):
            assert problem is None, problem

    def freshness(self, later: timedelta, *keys: dg.AssetKey) -> list[str]:
        """The states of assets after the daemon's iteration so much later than now."""
        before, self.ahead = self.ahead, self.ahead + later
        for problem in FreshnessDaemon().run_iteration(self.context):
            assert problem is None, problem
        self.ahead = before
        found = self.instance.get_freshness_state_records(keys)
        return [found[key].freshness_state.value for key in keys]

    def ticks(self, schedule: RemoteSchedule) -> list[InstigatorTick]:
        """Oldest first."""
        return list(reversed(self.instance.get_ticks(schedule.get_remote_origin_id(), schedule.selector_id)))

    def end(self, run: dg.DagsterRun) -> None:
        assert self.status(run) == dg.DagsterRunStatus.QUEUED
        self.instance.report_run_canceled(run)

    def status(self, run: dg.DagsterRun) -> dg.DagsterRunStatus:
        found = self.instance.get_run_by_id(run.run_id)
        assert found is not None
        return found.status


@pytest.fixture(scope="module")
def daemons(shared_copy: Any) -> Iterator[Daemons]:
    workspace = shared_copy
    with webhook() as (url, alerts), pytest.MonkeyPatch.context() as patch:
        settings = {OVERRIDES_VARIABLE: yaml.safe_dump(SETTINGS), WEBHOOK_VARIABLE: url, "PYTHONPATH": str(ROOT)}
        for name, value in {**workspace.environment, **settings}.items():
            patch.setenv(name, value)
        for name in ("DAGSTER_HOME", "FLYWHEEL_DAGSTER_URL"):
            patch.delenv(name, raising=False)
        with open_instance(workspace.home) as instance:
            target = ModuleTarget("pipelines.definitions", None, str(ROOT), "pipelines.definitions")
            with WorkspaceProcessContext(instance, target) as context:
                found = Daemons(workspace, context, instance, alerts)
                now = lambda: datetime.now(UTC) + found.ahead  # noqa: E731
                patch.setattr(dagster._time, "_mockable_get_current_datetime", now)
                patch.setattr(dagster._time, "_mockable_get_current_timestamp", lambda: now().timestamp())
                yield found


def names(keys: Any) -> set[str]:
    return {key.to_user_string() for key in keys or ()}


def test_each_schedule_ticks_at_its_cadence_and_waits_for_the_run_before(daemons: Daemons) -> None:
    monday = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    monday += timedelta(days=-monday.weekday() % 7)
    daemons.ahead = monday - datetime.now(UTC)
    schedules = daemons.schedules()
    for schedule in schedules.values():
        daemons.instance.start_schedule(schedule)
    started: list[tuple[str, str, str]] = []
    for day in range(7):
        for hour in (2, 3, 4, 5):
            for run in daemons.tick(monday + timedelta(days=day, hours=hour, seconds=1)):
                assert run.tags["dagster/partition"] == "0002", "the one that is open"
                started.append((run.tags["dagster/schedule_name"], f"{day} {hour}", run.job_name))
                waits = {"recurring_sft": {"sft_dataset", "sft_model"}, "recurring_rl": {"rl_model/pointing", "rl_model/forms"}}
                assert names(run.asset_selection) >= waits.get(run.tags["dagster/schedule_name"], set())
                if (day, hour) != (2, 2):
                    daemons.end(run)
        if day == 2:
            (waiting,) = [run for run in daemons.instance.get_runs() if run.status == dg.DagsterRunStatus.QUEUED]
        if day == 3:
            daemons.end(waiting)
    retraining = [("recurring_retraining", f"{day} 2", "iteration") for day in (0, 2, 5)]
    others = [("recurring_sft", "0 4", "iteration"), ("recurring_rl", "4 5", "iteration"), ("recurring_ct", "6 3", "ct")]
    assert sorted(started) == sorted(retraining + others)
    states = {name: [tick.status for tick in daemons.ticks(schedule)] for name, schedule in schedules.items()}
    kept, left_out = TickStatus.SUCCESS, TickStatus.SKIPPED
    assert states == {
        "recurring_retraining": [kept, kept, left_out, kept],
        "recurring_ct": [kept],
        "recurring_sft": [kept, left_out],
        "recurring_rl": [kept],
    }
    assert waiting.run_id in str(daemons.ticks(schedules["recurring_sft"])[-1].skip_reason)
    for schedule in schedules.values():
        daemons.instance.stop_schedule(schedule.get_remote_origin_id(), schedule.selector_id, schedule)


def test_a_scheduled_run_that_is_cut_off_is_reported_and_launched_again(daemons: Daemons) -> None:
    daemons.switch_on("relaunch_failed_iteration")
    assert daemons.look() == [], "nothing has failed so far"
    schedule = daemons.schedules()["recurring_retraining"]
    daemons.instance.start_schedule(schedule)
    (run,) = daemons.tick(datetime.now(UTC) + daemons.ahead + timedelta(days=30))
    daemons.launch_queued()
    wait_for(lambda: daemons.status(run) == dg.DagsterRunStatus.STARTED and holder_of(lock_path(daemons.workspace.home)) is not None)
    holder = holder_of(lock_path(daemons.workspace.home))
    assert holder is not None
    os.kill(holder, signal.SIGKILL)
    wait_for(lambda: holder_of(lock_path(daemons.workspace.home)) is None)
    daemons.find_dead()
    assert daemons.status(run) == dg.DagsterRunStatus.FAILURE
    (again,) = daemons.look()
    assert again.tags[RELAUNCH_TAG] == "1" and again.tags["dagster/partition"] == "0002"
    daemons.end(again)
    daemons.look()
    (news,) = [one for one in daemons.alerts if one["kind"] == "run_failed"]
    assert news["about"] == run.run_id and "iteration 0002 failed" in news["text"]
    daemons.instance.stop_schedule(schedule.get_remote_origin_id(), schedule.selector_id, schedule)


def test_new_data_new_annotations_and_peoples_work_start_an_iteration_each(daemons: Daemons) -> None:
    daemons.switch_on(*GROWTH)
    assert daemons.look() == [], "what is there when they are switched on is not new"
    warehouse = daemons.workspace.warehouse

    def add_samples() -> None:
        warehouse.replace_partition("sft_samples", [sample(number) for number in range(3)], iteration="0000", stage="import_new")

    def add_annotations() -> None:
        warehouse.replace_partition("annotations", [annotation(number) for number in range(2)], iteration="0001", stage="import_new")

    def finish_work() -> None:
        database = open_database(default_url(daemons.workspace.home))
        for number in range(2):
            database.transact(changes.append, "run", f"run-{number}", now_s=time.time())
        database.close()

    for sensor, add in zip(GROWTH, (add_samples, add_annotations, finish_work), strict=True):
        add()
        (run,) = daemons.look()
        assert (run.tags["dagster/sensor_name"], run.job_name, run.tags["dagster/partition"]) == (sensor, "iteration", "0002")
        assert daemons.look() == [], "it waits in the queue"
        daemons.end(run)
        assert daemons.look() == [], "the same starts nothing twice"


def test_a_regression_is_evaluated_again_and_reported_and_what_is_overdue_shows(daemons: Daemons) -> None:
    warehouse, instance = daemons.workspace.warehouse, daemons.instance
    daemons.switch_on("regression")
    assert daemons.look() == []
    for key, num_success in (("0001", 9), ("0002", 5)):
        warehouse.replace_partition("evaluations", [evaluation("a", num_success)], iteration=key, stage="evaluation")
    instance.report_runless_asset_event(dg.AssetMaterialization(ITERATION_OUTPUT, partition="0002"))
    closes, released, seed = ITERATION_OUTPUT, dg.AssetKey("released_policy"), dg.AssetKey("seed")
    assert daemons.freshness(timedelta(), closes, seed) == ["PASS", "NOT_APPLICABLE"]
    assert daemons.freshness(timedelta(days=1), closes, released, seed) == ["FAIL", "FAIL", "NOT_APPLICABLE"]
    (run,) = daemons.look()
    assert (run.job_name, run.tags["dagster/partition"]) == ("evaluate", "0002")
    daemons.end(run)
    daemons.look()
    news = {one["kind"]: one["text"] for one in daemons.alerts}
    assert "the merged policy of iteration 0002 solves 0.500 of eval, the one before 0.900" in news["regression"]
    assert "no iteration has closed for" in news["late"] and "recurring_retraining" in news["late"]


def wait_for(is_so: Any, timeout_s: float = 180) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)
