"""Programs that end with another process, whatever they started themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil

ASKING = """
import os, subprocess, sys
command = [sys.executable, "-m", "pipelines.orchestration.services.guard", str(os.getpid()), sys.executable, "-c", *sys.argv[1:]]
subprocess.Popen(command, start_new_session=True).wait()
"""
STARTING = """
import subprocess, sys
child = subprocess.Popen(["sleep", "120"])
print(child.pid, flush=True)
child.wait()
"""
DEADLINE_S = 30.0


def test_a_guarded_group_ends_with_the_one_who_asked_for_it():
    with subprocess.Popen([sys.executable, "-c", ASKING, STARTING], stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        grandchild = int(asking.stdout.readline())
        (guard,) = psutil.Process(asking.pid).children()
        try:
            members = [guard, *guard.children(recursive=True)]
            assert grandchild in [member.pid for member in members]
            asking.kill()
            _, left = psutil.wait_procs(members, timeout=DEADLINE_S)
            assert [member for member in left if member.status() != psutil.STATUS_ZOMBIE] == []
        finally:
            with suppress(ProcessLookupError):
                os.killpg(guard.pid, signal.SIGKILL)


def test_a_guard_ends_as_its_program_does():
    ran = subprocess.run(
        [sys.executable, "-m", "pipelines.orchestration.services.guard", str(os.getpid()), sys.executable, "-c", "raise SystemExit(7)"],
        start_new_session=True,
    )
    assert ran.returncode == 7
