"""Runs a module of an application as its program, with a clock of its own: `serve.py MODULE [ARGUMENT …]`, in the jail.

Applications write times and show them ("3 minutes ago"). Theirs begins at START in every episode and moves on by a millisecond each time
that it is looked at, so that an episode shows and stores the same whenever it runs. The monotonic clock, by which programs
wait, is left alone.
"""

from __future__ import annotations

import datetime
import os
import runpy
import sys
import time
from itertools import count
from typing import Any

LOG = "/tmp/app.log"
START_S = 1_767_258_000.0  # 2026-01-01 09:00 UTC
_TICKS, _MEASURED = count(), count()
_real = datetime.datetime


def now_s() -> float:
    return START_S + next(_TICKS) / 1000


def measured_s() -> float:
    """What took how long is shown too ("Queries took 1.0ms"): a millisecond between two looks."""
    return next(_MEASURED) / 1000


class _Kind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _real)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, _real)


class Clocked(_real, metaclass=_Kind):
    """datetime.datetime, but for what time it is."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return _real.fromtimestamp(now_s(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return _real.fromtimestamp(now_s(), datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return cls.now()


def main(module: str, arguments: list[str]) -> None:
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    time.time = now_s
    time.perf_counter = measured_s
    datetime.datetime = Clocked  # type: ignore[misc]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.path.insert(0, "/opt/app")
    main(sys.argv[1], sys.argv[2:])
