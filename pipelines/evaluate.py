"""`flywheel eval`: greedy success of any checkpoint on a fixed set, per task, printed and not stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
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
from warehouse.statistics import macro_average, wilson
from warehouse.tables import Warehouse


def evaluate_checkpoint(
    warehouse: Warehouse, name: str, split: str, per_task: int, profile_name: str, overrides: Mapping[str, Any], console: Console
) -> None:
    """Run and print. Raises CheckpointError for an unknown checkpoint, ConfigError for an unknown split."""
    if split not in (Split.EVAL, Split.HOLDOUT):
        raise ConfigError(f"--split {split!r}: eval and holdout are allowed; train instances are never reported")
    profile = profiles.load(profile_name, overrides)
    with closing(open_engine(checkpoint_folder(warehouse, name), profile.engine)) as engine:
        episodes = run_evaluation(profile, engine, Split(split), per_task, console)
    table = RichTable(title=f"{engine.policy_id} on {split}")
    for column in ("task", "success", "95 % interval", "episodes"):
        table.add_column(column, justify="left" if column == "task" else "right")
    counts = task_counts(episodes)
    for count in counts:
        interval = wilson(count.num_success, count.num_episodes)
        table.add_row(
            count.task, f"{count.rate:.3f}", f"{interval.low:.3f} – {interval.high:.3f}", f"{count.num_success}/{count.num_episodes}"
        )
    total = macro_average(counts)
    table.add_section()
    table.add_row(
        "mean over tasks",
        f"{total.mean:.3f} ± {total.standard_error:.3f}",
        f"{total.interval.low:.3f} – {total.interval.high:.3f}",
        str(total.num_episodes),
    )
    console.print(table)


def evaluate_budgets(
    warehouse: Warehouse, name: str, split: str, per_task: int, budgets: str, profile_name: str, overrides: Mapping[str, Any],
    console: Console, *, svg: Path | None = None, as_json: Path | None = None,
) -> None:  # fmt: skip
    """Run with growing step budgets and print; `svg` and `as_json` are files to write. Raises as `evaluate_checkpoint` does."""
    if split not in (Split.EVAL, Split.HOLDOUT):
        raise ConfigError(f"--split {split!r}: eval and holdout are allowed; train instances are never reported")
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
