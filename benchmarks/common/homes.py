"""Homes that benchmarks run with `flywheel run`, and when: a home keeps commit, date and machine of each launch that worked on it, and
Dagster when each of its steps was at work.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.common.provenance import provenance
from pipelines.orchestration.instance import open_instance
from warehouse.core.home import Home, atomic_write
from warehouse.core.stages import SEED_ITERATION

PROVENANCE, SECONDS = "provenance.json", "seconds.json"

STAGES = {
    "seed": ("seed", "tasks"),
    "datasets": ("recordings", "task_pool", "withdrawals", "dataset"),
    "CT and SFT": ("ct_model", "sft_model"),
    "RL": ("rl_model", "value_gate"),
    "merge": ("merge",),
    "evaluation": ("evaluation",),
    "release": ("orm_", "released_policy"),
    "collection": ("annotations", "human_annotations", "rollouts", "collection_gate"),
}
"""By stage of the flywheel, the prefixes of its steps' names; other steps route."""


def stage_of(place: str) -> str:
    """The stage of the flywheel that a step of a run, ITERATION/STEP, belongs to."""
    step = place.split("/")[1]
    return next((stage for stage, begins in STAGES.items() if step.startswith(begins)), "routing")


def run_flywheel(home: Home, options: Sequence[str], settings: Mapping[str, Any], console: Console) -> None:
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


class Work(NamedTuple):
    """One step of an iteration's Dagster run, and when it was at work, in Unix seconds."""

    place: str
    """ITERATION/STEP"""
    start_s: float
    end_s: float


def work_of(home: Home) -> list[Work]:
    """Of all runs of a home, without steps that did not end."""
    with open_instance(home) as instance:
        return [
            Work(f"{run.tags.get('dagster/partition', SEED_ITERATION)}/{step.step_key}", step.start_time, step.end_time)
            for run in instance.get_runs()
            for step in instance.get_run_step_stats(run.run_id)
            if step.start_time is not None and step.end_time is not None
        ]
