"""Homes that benchmarks turn with `flywheel run`, and when: a home keeps commit, date and machine of each launch that worked on it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from benchmarks.common.provenance import provenance
from warehouse.home import Home, atomic_write

PROVENANCE, SECONDS = "provenance.json", "seconds.json"


def turn(home: Home, options: Sequence[str], settings: Mapping[str, Any], console: Console) -> None:
    """`flywheel run` with these options and settings, which goes on where an earlier call stopped. The wall time is kept where one launch
    did all of it."""
    is_fresh, started_s = not home.root.exists(), time.monotonic()
    home.root.mkdir(parents=True, exist_ok=True)
    note_launch(home)
    command = [sys.executable, "-m", "pipelines.cli", "run", *options, "--home", str(home.root)]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    with (home.root / "run.log").open("ab") as log:
        status = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    took_s = time.monotonic() - started_s
    if is_fresh and status == 0:
        atomic_write(home.root / SECONDS, json.dumps(took_s).encode())
    console.print(f"{home.root.name}: {'done' if status == 0 else f'failed, see {home.root}/run.log'} in {took_s:.0f} s")


def note_launch(home: Home) -> None:
    """Add commit, date and machine of now to those of the home."""
    known, now = launches(home), provenance()
    if now not in known:
        atomic_write(home.root / PROVENANCE, json.dumps([*known, now]).encode())


def launches(home: Home) -> list[dict[str, str]]:
    path = home.root / PROVENANCE
    found: list[dict[str, str]] = json.loads(path.read_text()) if path.exists() else []
    return found


def seconds(home: Home) -> float | None:
    """Wall time of the home's only launch; None where there were several."""
    path = home.root / SECONDS
    return float(json.loads(path.read_text())) if path.exists() else None
