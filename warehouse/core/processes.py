"""Processes that must not outlive their parent, and how to end those that did. Linux has a kernel facility for it; elsewhere a thread
watches.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
WATCH_INTERVAL_S = 0.5


def die_with_parent(parent_pid: int | None = None) -> None:
    """End this process when its parent ends, however that ends. `parent_pid` closes the race between the fork and this call."""
    expected = parent_pid if parent_pid is not None else os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch_parent, args=(expected,), name="watch-parent", daemon=True).start()
    if os.getppid() != expected:
        os._exit(1)


def die_with(pid: int) -> None:
    """End this process when another one, not its parent, ends: a thread waits for that. Ends at once when it is gone already."""
    threading.Thread(target=_watch_process, args=(pid,), name=f"watch-{pid}", daemon=True).start()


def wait_for_end(pid: int) -> None:
    """Block until a process, any process, is gone."""
    try:
        if hasattr(os, "pidfd_open"):
            watched = os.pidfd_open(pid)
            select.select([watched], [], [])
            os.close(watched)
        else:
            while True:
                os.kill(pid, 0)
                time.sleep(WATCH_INTERVAL_S)
    except ProcessLookupError:
        return


def _watch_process(pid: int) -> None:
    wait_for_end(pid)
    os._exit(1)


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(WATCH_INTERVAL_S)
    os._exit(1)


def environment_of_child() -> dict[str, str]:
    """This process's environment with its import path, so that a child finds modules wherever it runs."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)}


def end_group(pid: int, *, grace_s: float = 5.0) -> None:
    """SIGTERM to a process group that we started, SIGKILL to what is left of it after the grace period. Gone already is fine."""
    for sig, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 1.0)):
        try:
            os.killpg(pid, sig)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            try:
                os.killpg(pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.05)
