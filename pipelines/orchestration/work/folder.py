"""The folder of one stage's work, FLYWHEEL_HOME/work/<iteration>/<stage>: the files that the runner of a stage and its worker exchange.

request.json, then result.json or error.json; progress.json is pipelines/orchestration/work/progress.py's. Imports nothing heavy: every
worker reads it first.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from assets.stages.requests import StageRequest, StageResult
from warehouse.core.home import Home, atomic_write

REQUEST, RESULT, ERROR, FRESH = "request.json", "result.json", "error.json", "fresh"
THREADS = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
"""One thread a worker unless the environment says otherwise: stages run side by side, and a tiny model only waits for a second thread."""


def work_folder(home: Home, iteration: str, stage: str) -> Path:
    return home.work / iteration / stage


def worker_command(folder: Path) -> list[str]:
    """What works in a stage's folder, beside Dagster or as a job of a cluster."""
    return [sys.executable, "-m", "pipelines.stages", str(folder)]


def worker_environment(home: Home) -> dict[str, str]:
    """What a worker gets beside the environment that it starts in."""
    return {**THREADS, "FLYWHEEL_HOME": str(home.root)}


def is_same_work(stored: str, request: StageRequest) -> bool:
    """Whether a stored request asks for the same result. In how many processes, and on which hosts, it is trained does not count."""
    return bool(_work(stored) == _work(request.model_dump_json()))


def _work(text: str) -> Any:
    try:
        asked = json.loads(text)
    except ValueError:
        return text
    asked.pop("hosts", None)
    for name in ("num_processes", "zero_stage"):
        asked.get("config", {}).pop(name, None)
    return asked


def finished_result(folder: Path, request: StageRequest) -> StageResult | None:
    """The stored result, if exactly this request was worked to its end."""
    try:
        if not is_same_work((folder / REQUEST).read_text(), request):
            return None
        return StageResult.model_validate_json((folder / RESULT).read_text())
    except (FileNotFoundError, ValidationError, UnicodeDecodeError):  # no result, or what a power cut of before left of one
        return None


def forget_result(folder: Path) -> None:
    """Have the stage worked again from its beginning: what it had put into its folder led to the result."""
    shutil.rmtree(folder, ignore_errors=True)


def start_afresh(folder: Path, run_id: str) -> None:
    """Empty a stage's folder of what other runs than this one left in it."""
    mark = folder / FRESH
    if mark.exists() and mark.read_text() == run_id:
        return
    shutil.rmtree(folder, ignore_errors=True)
    atomic_write(mark, run_id.encode())
