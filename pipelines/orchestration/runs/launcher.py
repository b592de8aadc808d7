"""Dagster's default launcher of runs, which also says whether the process of a run is alive: so Dagster's run monitoring ends what is dead.

Loaded by the instance (dagster.yaml) in the webserver and the daemon, too: imports nothing of ours that is heavy.
"""

from __future__ import annotations

import dagster as dg
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher

from pipelines.orchestration.runs.living_runs import is_dead
from warehouse.core.home import Home


class HomeRunLauncher(DefaultRunLauncher):
    """Of the runs that work in a FLYWHEEL_HOME it knows; any other counts as alive, as with Dagster's own."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        if is_dead(run, Home.from_env()):
            return CheckRunHealthResult(WorkerStatus.FAILED, "the process of this run is gone")
        return CheckRunHealthResult(WorkerStatus.RUNNING)
