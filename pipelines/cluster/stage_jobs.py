"""A stage as a job of a Ray cluster instead of a process beside Dagster, by dagster-ray's Pipes client: it streams the job's log, and stops
the job when the run is cancelled.

Request, result, error and progress lie in the stage's folder as ever, so the cluster's nodes must share the file system of the home. A job
whose run was killed goes on by itself: the next start of the stage stops it first.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import dagster as dg

from assets.settings.execution import RunnerSettings
from pipelines.cluster.connection import import_ray
from pipelines.orchestration.work.folder import worker_command
from warehouse.core.errors import ConfigError, ServerUnreachable, StageFailed, missing_extra
from warehouse.core.home import atomic_write
from warehouse.core.plugins import VARIABLES

JOB = "ray_job"
"""File of a stage's folder: the id of its job."""
PASSED = ("FLYWHEEL_STORE", *VARIABLES.values())
"""What a job gets of this process's environment. No secrets: everyone who sees the cluster's page could read them there."""
STOP_LIMIT_S = 60.0
POLL_S = 0.5


def run_as_job(context: dg.AssetExecutionContext, folder: Path, settings: RunnerSettings, env: Mapping[str, str]) -> None:
    """Returns once the job has succeeded. Raises ConfigError, ServerUnreachable, and RuntimeError for a job that failed or was stopped."""
    import_ray()
    try:
        from dagster_ray.core.pipes import PipesRayJobClient, PipesRayJobMessageReader
    except ModuleNotFoundError as error:
        raise ConfigError(missing_extra(error.name, "ray")) from error

    class Reader(PipesRayJobMessageReader):
        """Theirs leaves the event loop of its thread open."""

        def handle_job_logs(self, handler: Any) -> None:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            try:
                super().handle_job_logs(handler)
            finally:
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.close()

    pipes = PipesRayJobClient(address=settings.address, poll_interval=POLL_S, message_reader=Reader())
    try:
        jobs = pipes.client
    except (ConnectionError, RuntimeError) as error:
        raise _unreachable(settings, error) from error
    _stop_earlier(jobs, folder)
    wanted = job_request(folder, settings, env)
    atomic_write(folder / JOB, wanted["submission_id"].encode())
    pipes.run(context=context, submit_job_params=cast(Any, wanted))


def job_server(settings: RunnerSettings) -> str:
    """The address at which a job server has answered. Raises ConfigError without the extra, and ServerUnreachable."""
    import_ray()
    from ray.job_submission import JobSubmissionClient

    try:
        return str(JobSubmissionClient(settings.address).get_address())
    except (ConnectionError, RuntimeError) as error:
        raise _unreachable(settings, error) from error


def _unreachable(settings: RunnerSettings, error: Exception) -> ServerUnreachable:
    return ServerUnreachable(
        f"no Ray job server answers at runner.address {settings.address or 'RAY_API_SERVER_ADDRESS'!r}: {error}. It is the page of the "
        "head, http://HEAD:8265 by default (`ray start --head --dashboard-host …`)"
    )


def job_request(folder: Path, settings: RunnerSettings, env: Mapping[str, str]) -> dict[str, Any]:
    """What the job server is asked for, by the names of Ray's job submission API."""
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    wanted: dict[str, Any] = {
        "entrypoint": shlex.join(worker_command(folder)),
        "submission_id": f"{folder.parent.name}-{folder.name}-{uuid4().hex[:8]}",
        "runtime_env": {"env_vars": {**passed, **env}},
        "entrypoint_num_cpus": settings.cpus,
        "entrypoint_num_gpus": settings.gpus,
        "entrypoint_resources": settings.resources,
    }
    return {name: value for name, value in wanted.items() if value}


def _stop_earlier(jobs: Any, folder: Path) -> None:
    """Stop the job of an earlier start that still works in the folder."""
    try:
        job = (folder / JOB).read_text()
        status = jobs.get_job_status(job)
    except (FileNotFoundError, RuntimeError):  # there was none, or the cluster has not heard of it
        return
    if status.is_terminal():
        return
    jobs.stop_job(job)
    deadline = time.monotonic() + STOP_LIMIT_S
    while not jobs.get_job_status(job).is_terminal():
        if time.monotonic() > deadline:
            raise StageFailed(
                f"the Ray job {job} of an earlier start did not stop within {STOP_LIMIT_S:g} s: `ray job stop {job}`, then relaunch"
            )
        time.sleep(POLL_S)
