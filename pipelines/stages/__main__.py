"""Entry point of every worker process: reads the request, takes the folder's lock, runs the one function that answers it, stores the
result.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from dagster_pipes import PipesContext, open_dagster_pipes
from pydantic import TypeAdapter

from assets.stages import requests
from assets.stages.requests import StageRequest, StageResult
from pipelines.orchestration.work.finished_work import commits_of
from pipelines.orchestration.work.folder import ERROR, REQUEST, RESULT
from pipelines.stages.context import WorkerContext
from warehouse.core.errors import FlywheelError, MachineLimit, StageFailed, to_plain
from warehouse.core.home import Home, atomic_write
from warehouse.core.locks import FileLock
from warehouse.core.machine import check_address_space, refusal
from warehouse.core.processes import die_with_parent

WORKERS = {
    "initialise": "pipelines.stages.initialise",
    "demonstrate": "pipelines.stages.demonstrate",
    "supervised": "pipelines.stages.supervised",
    "rl": "pipelines.stages.rl",
    "merge": "pipelines.stages.merge",
    "evaluate": "pipelines.stages.evaluate",
    "collect": "pipelines.stages.collect",
    "annotate": "pipelines.stages.annotate",
    "judge": "pipelines.stages.judge",
}
"""Request's `worker` → module with `run(request, context) -> StageResult`; imported only when asked for."""

PAGED = frozenset({"supervised", "rl", "evaluate"})
"""Workers whose results the report's pages of training runs show."""

LOCK_TIMEOUT_S = 20.0
"""How long a killed predecessor may take to vanish."""

REQUEST_TYPES: TypeAdapter[StageRequest] = TypeAdapter(
    requests.InitialiseRequest
    | requests.DemonstrateRequest
    | requests.SupervisedRequest
    | requests.RlRequest
    | requests.MergeRequest
    | requests.EvaluateRequest
    | requests.CollectRequest
    | requests.AnnotateRequest
    | requests.JudgeRequest
)


def main(folder: Path) -> int:
    parent = os.environ.get("FLYWHEEL_PARENT_PID")
    if parent is not None:
        die_with_parent(int(parent))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    request = REQUEST_TYPES.validate_json((folder / REQUEST).read_text())
    lock = FileLock(folder / "lock")  # a stage's process may outlive its run by a moment: the next one must not write beside it
    if not lock.acquire(timeout_s=LOCK_TIMEOUT_S):
        return _leave_error(folder, StageFailed(f"process {lock.holder()} still works in {folder}; end it, then relaunch"))
    try:
        check_address_space()
    except MachineLimit as error:
        return _leave_error(folder, error)
    with open_dagster_pipes() as pipes:
        return _work(folder, request, pipes)


def _work(folder: Path, request: StageRequest, pipes: PipesContext) -> int:
    context = WorkerContext(folder=folder, home=Home.from_env(), iteration=request.iteration, stage=request.stage, log=pipes.log.info)
    try:
        run: Callable[[StageRequest, WorkerContext], StageResult] = import_module(WORKERS[request.worker]).run  # type: ignore[attr-defined]
        started_at, started = time.time(), time.monotonic()
        read = {table: context.warehouse.version(table) for table in request.reads}
        result = run(request, context)
    except FlywheelError as error:
        return _leave_error(folder, error)
    except Exception as error:
        traceback.print_exc()
        return _leave_error(folder, refusal(error, Home.from_env().root) or error)
    commits = commits_of(context.warehouse, result.table_versions)
    figures = {"read_versions": read, "commits": commits, "started_at": started_at, "duration_s": time.monotonic() - started}
    result = result.model_copy(update=figures)
    atomic_write(folder / RESULT, result.model_dump_json().encode())
    context.clean_up()
    if request.worker in PAGED:  # type: ignore[attr-defined]
        _write_pages(context)
    return 0


def _write_pages(context: WorkerContext) -> None:
    """The report's pages of the iteration, as of now. The stage is done whether they can be written or not."""
    from pipelines.reporting.build import build_iteration

    try:
        build_iteration(context.warehouse, context.iteration, context.home.reports)
    except Exception as error:  # whatever it is, the stage's work is done and stored
        context.log(f"the report's pages could not be written: {error}")


def _leave_error(folder: Path, error: Exception) -> int:
    atomic_write(folder / ERROR, json.dumps(to_plain(error)).encode())
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    status = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is on disk by now. Prefect's client would go on for minutes to deliver its events to a server that has been killed.
    os._exit(status)
