"""Processes: what a measured one reports, and which ones run for a home."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import psutil


def peak_mb() -> float:
    """Highest resident memory of this process; the kernel's other figure, ru_maxrss, begins with the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def processes_of(base: Path) -> list[psutil.Process]:
    """Whatever runs for a home in folder `base`, browsers included: it carries the folder in its environment or its command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE and _carries(process, str(base)):
                found.append(process)
    return found


def _carries(process: psutil.Process, mark: str) -> bool:
    return any(mark in part for part in process.cmdline()) or any(mark in value for value in process.environ().values())


def left_after(base: Path, seconds: float) -> list[str]:
    """The command lines of what still runs for a home after so long; returns as soon as there is nothing."""
    deadline = time.monotonic() + seconds
    while (left := processes_of(base)) and time.monotonic() < deadline:
        time.sleep(0.2)
    described = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            described.append(f"{process.pid} {' '.join(process.cmdline())[:300]}")
    return described
