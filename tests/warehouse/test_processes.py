"""Processes that end with others: real ones, killed without a chance to clean up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from warehouse.core.processes import end_group

SLEEP = "import time; time.sleep(120)"
DEADLINE_S = 30.0
FORWARD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]])
print(child.pid, flush=True)
child.wait()
"""
"""A parent that starts a Python program, says its pid and waits for it."""


def within(is_so: Callable[[], bool], seconds: float = DEADLINE_S) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_so():
            return True
        time.sleep(0.05)
    return False


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `python -c PROGRAM …` in a session of its own; whatever is left of it is killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_child_dies_with_its_parent(python):
    child = f"from warehouse.core.processes import die_with_parent; die_with_parent(); print('ready', flush=True); {SLEEP}"
    parent = python(FORWARD, child)
    pid = int(first_line(parent))
    assert first_line(parent) == "ready"
    parent.kill()
    assert within(lambda: is_gone(pid))


def test_a_child_whose_parent_is_gone_already_ends_at_once(python):
    process = python(f"from warehouse.core.processes import die_with_parent; die_with_parent(1 << 22); {SLEEP}")
    assert process.wait(DEADLINE_S) == 1


def test_a_process_dies_with_another_that_is_not_its_parent(python):
    watched = python(SLEEP)
    watching = python(
        f"import sys; from warehouse.core.processes import die_with; die_with({watched.pid}); print('ready', flush=True); {SLEEP}"
    )
    assert first_line(watching) == "ready"
    assert watching.poll() is None
    watched.kill()
    watched.wait()
    assert watching.wait(DEADLINE_S) == 1


def test_watching_a_process_that_is_gone_already_ends_at_once(python):
    watched = python("pass")
    watched.wait(DEADLINE_S)
    watching = python(f"from warehouse.core.processes import die_with; die_with({watched.pid}); {SLEEP}")
    assert watching.wait(DEADLINE_S) == 1


def test_a_group_is_ended_with_its_grandchildren(python):
    parent = python(FORWARD, SLEEP)
    grandchild = int(first_line(parent))
    end_group(parent.pid, grace_s=0.3)  # a machine that reaps no orphans shows their group until the end of it
    assert is_gone(parent.pid) and is_gone(grandchild)


@pytest.mark.slow
def test_what_is_left_of_a_group_is_ended_after_its_leader(python):
    leader = python("import subprocess; print(subprocess.Popen(['sleep', '60']).pid)")
    left = int(first_line(leader))
    leader.wait(DEADLINE_S)
    end_group(leader.pid)
    assert within(lambda: is_gone(left))


def test_what_ignores_the_request_is_killed(python):
    deaf = python(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); {SLEEP}")
    assert first_line(deaf) == "ready"
    started = time.monotonic()
    end_group(deaf.pid, grace_s=0.3)
    assert is_gone(deaf.pid)
    assert time.monotonic() - started < DEADLINE_S


def test_ending_a_group_that_is_gone_is_fine(python):
    process = python("pass")
    process.wait(DEADLINE_S)
    end_group(process.pid)
