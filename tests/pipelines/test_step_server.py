"""Steps are forked from a process that has imported what they need."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipelines.orchestration.runs import step_server

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


def fork_and_wait() -> None:
    """A run whose step works on and on."""
    step_server.start()
    step = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(1000,))
    step.start()
    print(step.pid, flush=True)
    step.join()


def of_this_file(function: str) -> list[str]:
    """The command of a process of its own that calls a function of this file."""
    program = f"import sys; sys.path.insert(0, 'tests/pipelines'); import test_step_server; test_step_server.{function}()"
    return [sys.executable, "-c", program]


@pytest.mark.slow
def test_a_step_finds_everything_imported_and_knows_its_run():
    ran = subprocess.run(of_this_file("start_and_fork"), cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_a_step_ends_with_its_run():
    with subprocess.Popen(of_this_file("fork_and_wait"), cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        step = psutil.Process(int(run.stdout.readline()))
        server = step.parent()
        assert server is not None
        assert server.ppid() == run.pid
        run.kill()
    assert psutil.wait_procs([step, server], timeout=30)[1] == []
