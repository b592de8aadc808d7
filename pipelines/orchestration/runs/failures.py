"""Why a run failed, and whether its launcher, the sensor (pipelines/orchestration/sensors.py) or `flywheel run`
(pipelines/cli/runs/run.py), launches it again.

Only where nobody else has retried: the run is cut off, or a step that Dagster does not retry failed of what may pass. Where
Dagster has started a stage as often as it may, or a person must fix something, the run stays as it is (docs/failures.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import dagster as dg
from dagster_shared.error import SerializableErrorInfo

from assets.stages.failures import RETRYABLE
from warehouse.core.errors import class_named
from warehouse.core.machine import shortage

MAX_RELAUNCHES = 2
"""Of one run, by its launcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailure:
    """Why a run failed."""

    words: str
    is_retryable: bool
    """Whether the same may succeed and nobody has fixed anything."""
    was_retried: bool = False
    """Dagster has started the stage again already, as often as it may."""

    @property
    def is_to_relaunch(self) -> bool:
        return self.is_retryable and not self.was_retried


def failure_of(instance: dg.DagsterInstance, run: dg.DagsterRun | None) -> RunFailure:
    """Of a run that failed; None is one whose process ended before Dagster knew of it. A step's failure that stands in the way of another
    launch comes before one that does not."""
    if run is None:
        return RunFailure(words="the run's process ended before Dagster knew of it; see the log in FLYWHEEL_HOME/work", is_retryable=True)
    steps = list(_failures_of_steps(instance, run.run_id))
    if steps:
        return next((failure for failure in steps if not failure.is_to_relaunch), steps[0])
    for event in _events(instance, run.run_id, dg.DagsterEventType.RUN_FAILURE):
        error = event.job_failure_data.error if event.event_specific_data is not None else None
        if error is not None:
            return _of_error(error)
    return RunFailure(words=f"run {run.run_id} ended as {run.status.value}, and no step of it failed", is_retryable=True)


def _failures_of_steps(instance: dg.DagsterInstance, run_id: str) -> Iterator[RunFailure]:
    retried = {event.step_key for event in _events(instance, run_id, dg.DagsterEventType.STEP_UP_FOR_RETRY)}
    for event in _events(instance, run_id, dg.DagsterEventType.STEP_FAILURE):
        data, was_retried = event.step_failure_data, event.step_key in retried
        raised = data.user_failure_data
        if raised is not None and raised.description:
            mark = raised.metadata.get(RETRYABLE)
            yield RunFailure(words=str(raised.description), is_retryable=mark is None or bool(mark.value), was_retried=was_retried)
        elif data.error is not None:
            failure = _of_error(data.error)
            yield RunFailure(words=failure.words, is_retryable=failure.is_retryable, was_retried=was_retried)


def _of_error(error: SerializableErrorInfo) -> RunFailure:
    """An error as Dagster stores it: of the first class of ours in it or in what caused it, of what the machine gives too little of by its
    words, else of nobody knows what."""
    each: SerializableErrorInfo | None = error
    while each is not None:
        kind = class_named(each.cls_name)
        if kind is not None:
            return RunFailure(words=each.message.strip(), is_retryable=kind.is_retryable)
        found = shortage(MemoryError(each.message) if each.cls_name == "MemoryError" else RuntimeError(each.message))
        if found is not None:
            return RunFailure(words=f"{type(found).__name__}: {found}", is_retryable=found.is_retryable)
        each = each.cause
    return RunFailure(words=(error.cause or error).message.strip(), is_retryable=True)


def _events(instance: dg.DagsterInstance, run_id: str, kind: dg.DagsterEventType) -> Iterator[dg.DagsterEvent]:
    for record in instance.get_records_for_run(run_id, of_type=kind).records:
        if record.event_log_entry.dagster_event is not None:
            yield record.event_log_entry.dagster_event
