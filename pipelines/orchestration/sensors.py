"""Sensors: what starts an iteration, an evaluation or a repair without a schedule. Each is off until a person switches it on."""

from collections.abc import Callable

import dagster as dg
import pyarrow.compute as pc

from assets.people import num_accepted
from assets.settings.profile import Profile
from assets.stages.resources import WarehouseResource
from pipelines.orchestration.alerts.regressions import eval_drop
from pipelines.orchestration.alerts.sensors import build_alert_sensors
from pipelines.orchestration.jobs import completed, evaluate_job, first_incomplete, iteration_job
from pipelines.orchestration.runs.executor import LAUNCH_TAG
from pipelines.orchestration.runs.failures import MAX_RELAUNCHES, failure_of
from pipelines.orchestration.runs.living_runs import living_runs
from warehouse.storage.catalogue import WITHDRAWN_STAGE

RELAUNCH_TAG = "flywheel/relaunch"
WAITING = "waiting to be taken in"
"""Metadata of an observation: what people have finished since the last iteration closed."""


def build_sensors(profile: Profile) -> list[dg.SensorDefinition]:
    thresholds = profile.schedule
    return [
        _growth_sensor("enough_new_data", "rows in sft_samples", _rows_of("sft_samples"), thresholds.new_samples),
        _growth_sensor("new_annotations", "rows in annotations", _rows_of("annotations"), thresholds.new_annotations),
        _growth_sensor(
            "people_finished",
            "runs and recordings of people",
            lambda tables: num_accepted(tables.home, profile.people),
            thresholds.new_work,
            observed=dg.AssetKey("human_annotations"),
        ),
        _regression_sensor(thresholds.regression),
        relaunch_failed_iteration,
        *build_alert_sensors(profile),
    ]


def _rows_of(table: str) -> Callable[[WarehouseResource], int]:
    return lambda tables: tables.warehouse.dataset(table).count_rows(filter=pc.field("stage") != WITHDRAWN_STAGE)


def _growth_sensor(
    name: str, what: str, count: Callable[[WarehouseResource], int], threshold: int, *, observed: dg.AssetKey | None = None
) -> dg.SensorDefinition:
    """Starts the next iteration once there are `threshold` more of `what` than when the last one closed: what an iteration writes itself
    does not cause another. The cursor is `<iterations closed>:<number then>:<number at the last look>`.

    `observed` is the asset that will take in what no command reports; each change of the number is an observation of it."""

    @dg.sensor(
        name=name,
        job=iteration_job,
        minimum_interval_seconds=30,
        description=f"Starts an iteration when there are {threshold} more {what} than when the last one closed.",
    )
    def growth(context: dg.SensorEvaluationContext, tables: WarehouseResource) -> dg.SensorResult | dg.SkipReason:
        key, num_closed = first_incomplete(context.instance), len(completed(context.instance))
        if key is None:
            return dg.SkipReason("the seed is not made yet")
        there_are = count(tables)
        since, seen, shown = (*(context.cursor or "0:0").split(":"), "")[:3]
        now = f"{num_closed}:{there_are}:{there_are}"
        if since != str(num_closed):
            reason = f"an iteration has closed: what is new is counted from the present {there_are} {what} on"
            return dg.SensorResult(skip_reason=dg.SkipReason(reason), cursor=now)
        num_new = there_are - int(seen)
        news = []
        if observed is not None and there_are != int(shown or seen):
            news.append(dg.AssetObservation(observed, partition=key, metadata={WAITING: num_new}))
        running = living_runs(context.instance, tables.home)
        if running or num_new < threshold:
            reason = f"run {running[0].run_id} is already in progress" if running else f"{num_new} of {threshold} new {what}"
            looked = f"{num_closed}:{seen}:{there_are}"
            return dg.SensorResult(skip_reason=dg.SkipReason(reason), cursor=looked, asset_events=news)
        request = dg.RunRequest(run_key=f"{name}-{key}-{there_are}", partition_key=key)
        return dg.SensorResult(run_requests=[request], cursor=now, asset_events=news)

    return growth


def _regression_sensor(drop: float) -> dg.SensorDefinition:
    """Asks for a fresh evaluation when the merged policy of the iteration that closed last did worse on `eval` than the one before: the
    release gate then decides on new episodes."""

    @dg.sensor(
        name="regression",
        job=evaluate_job,
        minimum_interval_seconds=30,
        description=f"Evaluates again when the merged policy's eval success drops by {drop:g} from one closed iteration to the next.",
    )
    def regression(context: dg.SensorEvaluationContext, tables: WarehouseResource) -> dg.SensorResult | dg.SkipReason:
        closed = completed(context.instance)
        if not closed or closed[-1] == context.cursor:
            return dg.SkipReason("no iteration has closed since the last look")
        found = eval_drop(tables.warehouse, closed)
        if found is None or found.drop < drop:
            return dg.SensorResult(skip_reason=dg.SkipReason("no regression"), cursor=closed[-1])
        request = dg.RunRequest(run_key=f"regression-{found.iteration}", partition_key=found.iteration)
        return dg.SensorResult(run_requests=[request], cursor=closed[-1])

    return regression


@dg.run_failure_sensor(
    name="relaunch_failed_iteration",
    monitored_jobs=[iteration_job],
    request_job=iteration_job,
    minimum_interval_seconds=15,
    description=f"Relaunches an iteration whose run was cut off, up to {MAX_RELAUNCHES} times; finished stages are not worked again.",
)
def relaunch_failed_iteration(context: dg.RunFailureSensorContext) -> dg.RunRequest | dg.SkipReason:
    """Leaves alone what Dagster has retried, what a person must fix, and the runs of `flywheel run`, which launches them again itself."""
    run = context.dagster_run
    times = int(run.tags.get(RELAUNCH_TAG, 0))
    key = run.tags.get("dagster/partition")
    if key is None or times >= MAX_RELAUNCHES:
        return dg.SkipReason(f"run {run.run_id} was relaunched {times} times already; see its log")
    if LAUNCH_TAG in run.tags:
        return dg.SkipReason(f"run {run.run_id} is of `flywheel run`: give that command again")
    failure = failure_of(context.instance, run)
    if not failure.is_to_relaunch:
        why = "Dagster has retried the stage" if failure.is_retryable else "a person has to fix that first"
        return dg.SkipReason(f"run {run.run_id} is not relaunched, {why}: {failure.words}")
    tags = {RELAUNCH_TAG: str(times + 1)}
    return dg.RunRequest(run_key=f"relaunch-{run.run_id}", partition_key=key, run_config=run.run_config, tags=tags)
