"""Runs a program, and ends all processes that it leaves: also those in another session, or whose parent is gone. It runs standalone, under
`python -I -S`, with the standard library alone.

    supervisor.py PARENT GRACE_S PROGRAM ARGUMENT …

When PARENT, the process that started it, is gone, and on SIGTERM, the program ends: SIGTERM, and SIGKILL after the grace. The exit
status is the program's; 128 and the signal where a signal ended it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CANNOT_START = 127
POLL_S = 0.02
KILLED_S = 2.0
"""Within so many seconds of SIGKILL a process is gone."""
LIBC = ctypes.CDLL(None)


class Terminated(Exception):
    """SIGTERM has come: the program ends."""


def main(parent: int, grace_s: float, argv: list[str]) -> int:
    signal.signal(signal.SIGTERM, _terminate)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return CANNOT_START
    try:
        status = _wait_for(_start(argv))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except Terminated:
        status = 128 + signal.SIGTERM
    _end_all(grace_s)
    return status


def _terminate(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def _start(argv: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.execv(argv[0], argv)
    except BaseException as error:
        print(f"{argv[0]} cannot be started: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(CANNOT_START)


def _wait_for(program: int) -> int:
    """Reaps also what the program left behind."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_all(grace_s: float) -> None:
    """Until nothing descends from us, but for what another user runs: a process whose parent ends becomes our child."""
    deadline_s, signalled = time.monotonic() + grace_s, set[int]()
    while _has_children() and time.monotonic() < deadline_s + KILLED_S:
        is_late, pids = time.monotonic() > deadline_s, _descendants()
        for pid in pids if is_late else pids - signalled:
            _signal(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        signalled |= pids
        time.sleep(POLL_S)


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _descendants() -> set[int]:
    parents = {int(name): parent for name in os.listdir("/proc") if name.isdigit() and (parent := _parent(name)) is not None}
    found, more = set[int](), {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in more} - found:
        found |= more
    return found


def _parent(pid: str) -> int | None:
    """None for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return None


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
