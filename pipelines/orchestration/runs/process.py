"""One Dagster run in this process: `python -m pipelines.orchestration.runs.process JOB [ITERATION]`. What `flywheel run`
starts, and kills, as a whole.

The run is the same job on the same instance as a launch from the UI; only the process that holds it differs. Dagster is imported inside the
functions, while the server of the steps imports it too.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pipelines.orchestration.instance import open_instance, prepare
from pipelines.orchestration.runs import step_server
from warehouse.core.errors import FlywheelError, to_plain
from warehouse.core.home import Home
from warehouse.core.machine import check_address_space, refusal
from warehouse.core.processes import die_with_parent

if TYPE_CHECKING:
    import dagster as dg


def seed_iteration() -> dg.JobDefinition:
    from pipelines.definitions import defs

    return defs.resolve_job_def("seed_iteration")


def iteration() -> dg.JobDefinition:
    from pipelines.definitions import defs

    return defs.resolve_job_def("iteration")


LAST_WORDS = "FLYWHEEL_LAST_WORDS"
"""Variable with a descriptor of a pipe: what ends a run by name is written there too, as a full disk takes no log."""
CODE_LOCATION, REPOSITORY = "pipelines.definitions", "__repository__"
"""As `dagster dev -m pipelines.definitions` (pipelines/cli/runs/ui.py) names them."""
JOBS = {"seed_iteration": seed_iteration, "iteration": iteration}


def main(job: str, key: str | None, run_tag: str) -> int:
    """A named error that ends it is printed, left for the parent (LAST_WORDS), and kept with the run where that can still be written."""
    home = Home.from_env()
    try:
        return _run(home, job, key, run_tag)
    except Exception as error:
        named = error if isinstance(error, FlywheelError) else refusal(error, home.root)
        if named is None:
            raise
        _leave(named)
        with suppress(Exception):  # the disk may be full, or the database damaged
            _report_failed(home, run_tag, named)
        return 1


def _run(home: Home, job: str, key: str | None, run_tag: str) -> int:
    check_address_space()
    os.environ.update(prepare(home))
    step_server.start()  # with the environment that its steps are to have
    import dagster as dg
    import psutil
    from dagster._core.execution.api import execute_run

    from pipelines.orchestration.runs.executor import LAUNCH_TAG, LAUNCHED_TAG

    instance = open_instance(home)
    tags = {LAUNCH_TAG: run_tag, LAUNCHED_TAG: str(psutil.Process().create_time()), **({"dagster/partition": key} if key else {})}
    definition = dg.reconstructable(JOBS[job])
    with execute_run(definition, _create_run(instance, definition, job, tags), instance) as result:
        return 0 if result.success else 1


def _leave(error: FlywheelError) -> None:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    if (descriptor := os.environ.get(LAST_WORDS)) is not None:
        os.write(int(descriptor), json.dumps(to_plain(error)).encode())


def _report_failed(home: Home, run_tag: str, error: FlywheelError) -> None:
    import dagster as dg

    from pipelines.orchestration.runs.executor import LAUNCH_TAG

    instance = open_instance(home)
    for run in instance.get_runs(dg.RunsFilter(tags={LAUNCH_TAG: run_tag})):
        instance.report_run_failed(run, str(error))


def _create_run(instance: dg.DagsterInstance, definition: Any, job: str, tags: Mapping[str, str]) -> dg.DagsterRun:
    """The run's record, with the code location that Dagster's page knows the job by: without it the page cannot re-execute the run.
    `dg.execute_job` leaves it out, and has no argument for it."""
    from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

    from pipelines import profiles
    from pipelines.orchestration.runs import profile as run_profile

    location = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(CODE_LOCATION), REPOSITORY)
    return instance.create_run_for_job(
        definition.get_definition(),
        run_config=run_profile.run_config(*profiles.chosen_by_env({})),
        tags=tags,
        remote_job_origin=location.get_job_origin(job),
        job_code_origin=definition.get_python_origin(),
    )


if __name__ == "__main__":
    parent = os.environ.get("FLYWHEEL_PARENT_PID")
    if parent is not None:
        die_with_parent(int(parent))
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None, os.environ.get("FLYWHEEL_LAUNCH") or uuid.uuid4().hex))
