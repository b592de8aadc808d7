"""Imported once by the server of a run's steps: brings in what each of them would import, and ends each of them with its run.

It never fails, for then no step could start: a step imports again what is missing, and says itself what is wrong with it.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from importlib import import_module

from pipelines.orchestration.runs.step_server import PRELOADED, RUN_PID_VARIABLE
from warehouse.core.processes import die_with


def _end_with_run() -> None:
    """A step's parent is the server, which lives as long as its steps do: only this ends a step when the run ends, however it ended."""
    die_with(int(os.environ[RUN_PID_VARIABLE]))


os.register_at_fork(after_in_child=_end_with_run)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in PRELOADED:
        with contextlib.suppress(Exception):
            import_module(name)
