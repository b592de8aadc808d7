"""Locks that say which process runs an iteration in a home. Light: whoever only asks does not import Dagster."""

from __future__ import annotations

from pathlib import Path

from warehouse.core.home import Home
from warehouse.core.locks import holder_of

LOCK_NAME = "iteration.lock"


def lock_path(home: Home) -> Path:
    """Held by the process that works an iteration: no two on a home, whoever started them, and a run without it is dead (executor.py)."""
    return home.locks / LOCK_NAME


def driver_path(home: Home) -> Path:
    """Held by `flywheel run` from its first iteration to its last: a second one is refused between two iterations too, when nobody holds
    the iteration's lock."""
    return home.locks / "run.lock"


def running_process(home: Home) -> int | None:
    """The process that runs an iteration in a home now, if there is one."""
    return holder_of(driver_path(home)) or holder_of(lock_path(home))
