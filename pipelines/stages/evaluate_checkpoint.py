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

from agent.episode.episode import Episode
from agent.policy.policy import Policy
from assets.settings.profile import Profile
from models.checkpoints.importing import with_card
from pipelines import profiles
from pipelines.cli.data.queries import checkpoint_folder
from pipelines.stages.context import profile_tasks
from pipelines.stages.engines import open_engine
from pipelines.stages.evaluate import greedy_requests, task_counts
from pipelines.stages.release_figures import check_split, record
from pipelines.stages.sandboxes import open_collector
from pipelines.stages.step_budgets import parse_budgets, print_points, scale_steps, write_points
from sandbox.tasks.sources import reported_seeds
from sandbox.tasks.task import Split
from warehouse.evaluation.statistics import Interval, TaskCount, macro_average, wilson
from warehouse.storage.tables import Warehouse


def evaluate_checkpoint(
    warehouse: Warehouse,
    name: str,
    split: str,
    per_task: int,
    profile_name: str,
    overrides: Mapping[str, Any],
    console: Console,
    *,
    as_json: Path | None = None,
    release: str | None = None,
) -> None:
    """Run and print; `as_json` is a file to write, `release` what the split `report` is looked at for. Raises CheckpointError for an
    unknown checkpoint, ConfigError for a split that may not be looked at."""
    chosen = check_split(split, release)
    profile = profiles.load(profile_name, overrides)
    with with_card(checkpoint_folder(warehouse, name)) as folder, closing(open_engine(folder, profile.engine)) as engine:
        _note_look(warehouse, release, engine.policy_id, profile, per_task, console)
        counts = task_counts(run_evaluation(profile, engine, chosen, per_task, console))
    console.print(success_by_task(counts, f"{engine.policy_id} on {split}"))
    if left_out := unreported(profile, chosen):
        console.print(f"not reported, since they have too few different instances: {', '.join(left_out)}", highlight=False)
    if as_json is not None:
        figures = {"policy_id": engine.policy_id, "split": split, **success_figures(counts), "not_reported": left_out}
        as_json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _note_look(warehouse: Warehouse, release: str | None, policy_id: str, profile: Profile, per_task: int, console: Console) -> None:
    """Before anything of the report split is played."""
    if release is not None:
        before = record(warehouse.home, release=release, policy_id=policy_id, tasks=list(profile.tasks.lists), per_task=per_task)
        console.print(f"report split, for release {release}: looked at {before} times before in this home", highlight=False)


def unreported(profile: Profile, split: Split) -> list[str]:
    """Tasks of a profile that have no instance in a split (docs/evaluation.md)."""
    return sorted(task.name for task in profile_tasks(profile.tasks) if not reported_seeds(task, split, 1))


def success_figures(counts: Sequence[TaskCount]) -> dict[str, Any]:
    """The same for a machine: the mean over tasks, and each task with its interval."""
    rows = [{**asdict(count), **asdict(wilson(count.num_success, count.num_episodes))} for count in counts]
    return {"success": asdict(macro_average(counts)), "tasks": rows}


def success_by_task(counts: Sequence[TaskCount], title: str) -> RichTable:
    """A row a task and one for their mean, each with its interval, which shows how little a few episodes prove."""
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


def evaluate_budgets(
    warehouse: Warehouse,
    name: str,
    split: str,
    per_task: int,
    budgets: str,
    profile_name: str,
    overrides: Mapping[str, Any],
    console: Console,
    *,
    svg: Path | None = None,
    as_json: Path | None = None,
    release: str | None = None,
) -> None:
    """Run with growing step budgets and print; `svg` and `as_json` are files to write. Raises as `evaluate_checkpoint` does."""
    chosen, wanted = check_split(split, release), parse_budgets(budgets)
    profile = profiles.load(profile_name, overrides)
    with with_card(checkpoint_folder(warehouse, name)) as folder, closing(open_engine(folder, profile.engine)) as engine:
        _note_look(warehouse, release, engine.policy_id, profile, per_task, console)
        points = scale_steps(profile, engine, chosen, per_task, wanted, console)
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
