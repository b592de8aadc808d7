"""`flywheel eval`: greedy success of any checkpoint on a fixed set, per task, printed and not stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table as RichTable

from agent.episode import Episode
from agent.policy import Policy
from assets.profile import Profile
from pipelines import profiles
from pipelines.engines import open_engine
from pipelines.query_command import checkpoint_folder
from pipelines.sandboxes import open_collector
from pipelines.step_budgets import parse_budgets, print_points, scale_steps, write_points
from pipelines.workers.evaluate import greedy_requests, task_counts
from sandbox.task import Split
from warehouse.errors import ConfigError
from warehouse.statistics import Interval, TaskCount, macro_average, wilson
from warehouse.tables import Warehouse


def evaluate_checkpoint(
    warehouse: Warehouse, name: str, split: str, per_task: int, profile_name: str, overrides: Mapping[str, Any], console: Console, *,
    as_json: Path | None = None,
) -> None:  # fmt: skip
    """Run and print; `as_json` is a file to write. Raises CheckpointError for an unknown checkpoint, ConfigError for an unknown split."""
    _check_split(split)
    profile = profiles.load(profile_name, overrides)
    with closing(open_engine(checkpoint_folder(warehouse, name), profile.engine)) as engine:
        counts = task_counts(run_evaluation(profile, engine, Split(split), per_task, console))
    console.print(success_by_task(counts, f"{engine.policy_id} on {split}"))
    if as_json is not None:
        told = {"policy_id": engine.policy_id, "split": split, **success_figures(counts)}
        as_json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def success_figures(counts: Sequence[TaskCount]) -> dict[str, Any]:
    """The same for a machine: the mean over tasks, and each task with its interval."""
    rows = [{**asdict(count), **asdict(wilson(count.num_success, count.num_episodes))} for count in counts]
    return {"success": asdict(macro_average(counts)), "tasks": rows}


def success_by_task(counts: Sequence[TaskCount], title: str) -> RichTable:
    """A row a task and one for their mean, each with its interval, which says how little a few episodes tell."""
    table = RichTable(title=title, title_justify="left")
    for column in ("task", "success", "95 % interval", "solved"):
        table.add_column(column, justify="left" if column == "task" else "right")
    for count in counts:
        _add_row(table, count.task, count.rate, wilson(count.num_success, count.num_episodes), count.num_success, count.num_episodes)
    total = macro_average(counts)
    table.add_section()
    _add_row(table, "mean over tasks", total.mean, total.interval, sum(count.num_success for count in counts), total.num_episodes)
    return table


def _add_row(table: RichTable, name: str, rate: float, interval: Interval, solved: int, num: int) -> None:
    table.add_row(name, f"{rate:.3f}", f"{interval.low:.3f} – {interval.high:.3f}", f"{solved} of {num}")


def _check_split(split: str) -> None:
    if split not in (Split.EVAL, Split.HOLDOUT):
        raise ConfigError(f"--split {split!r}: eval and holdout are allowed; train instances are never reported")


def evaluate_budgets(
    warehouse: Warehouse, name: str, split: str, per_task: int, budgets: str, profile_name: str, overrides: Mapping[str, Any],
    console: Console, *, svg: Path | None = None, as_json: Path | None = None,
) -> None:  # fmt: skip
    """Run with growing step budgets and print; `svg` and `as_json` are files to write. Raises as `evaluate_checkpoint` does."""
    _check_split(split)
    wanted = parse_budgets(budgets)
    profile = profiles.load(profile_name, overrides)
    with closing(open_engine(checkpoint_folder(warehouse, name), profile.engine)) as engine:
        points = scale_steps(profile, engine, Split(split), per_task, wanted, console)
        title = f"{engine.policy_id} on {split}, by step budget"
    print_points(points, title, console)
    write_points(points, title, svg, as_json)


def run_evaluation(profile: Profile, engine: Policy, split: Split, per_task: int, console: Console) -> list[Episode]:
    """Greedy episodes of a policy on the fixed instances of a split."""
    return asyncio.run(_run(profile, engine, split, per_task, console))


async def _run(profile: Profile, engine: Policy, split: Split, per_task: int, console: Console) -> list[Episode]:
    requests = greedy_requests(profile.acting, engine.policy_id, split, per_task)
    episodes: list[Episode] = []
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("episodes", total=len(requests))
        async with open_collector(profile.acting) as collector:
            async for episode in collector.collect(engine, requests):
                episodes.append(episode.model_copy(update={"screenshots": {}}))
                bar.advance(task)
    return episodes
