"""Imported once by the server of a run's steps: brings in what each of them would import.

It never fails, for then no step could start: a step imports again what is missing, and says itself what is wrong with it.
"""

from __future__ import annotations

import contextlib
import warnings
from importlib import import_module

from pipelines.step_server import PRELOADED

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in PRELOADED:
        with contextlib.suppress(Exception):
            import_module(name)
