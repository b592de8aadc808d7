"""The StageRunner that assets get: it runs `python -m pipelines.stages` through Dagster Pipes, one subprocess a stage.

What the two tell each other lies in the stage's folder (pipelines/orchestration/work_folder.py). A finished request is not worked again; a
half-finished one is handed to a new worker, which resumes from what it finds; a different request in the same folder starts afresh. So does
the same one in a run that is tagged FRESH_TAG, once: what that run itself has begun it resumes, and what it has finished it keeps.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import dagster as dg

from assets.requests import StageRequest, StageResult
from assets.resources import ERROR_TYPE, FINAL, StageRunner
from pipelines.orchestration.finished_work import find_loss
from pipelines.orchestration.work_folder import ERROR, REQUEST, finished_result, forget_result, start_afresh, work_folder
from warehouse.core.disk import storage_full
from warehouse.core.errors import CorruptTable
from warehouse.core.home import Home, atomic_write
from warehouse.core.machine import NO_ROOM_BYTES
from warehouse.storage.tables import Warehouse

FRESH_TAG = "flywheel/fresh"
"""On a run that works its stages again, whatever earlier runs left of them."""
THREADS = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
"""One thread a worker unless the environment says otherwise: stages run side by side, and a tiny model only waits for a second thread."""
NO_RETRY = (
    "ConfigError",
    "CheckpointError",
    "MergeError",
    "TrainingDiverged",
    "ValueGateNotPassed",
    "NothingToLearn",
    "StorageFull",
    "MachineLimit",
    "CorruptDatabase",
    "BrowserMissing",
    "BubblewrapMissing",
    "TaskError",
    "CorruptTable",
    "SchemaMismatch",
    "ContaminatedDataset",
)
"""Errors that the same request would only meet again, or that somebody should mend something after first."""


class PipesStageRunner(StageRunner):
    """Runs each stage in a subprocess of its own; streams its log to Dagster; retries what may pass by itself."""

    root: str

    def run(self, context: dg.AssetExecutionContext, request: StageRequest) -> StageResult:
        folder = self._folder(request.iteration, request.stage)
        if FRESH_TAG in context.run.tags:
            start_afresh(folder, context.run.root_run_id or context.run.run_id)
        stored = finished_result(folder, request)
        what = f"{request.stage} of iteration {request.iteration}"
        if stored is not None and (loss := self._find_loss(stored)) is not None:
            context.log.warning(f"{what} was finished before, but {loss}: it is worked again")
            forget_result(folder)
        elif stored is not None:
            context.log.info(f"{what} was finished before; its result is reused")
            return stored
        self._prepare(folder, request)
        client = dg.PipesSubprocessClient(env={**THREADS, "FLYWHEEL_HOME": self.root, "FLYWHEEL_PARENT_PID": str(os.getpid())})
        try:
            client.run(context=context, command=[sys.executable, "-m", "pipelines.stages", str(folder)])
        except dg.DagsterExecutionInterruptedError:
            raise
        except Exception as error:
            raise self._failure(folder, request, error) from error
        result = finished_result(folder, request)
        if result is None:
            raise dg.Failure(f"the worker of {request.stage} ended without a result; its folder is {folder}")
        return result

    def _find_loss(self, result: StageResult) -> str | None:
        try:
            return find_loss(Warehouse(Home(Path(self.root))), result)
        except CorruptTable as error:
            raise dg.Failure(
                description=f"CorruptTable: {error}", metadata={ERROR_TYPE: "CorruptTable", FINAL: True}, allow_retries=False
            ) from error

    def forget(self, iteration: str, stage: str) -> None:
        shutil.rmtree(self._folder(iteration, stage), ignore_errors=True)

    def _folder(self, iteration: str, stage: str) -> Path:
        return work_folder(Home(Path(self.root)), iteration, stage)

    @staticmethod
    def _prepare(folder: Path, request: StageRequest) -> None:
        wanted = request.model_dump_json()
        stored = folder / REQUEST
        if stored.exists() and stored.read_text() != wanted:
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ERROR).unlink(missing_ok=True)
        atomic_write(stored, wanted.encode())

    @staticmethod
    def _failure(folder: Path, request: StageRequest, error: Exception) -> dg.Failure:
        """The worker's own words where it left some, else how it ended."""
        try:
            left = json.loads((folder / ERROR).read_text())
        except FileNotFoundError:
            left = {"type": "WorkerKilled", "message": f"the worker ended without a word: {error}"}
            if shutil.disk_usage(folder).free < NO_ROOM_BYTES:
                left = {"type": "StorageFull", "message": str(storage_full("what the stage writes", folder, then="launch again"))}
        is_final = left["type"] in NO_RETRY
        return dg.Failure(
            description=f"{request.stage} of iteration {request.iteration}: {left['type']}: {left['message']}",
            metadata={"worker folder": dg.MetadataValue.path(str(folder)), ERROR_TYPE: left["type"], FINAL: is_final},
            allow_retries=not is_final,
        )
