"""Processes of this machine that train together, whoever starts them: how one is started, the error that it leaves behind, its last words.

Who they are is the business of models/supervised/distributed.py (torchrun's) and models/rl/ranks.py (a trainer's own).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from warehouse.core.errors import FlywheelError, ModelError, from_plain, to_plain
from warehouse.core.home import atomic_write

LAST_WORDS = 2000
"""Characters of a log that an error repeats."""


def start(arguments: Sequence[str], log: Path, *, is_spoken_to: bool = False) -> subprocess.Popen[bytes]:
    """This Python with these arguments and this process's import path, its output in `log`, in a session of its own: Ctrl-C at a terminal
    reaches its starter alone, which ends it. `is_spoken_to` leaves its standard input to the caller."""
    with log.open("wb") as said:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE if is_spoken_to else subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=_environment(),
            start_new_session=True,
        )


def _environment() -> dict[str, str]:
    """This process's, with its import path, wherever it was started. One thread each unless the environment says otherwise."""
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def leave_error(path: Path, error: FlywheelError) -> None:
    """Write down what ends this process, for whoever started it."""
    atomic_write(path, json.dumps(to_plain(error)).encode())


def left_error(path: Path) -> FlywheelError | None:
    """What `leave_error` wrote; None where nobody did."""
    try:
        return from_plain(json.loads(path.read_text()), ModelError)
    except FileNotFoundError:
        return None


def last_words(log: Path) -> str:
    return log.read_text(errors="replace")[-LAST_WORDS:]
