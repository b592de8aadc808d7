"""The StageRunner that assets get: it runs `python -m pipelines.stages` through Dagster Pipes, one subprocess a stage, or one job of a Ray
cluster where the run's profile says so.

The two exchange files in the stage's folder (pipelines/orchestration/work/folder.py). A finished request is not worked again; a
half-finished one is handed to a new worker, which resumes from what it finds; a different request in the same folder starts afresh.

That is how the jobs that complete an iteration or the seed go on. In any other run the stage is what was asked for
(`assets.stages.stage_assets.is_asked_for`): it is worked again, once. What such a run has begun, a re-execution of it resumes.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import dagster as dg

from assets.stages.failures import failure
from assets.stages.requests import StageRequest, StageResult
from assets.stages.resources import StageRunner
from assets.stages.stage_assets import is_asked_for
from pipelines.orchestration.runs import profile as run_profile
from pipelines.orchestration.work.finished_work import find_loss
from pipelines.orchestration.work.folder import (
    ERROR,
    REQUEST,
    finished_result,
    forget_result,
    is_same_work,
    start_afresh,
    work_folder,
    worker_command,
    worker_environment,
)
from warehouse.core.disk import storage_full
from warehouse.core.errors import CorruptTable, FlywheelError, WorkerKilled, to_plain
from warehouse.core.home import Home, atomic_write
from warehouse.core.machine import FULL_DISK_BYTES
from warehouse.storage.tables import Warehouse


class PipesStageRunner(StageRunner):
    """Runs each stage in a process of its own, once; streams its log to Dagster, which starts it again where the error says so."""

    root: str

    def run(self, context: dg.AssetExecutionContext, request: StageRequest) -> StageResult:
        folder = self._folder(request.iteration, request.stage)
        if is_asked_for(context.run):
            start_afresh(folder, context.run.root_run_id or context.run.run_id)
        stored = finished_result(folder, request)
        what = f"{request.stage} of iteration {request.iteration}"
        if stored is not None and (loss := self._find_loss(what, stored)) is not None:
            context.log.warning(f"{what} was finished before, but {loss}: it is worked again")
            forget_result(folder)
        elif stored is not None:
            context.log.info(f"{what} was finished before; its result is reused")
            return stored
        self._prepare(folder, request)
        try:
            self._work(context, folder)
        except dg.DagsterExecutionInterruptedError:
            raise
        except FlywheelError as error:
            raise failure(what, to_plain(error)) from error
        except Exception as error:
            raise self._failure(folder, what, error) from error
        result = finished_result(folder, request)
        if result is None:
            killed = WorkerKilled(f"the worker ended well and without a result; its folder is {folder}")
            raise failure(what, to_plain(killed))
        return result

    def _work(self, context: dg.AssetExecutionContext, folder: Path) -> None:
        """Have a worker work in the folder until it ends."""
        settings = run_profile.load(run_profile.config_of(context.run.run_config)).runner
        env = worker_environment(Home(Path(self.root)))
        if settings.kind == "ray":
            from pipelines.cluster.stage_jobs import run_as_job

            run_as_job(context, folder, settings, env)
        else:
            client = dg.PipesSubprocessClient(env={**env, "FLYWHEEL_PARENT_PID": str(os.getpid())})
            client.run(context=context, command=worker_command(folder))

    def _find_loss(self, what: str, result: StageResult) -> str | None:
        try:
            return find_loss(Warehouse(Home(Path(self.root))), result)
        except CorruptTable as error:
            raise failure(what, to_plain(error)) from error

    def forget(self, iteration: str, stage: str) -> None:
        shutil.rmtree(self._folder(iteration, stage), ignore_errors=True)

    def _folder(self, iteration: str, stage: str) -> Path:
        return work_folder(Home(Path(self.root)), iteration, stage)

    @staticmethod
    def _prepare(folder: Path, request: StageRequest) -> None:
        wanted = request.model_dump_json()
        stored = folder / REQUEST
        if stored.exists() and not is_same_work(stored.read_text(), request):
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ERROR).unlink(missing_ok=True)
        atomic_write(stored, wanted.encode())

    @staticmethod
    def _failure(folder: Path, what: str, error: Exception) -> dg.Failure:
        """The worker's own words where it left some, else how it ended."""
        try:
            left = json.loads((folder / ERROR).read_text())
        except FileNotFoundError:
            is_full = shutil.disk_usage(folder).free < FULL_DISK_BYTES
            full = storage_full("what the stage writes", folder, then="launch again")
            left = to_plain(full if is_full else WorkerKilled(f"the worker ended without a word: {error}"))
        return failure(what, left, **{"worker folder": dg.MetadataValue.path(str(folder))})
