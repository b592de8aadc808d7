"""Which runs work in a home, and which of them are dead.

A run takes the home's lock (iteration_lock.py) in its own process before it counts as started, and the kernel releases it when that process
is gone, however it went. So a run that is STARTED while nobody holds the lock is dead.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import dagster as dg

from assets.stages.stage_assets import CONCURRENCY_POOL
from pipelines.orchestration.runs.iteration_lock import is_running_elsewhere, lock_path
from warehouse.core.home import Home
from warehouse.core.locks import holder_of

START_GRACE_S = 180.0
"""From the launch of a run to its lock: the process has to import everything first."""
HOLDS_LOCK = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
UNFINISHED = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING, *HOLDS_LOCK]


def works_in_home(run: dg.DagsterRun) -> bool:
    """Whether a run has a step of the home's concurrency pool: an iteration, the seed, or a part of them."""
    pools = run.run_op_concurrency
    return pools is not None and CONCURRENCY_POOL in (pools.all_pools or ())


def is_dead(run: dg.DagsterRun, home: Home) -> bool:
    """Whether a run that counts as started has no process any more."""
    return run.status in HOLDS_LOCK and works_in_home(run) and not _is_held(home)


def _is_held(home: Home) -> bool:
    """With an object store also by another host, until its lease has run out."""
    return holder_of(lock_path(home)) is not None or is_running_elsewhere(home)


def living_runs(instance: dg.DagsterInstance, home: Home) -> Sequence[dg.DagsterRun]:
    """Runs that work in the home, or will. A dead one is marked as failed, so that it holds no place in the queue: where Dagster's daemon
    is running its run monitoring does the same; `flywheel run` has none.

    One that has not started may still be about to take the lock: it is given START_GRACE_S.
    """
    records = [record for record in instance.get_run_records(dg.RunsFilter(statuses=UNFINISHED)) if works_in_home(record.dagster_run)]
    if _is_held(home):
        return [record.dagster_run for record in records]
    living = []
    for record in records:
        run, age_s = record.dagster_run, time.time() - record.update_timestamp.timestamp()
        if is_dead(run, home) or (run.status not in (*HOLDS_LOCK, dg.DagsterRunStatus.QUEUED) and age_s > START_GRACE_S):
            instance.report_run_failed(run, "the process of this run is gone")
        else:
            living.append(run)
    return living
