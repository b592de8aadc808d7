"""The executor of an iteration: Dagster's multiprocess one, behind the lock that keeps two iterations apart.

The lock is taken in the process of the run and released by the kernel when that process is gone, however it went. So a run that is STARTED
while nobody holds the lock is dead, which is how `living_runs` knows. Dagster's own run monitoring cannot: its default launcher does not
say whether the process of a run is alive.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from dagster import multiprocess_executor

from pipelines.orchestration import step_server
from pipelines.orchestration.iteration_lock import lock_path
from warehouse.core.errors import IterationLocked
from warehouse.core.home import Home
from warehouse.core.locks import LOOKED_AT_S, FileLock, holder_of

START_METHOD = {"forkserver": {"preload_modules": [step_server.PRELOAD]}}
START_GRACE_S = 180.0
"""From the launch of a run to its lock: the process has to import everything first."""
HOLDS_LOCK = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
UNFINISHED = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING, *HOLDS_LOCK]
_HELD: list[FileLock] = []
"""Keeps the lock alive as long as the process of the run."""


@dg.executor(
    name="one_iteration_at_a_time",
    config_schema=multiprocess_executor.config_schema.as_field(),
    requirements=multiprocess_executor.get_requirements({}),
)
def iteration_executor(init_context: dg.InitExecutorContext) -> Any:
    """Steps in processes of their own, at most one iteration on a FLYWHEEL_HOME. Raises IterationLocked."""
    from pipelines import profiles  # who only asks for the lock need not wait for what profiles import

    lock = FileLock(lock_path(Home.from_env()))
    if not lock.acquire(timeout_s=LOOKED_AT_S):
        raise IterationLocked(
            f"process {lock.holder()} is running an iteration in {Home.from_env().root}; wait for it, or end it and launch again"
        )
    _HELD.append(lock)
    step_server.start()
    config = {"max_concurrent": profiles.from_env().max_parallel, "start_method": START_METHOD, **_given(init_context.executor_config)}
    return multiprocess_executor.executor_creation_fn(init_context._replace(executor_config=config))  # type: ignore[misc]


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a launcher set on purpose: Dagster fills the rest with its own defaults."""
    defaults: dict[str, tuple[Any, ...]] = {"max_concurrent": (None, 0), "start_method": ({"spawn": {}},)}
    return {name: value for name, value in config.items() if value not in defaults.get(name, ())}


def living_runs(instance: dg.DagsterInstance, home: Home) -> Sequence[dg.DagsterRun]:
    """Runs that turn the wheel, or will. A run whose process is gone is marked as failed, so that it holds no place in the queue: whoever
    asks what is alive sees to that, and nobody else.

    A run takes the lock before it counts as started. One that does not yet may still be about to: it is given START_GRACE_S.
    """
    records = instance.get_run_records(dg.RunsFilter(statuses=UNFINISHED, tags={ITERATION_TAG: "true"}))
    if holder_of(lock_path(home)) is not None:
        return [record.dagster_run for record in records]
    living = []
    for record in records:
        run, age_s = record.dagster_run, time.time() - record.update_timestamp.timestamp()
        if run.status in HOLDS_LOCK or (run.status != dg.DagsterRunStatus.QUEUED and age_s > START_GRACE_S):
            instance.report_run_failed(run, "the process of this run is gone")
        else:
            living.append(run)
    return living


ITERATION_TAG = "flywheel/iteration"
"""On every run of an iteration; the run queue lets one of them through at a time."""
LAUNCH_TAG = "flywheel/launch"
"""On a run of pipelines/orchestration/run_process.py: by which whoever started that process finds it."""
LAUNCHED_TAG = "flywheel/launched_at"
"""On the same run: when that process began, in Unix seconds. Its imports come before what Dagster counts."""
