"""The process from which a run's steps are forked. It has imported what they need, so that no step imports it again.

Dagster's multiprocess executor would start such a server with its first step; `start` is earlier, so that the server imports while the run
itself does. Imports nothing heavy for that reason.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver

PRELOADED = (
    "pipelines.definitions",
    "dagster._core.executor.multiprocess",
    "dagster._core.storage.sqlite_storage",
    "dagster._utils.test",  # by which Dagster finds a job again
    "upath",
    "great_expectations",
)
"""What pipelines/orchestration/runs/step_preload.py imports in the server."""
PRELOAD = "pipelines.orchestration.runs.step_preload"
RUN_PID_VARIABLE = "FLYWHEEL_RUN_PID"
"""The process of a step's run, with which the step ends (pipelines/orchestration/runs/step_preload.py)."""


def start() -> None:
    """Start the server of this process, the run's, unless it has one."""
    os.environ[RUN_PID_VARIABLE] = str(os.getpid())
    multiprocessing.set_forkserver_preload([PRELOAD])
    forkserver.ensure_running()
