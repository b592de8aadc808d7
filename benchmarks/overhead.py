"""The share of an iteration's wall time that orchestration takes: Dagster's steps, subprocess starts and imports, Prefect's
bookkeeping.

Reads a home of `flywheel run`. An iteration's wall time is from the start of the process that runs it, imports included, to
the end of its Dagster run; what is not orchestration is the union of the intervals in which a worker did its work (imports excluded),
less what Prefect took inside the collection: the wait for its server, its import, and every second of the flow in which no episode ran.
Routing, checks and merging of tables, which run in Dagster's own steps, are counted as orchestration too, so the figure is an upper bound.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dagster as dg
from rich.console import Console
from rich.table import Table

from assets.stages.requests import StageResult
from benchmarks.common.homes import launches
from pipelines.orchestration.instance import open_instance
from pipelines.orchestration.runs.executor import LAUNCHED_TAG
from warehouse.core.home import Home, atomic_write

HOME = Path(".bench/iterations/quickstart-0")
"""The first home of iteration_curves.py."""


def union_s(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of a union of intervals."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def measure(home: Home) -> list[dict[str, Any]]:
    """One row per complete iteration whose run went through in one go."""
    rows = []
    with open_instance(home) as instance:
        for record in instance.get_run_records(dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS], job_name="iteration")):
            key, launched = record.dagster_run.tags["dagster/partition"], record.dagster_run.tags.get(LAUNCHED_TAG)
            results = [StageResult.model_validate_json(path.read_text()) for path in (home.work / key).glob("*/result.json")]
            if launched is None or record.end_time is None or not results:
                continue  # launched from Dagster's page, which does not say when the process began
            begin = float(launched)
            wall_s = record.end_time - begin
            if any(result.started_at < begin for result in results):
                continue  # an earlier launch did part of the work
            work_s = union_s((result.started_at, result.started_at + result.duration_s) for result in results)
            prefect_s = sum(result.metrics.get("prefect_s", 0.0) for result in results)
            overhead_s = wall_s - work_s + prefect_s
            rows.append(
                {
                    "iteration": key,
                    "wall_s": wall_s,
                    "work_s": work_s,
                    "prefect_s": prefect_s,
                    "overhead_s": overhead_s,
                    "share": overhead_s / wall_s,
                }
            )
    return sorted(rows, key=lambda row: row["iteration"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path, nargs="?", default=HOME, help=f"a home of `flywheel run` (default: {HOME})")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    if not arguments.home.is_dir():
        parser.error(f"{arguments.home} is not a folder; give a home of `flywheel run`, or make this one by iteration_curves.py")
    rows = measure(Home(arguments.home.absolute()))
    if not rows:
        parser.error(f"no iteration of {arguments.home} was completed by one `flywheel run`; run a home without interruption")
    table = Table(title="Orchestration's share of an iteration")
    for column in ("iteration", "wall", "work", "in Prefect", "orchestration", "share"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["iteration"],
            f"{row['wall_s']:.0f} s",
            f"{row['work_s']:.0f} s",
            f"{row['prefect_s']:.1f} s",
            f"{row['overhead_s']:.0f} s",
            f"{row['share']:.1%}",
        )
    Console().print(table)
    if arguments.json:
        stored = {"measured": launches(Home(arguments.home.absolute())), "iterations": rows}
        atomic_write(arguments.json, json.dumps(stored, indent=2).encode())


if __name__ == "__main__":
    main()
