"""Steps are forked from a process that has imported what they need."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines import step_server

ROOT = Path(__file__).resolve().parents[2]


def report(queue: multiprocessing.Queue[tuple[list[str], str | None]]) -> None:
    missing = [name for name in step_server.PRELOADED if name not in sys.modules]
    queue.put((missing, os.environ.get(step_server.RUN_PID_VARIABLE)))


def start_and_fork() -> None:
    """What a run does, without its executor; started twice, as `flywheel run` and the executor both do."""
    step_server.start()
    step_server.start()
    context = multiprocessing.get_context("forkserver")
    queue = context.Queue()
    step = context.Process(target=report, args=(queue,))
    step.start()
    missing, run_pid = queue.get(timeout=100)
    step.join()
    assert (missing, run_pid) == ([], str(os.getpid()))


@pytest.mark.slow
def test_a_step_finds_everything_imported_and_knows_its_run():
    program = "import sys; sys.path.insert(0, 'tests/pipelines'); import test_step_server; test_step_server.start_and_fork()"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert ran.returncode == 0, ran.stderr
