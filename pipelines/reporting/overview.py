"""What the report of all iterations says, read from the warehouse: figures and tables as plain values. How it looks is report.html; what
one iteration gained is gains.py, one training run runs.py, episodes episodes.py.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from warehouse.core.home import Home
from warehouse.core.stages import SEED_ITERATION, is_rl, role_name
from warehouse.evaluation.evaluations import REPORTED_SPLIT, Evaluation
from warehouse.evaluation.novelty import Novelty
from warehouse.evaluation.statistics import difference
from warehouse.quality.data_docs import checked_tables
from warehouse.reporting.iteration_summaries import IterationSummary
from warehouse.storage.files.table_files import Listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure at the head of the page."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    task: str
    domain: str
    cells: tuple[tuple[int, int] | None, ...]
    """(solved, episodes) in each column; None where the task was not evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    columns: tuple[str, ...]
    rows: tuple[HeatRow, ...]
    means: tuple[float, ...]
    """mean over tasks in each column."""


def iterations(listing: Listing) -> list[str]:
    """Iterations that made a checkpoint or a route, the seed left out."""
    return [iteration for iteration in listing.iterations("checkpoints", "routes") if iteration != SEED_ITERATION]


def tiles(
    evaluated: Sequence[Evaluation],
    novel: Novelty | None,
    summaries_by_key: Mapping[str, IterationSummary],
    seconds: Mapping[str, Mapping[str, float]],
) -> list[Tile]:
    """Where the home started, where it stands, and what it took."""
    every = [one for one in evaluated if one.split == REPORTED_SPLIT]
    result = [*_gain(every), *_novel(novel)]
    num, crashed, steps = (
        sum(getattr(of, name) for of in summaries_by_key.values()) for name in ("num_episodes", "num_crashed", "num_steps")
    )
    result.append(Tile(label="episodes", value=f"{num:,}", note=f"{steps:,} steps, {crashed} crashed"))
    decisions = Counter[str]()
    for of in summaries_by_key.values():
        decisions.update(of.decisions)
    overrides, accepts = decisions["edit"] + decisions["override"], decisions["accept"]
    result.append(Tile(label="corrections", value=f"{overrides:,}", note=f"{accepts:,} steps approved"))
    total = sum(sum(of.values()) for of in seconds.values())
    if total:
        result.append(Tile(label="stage time", value=f"{total / 60:.1f} min", note=f"in {sum(len(of) for of in seconds.values())} stages"))
    return result


def _novel(found: Novelty | None) -> list[Tile]:
    """How much of what the newest iteration was reported on is new to its policies."""
    if found is None:
        return []
    note = f"of {found.num_instances} instances; {found.num_new_instruction / found.num_instances:.0%} have an instruction of their own"
    return [Tile(label="not seen in training", value=f"{found.num_novel / found.num_instances:.0%}", note=note)]


def _gain(evaluated: Sequence[Evaluation]) -> list[Tile]:
    before = next((one for one in evaluated if one.role == "ct_model"), None)
    start = next((one for one in evaluated if one.role == "sft_model"), None)
    end = next((one for one in reversed(evaluated) if one.role in ("merged_policy", "released_policy")), None)
    result = []
    for label, one in (("tutorials only", before), ("seed SFT", start), (f"after iteration {int(end.iteration)}" if end else "", end)):
        if one is not None:
            estimate = one.success
            interval = f"[{estimate.interval.low:.3f}, {estimate.interval.high:.3f}]"
            note = f"{interval}, {estimate.num_episodes} episodes of {estimate.num_tasks} tasks"
            result.append(Tile(label=label, value=f"{estimate.mean:.3f}", note=note))
    if start is not None and end is not None:
        gain = difference(start.success, end.success)
        verdict = "excludes zero" if gain.interval.excludes_zero else "includes zero"
        note = f"[{100 * gain.interval.low:+.1f}, {100 * gain.interval.high:+.1f}] {verdict}"
        result.append(Tile(label="gain, points", value=f"{100 * gain.mean:+.1f}", note=note))
    return result


def heat(evaluated: Sequence[Evaluation]) -> Heat:
    """Success by task and policy on the reported split; the RL specialists are left to the chart."""
    shown = [one for one in evaluated if one.split == REPORTED_SPLIT and not is_rl(one.role)]
    order = list(dict.fromkeys((one.iteration, one.role) for one in shown))
    cells: dict[tuple[str, str], dict[tuple[str, str], tuple[int, int]]] = defaultdict(dict)
    for one in shown:
        for domain, counts in one.counts.items():
            for count in counts:
                cells[domain, count.task][one.iteration, one.role] = (count.num_success, count.num_episodes)
    return Heat(
        columns=tuple(f"{int(iteration)} {role_name(role)}" for iteration, role in order),
        rows=tuple(
            HeatRow(task=task, domain=domain, cells=tuple(of.get(key) for key in order)) for (domain, task), of in sorted(cells.items())
        ),
        means=tuple(fmean(solved / num for of in cells.values() if key in of for solved, num in [of[key]]) for key in order),
    )


def releases(summaries_by_key: Mapping[str, IterationSummary]) -> list[dict[str, str]]:
    """Which policy each iteration released, and why."""
    found = []
    for iteration, of in summaries_by_key.items():
        merged = {made.checkpoint_id for made in of.checkpoints if made.stage == "merged_policy"}
        found += [
            {
                "iteration": str(int(iteration)),
                "checkpoint": made.checkpoint_id,
                "note": made.note,
                "kind": "merged policy" if made.checkpoint_id in merged else "previous release",
            }
            for made in of.checkpoints
            if made.stage == "released_policy"
        ]
    return found


class _Timed(BaseModel):
    """Of a stage's result (assets/stages/requests.py), what is shown here. The whole brings the settings of every stage along."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    duration_s: float = Field(description="seconds of the work itself")


def stage_seconds(home: Home) -> dict[str, dict[str, float]]:
    """Wall time of each finished stage, from the results that the workers left: {iteration label: {stage: seconds}}."""
    seconds: dict[str, dict[str, float]] = {}
    for path in sorted(home.work.glob("*/*/result.json"), key=lambda found: (found.parent.parent.name, found.stat().st_mtime)):
        try:
            duration_s = _Timed.model_validate_json(path.read_text()).duration_s
        except (ValidationError, OSError):
            # A result of an older version, or one that is being replaced right now: its time is not known.
            continue
        iteration = path.parent.parent.name
        label = "seed" if iteration == SEED_ITERATION else f"iteration {int(iteration)}"
        seconds.setdefault(label, {})[path.parent.name] = duration_s
    return seconds


def tables(listing: Listing) -> list[dict[str, Any]]:
    """Rows and version of every table that was written."""
    return [
        {"name": table, "version": version, "rows": sum(listing.num_rows(table).values())}
        for table, version in listing.versions.items()
        if version >= 0
    ]


def checks(home: Home, folder: Path, iteration: str | None = None) -> list[dict[str, Any]]:
    """What the data checks found in each table, newest iteration first, with the address of each page of Data Docs from `folder`."""
    return [
        {
            "iteration": checked.iteration,
            "table": checked.table,
            "stage": checked.stage,
            "rows": checked.num_rows,
            "expectations": checked.num_expectations,
            "failures": checked.num_failures,
            "address": Path(os.path.relpath(checked.page, folder)).as_posix(),
        }
        for checked in checked_tables(home, iteration)
    ]
