"""Where the wheel stands: iterations, stages, artefact ids, success with counts and intervals. Read from the warehouse, and from
Dagster which of them have closed; printed by the CLI.
"""

from __future__ import annotations

import dagster as dg
import duckdb
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table as RichTable

from assets.iteration_keys import next_key
from assets.partitions import ITERATIONS
from warehouse.evaluations import REPORTED_SPLIT, evaluations
from warehouse.query import connect
from warehouse.stages import rank
from warehouse.tables import Warehouse


class Success(BaseModel):
    """Greedy success of one policy on one split: the mean over tasks, its standard error and 95 % interval."""

    model_config = ConfigDict(frozen=True)

    role: str
    checkpoint_id: str
    split: str
    mean: float
    standard_error: float
    low: float
    high: float
    num_tasks: int
    num_episodes: int
    num_success: int


class StageStatus(BaseModel):
    model_config = ConfigDict(frozen=True)

    stage: str
    artefact: str
    note: str


class IterationStatus(BaseModel):
    model_config = ConfigDict(frozen=True)

    iteration: str
    complete: bool
    """every stage is made, every check that blocks has passed, and the next iteration is open"""
    checkpoints: list[StageStatus]
    datasets: dict[str, str]
    rows: dict[str, int]
    routes: dict[str, int]
    success: list[Success]


class Status(BaseModel):
    model_config = ConfigDict(frozen=True)

    home: str
    iterations: list[IterationStatus]


def read_status(warehouse: Warehouse, instance: dg.DagsterInstance) -> Status:
    """The status of everything in the warehouse; empty where nothing has run."""
    con, opened = connect(warehouse), instance.get_dynamic_partitions(str(ITERATIONS.name))
    keys = [row[0] for row in con.execute("select distinct iteration from checkpoints order by 1").fetchall()]
    success = _successes(con)
    iterations = []
    for key in keys:
        checkpoints = [
            StageStatus(stage=stage, artefact=checkpoint, note=note)
            for stage, checkpoint, note in con.execute(
                "select stage, checkpoint_id, note from checkpoints where iteration = ? order by stage", [key]
            ).fetchall()
        ]
        datasets = dict(con.execute("select distinct stage, dataset_id from datasets where iteration = ?", [key]).fetchall())
        routes = dict(con.execute("select route, count(*) from routes where iteration = ? group by 1 order by 1", [key]).fetchall())
        rows = {
            table: con.execute(f"select count(*) from {table} where iteration = ?", [key]).fetchall()[0][0]
            for table in ("episodes", "steps", "annotations", "ct_samples", "sft_samples")
        }
        iterations.append(
            IterationStatus(
                iteration=key,
                complete=next_key(key) in opened,
                checkpoints=checkpoints,
                datasets=datasets,
                rows=rows,
                routes=routes,
                success=success.get(key, []),
            )
        )
    return Status(home=str(warehouse.home.root), iterations=iterations)


def _successes(con: duckdb.DuckDBPyConnection) -> dict[str, list[Success]]:
    found: dict[str, list[Success]] = {}
    for one in evaluations(con):
        estimate = one.success
        found.setdefault(one.iteration, []).append(
            Success(
                role=one.role,
                checkpoint_id=one.checkpoint_id,
                split=one.split,
                mean=estimate.mean,
                standard_error=estimate.standard_error,
                low=estimate.interval.low,
                high=estimate.interval.high,
                num_tasks=estimate.num_tasks,
                num_episodes=estimate.num_episodes,
                num_success=sum(count.num_success for count in one.tasks),
            )
        )
    return found


def success_table(status: Status, split: str = REPORTED_SPLIT) -> RichTable:
    """Success by iteration and stage, for the terminal."""
    table = RichTable(title=f"Greedy success on the {split} split (mean over tasks, 95 % interval)")
    for column in ("iteration", "policy", "success", "interval", "episodes"):
        table.add_column(column, justify="left" if column in ("iteration", "policy") else "right")
    for iteration in status.iterations:
        for item in iteration.success:
            if item.split == split:
                table.add_row(
                    iteration.iteration,
                    item.role,
                    f"{item.mean:.3f} ± {item.standard_error:.3f}",
                    f"{item.low:.3f} – {item.high:.3f}",
                    f"{item.num_success}/{item.num_episodes}",
                )
    return table


def print_status(status: Status, console: Console) -> None:
    """Iterations, what each stage made, where its episodes went, and success."""
    if not status.iterations:
        console.print(f"nothing has run in {status.home}; `flywheel run` turns the wheel")
        return
    table = RichTable(title=f"The wheel in {status.home}")
    for column in ("iteration", "stage", "artefact"):
        table.add_column(column, no_wrap=True)
    table.add_column("note")
    for iteration in status.iterations:
        datasets = [StageStatus(stage=stage, artefact=dataset, note="") for stage, dataset in iteration.datasets.items()]
        for item in sorted([*datasets, *iteration.checkpoints], key=lambda item: rank(item.stage)):
            table.add_row(iteration.iteration, item.stage, item.artefact, item.note)
        if iteration.routes:
            routes = ", ".join(f"{num} {route}" for route, num in iteration.routes.items())
            table.add_row(iteration.iteration, "routing", "", routes)
    console.print(table)
    console.print(success_table(status))
