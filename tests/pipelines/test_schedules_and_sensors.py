"""Every schedule tick and every sensor, evaluated on a real instance and real tables: when it asks for a run, and when it says why not."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from annotation.storage import changes
from annotation.storage.database import default_url
from annotation.storage.migrating import open_database
from assets.stages.resources import WarehouseResource
from pipelines import profiles
from pipelines.definitions import build_defs
from pipelines.orchestration.runs.failures import MAX_RELAUNCHES
from pipelines.orchestration.runs.iteration_lock import lock_path
from pipelines.orchestration.schedules import build_schedules
from pipelines.orchestration.sensors import RELAUNCH_TAG, WAITING, build_sensors, relaunch_failed_iteration
from warehouse.core.locks import FileLock

SETTINGS = {"schedule.new_samples": 3, "schedule.new_annotations": 2, "schedule.new_work": 2, "schedule.regression": 0.1}
MESSAGES = [{"role": "user", "content": "Click.", "screenshot_id": None, "loss": 0.0}]


def skip_reason(outcome: Any) -> str:
    reason = outcome.skip_reason if isinstance(outcome, dg.SensorResult) else outcome
    assert isinstance(reason, dg.SkipReason)
    return str(reason.skip_message)


def sample(number: int) -> dict[str, Any]:
    return {
        "sample_id": f"sample-{number}",
        "origin": "demonstration",
        "domain": "pointing",
        "messages": MESSAGES,
        "episode_id": None,
        "step_index": None,
        "annotation_id": None,
        "verdict": None,
        "withdrawn": False,
    }


def annotation(number: int) -> dict[str, Any]:
    return {
        "annotation_id": f"annotation-{number}",
        "episode_id": f"episode-{number}",
        "step_index": 0,
        "annotator": "oracle",
        "origin": "scripted",
        "mode": "relabel",
        "decision": "accept",
        "proposal": "a",
        "response": "a",
        "messages": MESSAGES,
        "withdrawn": False,
    }


def evaluation(task: str, num_success: int) -> dict[str, Any]:
    return {
        "checkpoint_id": "checkpoint-1",
        "checkpoint_role": "merged_policy",
        "task_id": f"task-{task}",
        "task_name": task,
        "domain": "pointing",
        "split": "eval",
        "num_episodes": 10,
        "num_success": num_success,
        "num_crashed": 0,
    }


@pytest.fixture
def sensors(place) -> dict[str, Any]:
    """`sensors[name](cursor)` evaluates one."""
    tables = WarehouseResource(root=str(place.home.root))

    def evaluator(sensor: dg.SensorDefinition) -> Any:
        return lambda cursor=None: sensor(dg.build_sensor_context(instance=place.instance, cursor=cursor, resources={"tables": tables}))

    return {
        sensor.name: evaluator(sensor)
        for sensor in build_sensors(profiles.load("smoke", SETTINGS))
        if sensor.name != "relaunch_failed_iteration"
    }


def tick(place: Any, name: str = "recurring_retraining", **settings: Any) -> Any:
    schedules = {schedule.name: schedule for schedule in build_schedules(profiles.load("smoke", settings))}
    schedule = schedules[name]
    context = dg.build_schedule_context(instance=place.instance, repository_def=build_defs().get_repository_def())
    return schedule.evaluate_tick(context)


def test_a_tick_asks_for_the_first_incomplete_iteration(place):
    (schedule,) = build_schedules(profiles.load("smoke", {"schedule.cron": "5 4 * * *"}))
    assert schedule.cron_schedule == "5 4 * * *" and schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    (enabled,) = build_schedules(profiles.load("smoke", {"schedule.enabled": True}))
    assert enabled.default_status is dg.DefaultScheduleStatus.RUNNING
    assert "seed" in tick(place).skip_message
    place.open("0001")
    (request,) = tick(place).run_requests
    assert request.partition_key == "0001"
    place.open("0002")
    place.close("0001")
    assert tick(place).run_requests[0].partition_key == "0002"


@pytest.mark.slow
def test_ct_sft_and_rl_have_cadences_of_their_own(place):
    cadences = {"schedule.ct": "0 3 * * 0", "schedule.sft": "0 3 * * *", "schedule.rl": "0 5 * * *", "schedule.set": {"rl.rounds": 8}}
    schedules = build_schedules(profiles.load("smoke", cadences))
    jobs = {each.name: each.job_name for each in schedules}
    assert {each.name: each.cron_schedule for each in schedules} == {
        "recurring_retraining": "0 2 * * *",
        "recurring_ct": "0 3 * * 0",
        "recurring_sft": "0 3 * * *",
        "recurring_rl": "0 5 * * *",
    }
    place.open("0001")

    def asked(name: str) -> tuple[str, set[str], Any]:
        (request,) = tick(place, name, **cadences).run_requests
        return jobs[name], {key.to_user_string() for key in request.asset_selection or ()}, request.run_config

    changed = {"resources": {"profile": {"config": {"rl": {"rounds": 8}}}}}
    assert asked("recurring_ct") == ("ct", set(), changed)
    assert asked("recurring_sft") == ("iteration", {"withdrawals", "ct_dataset", "ct_model", "sft_dataset", "sft_model"}, changed)
    for made in ("withdrawals", "ct_dataset", "ct_model"):
        place.instance.report_runless_asset_event(dg.AssetMaterialization(made, partition="0001"))
    assert asked("recurring_sft")[1] == {"sft_dataset", "sft_model"}, "CT of the iteration is there: SFT alone"
    assert asked("recurring_rl")[1] == {"sft_dataset", "sft_model", "rl_model/pointing", "rl_model/forms"}


@pytest.mark.parametrize(
    "status",
    [
        dg.DagsterRunStatus.STARTED,
        pytest.param(dg.DagsterRunStatus.STARTING, marks=pytest.mark.slow),
        pytest.param(dg.DagsterRunStatus.NOT_STARTED, marks=pytest.mark.slow),
    ],
)
def test_a_tick_while_an_iteration_runs_asks_for_nothing(place, status):
    place.open("0001")
    run = place.add_run(status)
    with FileLock(lock_path(place.home)):
        outcome = tick(place)
    assert not outcome.run_requests and run.run_id in outcome.skip_message


@pytest.mark.slow
def test_a_tick_is_not_held_up_by_a_run_that_was_killed(place):
    place.open("0001")
    run = place.add_run(dg.DagsterRunStatus.STARTED)
    assert tick(place).run_requests[0].partition_key == "0001"
    assert place.instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.FAILURE


GROWTH = pytest.mark.parametrize(
    ("name", "table", "row"),
    [("enough_new_data", "sft_samples", sample), pytest.param("new_annotations", "annotations", annotation, marks=pytest.mark.slow)],
)


@GROWTH
def test_growth_starts_an_iteration_once(place, sensors, name, table, row):
    assert "seed" in skip_reason(sensors[name]())
    place.open("0001")
    assert f"0 of {SETTINGS['schedule.new_samples' if table == 'sft_samples' else 'schedule.new_annotations']}" in skip_reason(
        sensors[name]()
    )
    place.warehouse.replace_partition(table, [row(number) for number in range(3)], iteration="0000", stage="seed")
    turning = place.add_run(dg.DagsterRunStatus.STARTED)
    with FileLock(lock_path(place.home)):
        assert turning.run_id in skip_reason(sensors[name]()), "while an iteration runs it waits"
    place.instance.report_run_failed(turning)
    fired = sensors[name]()
    (request,) = fired.run_requests
    assert request.partition_key == "0001" and request.run_key
    assert "0 of" in skip_reason(sensors[name](fired.cursor)), "the same rows start nothing twice"


def test_what_people_finish_starts_an_iteration(place, sensors):
    place.open("0001")
    assert "0 of 2" in skip_reason(sensors["people_finished"]()), "nobody annotates here"
    database = open_database(default_url(place.home))
    for kind, subject in (("run", "run-1"), ("withdrawal", "run-1")):
        database.transact(changes.append, kind, subject, now_s=1.0)
    assert "1 of 2" in skip_reason(sensors["people_finished"]()), "what is taken back is not work"
    database.transact(changes.append, "recording", "recording-1", now_s=2.0)
    database.close()
    fired = sensors["people_finished"]()
    assert [request.partition_key for request in fired.run_requests] == ["0001"]
    (reported,) = fired.asset_events
    assert (reported.asset_key, reported.partition, reported.metadata[WAITING].value) == (dg.AssetKey("human_annotations"), "0001", 2)
    assert "0 of 2" in skip_reason(sensors["people_finished"](fired.cursor))


@GROWTH
def test_what_an_iteration_writes_itself_starts_no_other(place, sensors, name, table, row):
    place.open("0001")
    place.warehouse.replace_partition(table, [row(number) for number in range(3)], iteration="0000", stage="seed")
    fired = sensors[name]()
    assert fired.run_requests
    place.warehouse.replace_partition(table, [row(number) for number in range(3, 9)], iteration="0001", stage="routing")
    place.close("0001")
    place.open("0002")
    closed = sensors[name](fired.cursor)
    assert not closed.run_requests and "has closed" in skip_reason(closed)
    assert "0 of" in skip_reason(sensors[name](closed.cursor))
    place.warehouse.replace_partition(table, [row(number) for number in range(9, 12)], iteration="0001", stage="people")
    (request,) = sensors[name](closed.cursor).run_requests
    assert request.partition_key == "0002", "what people add between iterations does"


def test_growth_is_counted_from_the_first_look_on_a_home_with_iterations(place, sensors):
    place.open("0001")
    place.close("0001")
    place.open("0002")
    place.warehouse.replace_partition("sft_samples", [sample(number) for number in range(9)], iteration="0001", stage="routing")
    first = sensors["enough_new_data"]()
    assert not first.run_requests
    assert "0 of 3" in skip_reason(sensors["enough_new_data"](first.cursor))


def test_a_regression_asks_for_another_evaluation_once(place, sensors):
    regression = sensors["regression"]
    assert "no iteration has closed" in skip_reason(regression())
    place.warehouse.replace_partition("evaluations", [evaluation("a", 9), evaluation("b", 7)], iteration="0001", stage="evaluation")
    place.open("0001")
    place.close("0001")
    first = regression()
    assert "no regression" in skip_reason(first)
    assert "no iteration has closed" in skip_reason(regression(first.cursor))

    place.warehouse.replace_partition("evaluations", [evaluation("a", 6), evaluation("b", 6)], iteration="0002", stage="evaluation")
    assert "no iteration has closed" in skip_reason(regression(first.cursor)), "one that has not closed may still be worked on"
    place.warehouse.replace_partition("evaluations", [evaluation("a", 9), evaluation("b", 9)], iteration="0003", stage="evaluation")
    place.open("0002")
    place.close("0002")
    second = regression(first.cursor)
    (request,) = second.run_requests
    assert request.partition_key == "0002"
    assert "no iteration has closed" in skip_reason(regression(second.cursor))


def test_a_failed_iteration_is_launched_again_but_not_for_ever(place):
    def after(**tags: str) -> Any:
        run = place.add_run(dg.DagsterRunStatus.FAILURE, **tags)
        event = dg.DagsterEvent(event_type_value=dg.DagsterEventType.RUN_FAILURE.value, job_name="iteration", message="failed")
        context = dg.build_run_status_sensor_context(
            sensor_name="relaunch_failed_iteration", dagster_event=event, dagster_instance=place.instance, dagster_run=run
        ).for_run_failure()
        return run, relaunch_failed_iteration(context)

    run, request = after(**{"dagster/partition": "0002"})
    assert (request.partition_key, request.tags[RELAUNCH_TAG], request.run_key) == ("0002", "1", f"relaunch-{run.run_id}")
    _, request = after(**{"dagster/partition": "0002", RELAUNCH_TAG: str(MAX_RELAUNCHES)})
    assert "already" in skip_reason(request)


def test_everything_that_starts_runs_by_itself_is_off_until_switched_on(place):
    repository = build_defs().get_repository_def()
    assert {sensor.name for sensor in repository.sensor_defs} == {
        "enough_new_data",
        "new_annotations",
        "people_finished",
        "regression",
        "relaunch_failed_iteration",
        "alerts",
        "alert_failed_runs",
    }
    assert [sensor.name for sensor in repository.sensor_defs if sensor.default_status != dg.DefaultSensorStatus.STOPPED] == []
    assert [schedule.name for schedule in repository.schedule_defs if schedule.default_status != dg.DefaultScheduleStatus.STOPPED] == []
