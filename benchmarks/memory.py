"""What working and episodic memory are worth: one small policy, shown more or less of its past, on a task whose end needs its beginning.

    first-word-said    six scripts, each of which says a word and is gone; the first word is asked for at the end

One policy is trained on tutorials; every arm fine-tunes it on oracle demonstrations written with that arm's memory, and is measured
greedily. Working memory is the last k steps; episodic memory is one line about all earlier ones; notes say what came
into view after a step. State lies under .bench/memory; interrupted, it goes on with the arms that are missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.common.kept import Row, fingerprint, kept_row
from benchmarks.common.small_policy import Bar, base_policy, base_recipe, demonstration_samples, demonstrations, evaluation
from benchmarks.common.splits import add_split
from models.supervised.run import train_supervised
from pipelines import profiles
from pipelines.stages.evaluate import task_counts
from warehouse.core.home import atomic_write
from warehouse.evaluation.statistics import wilson

ROOT = Path(".bench/memory")
TASKS = {"tasks.lists": ["terminal:recall"], "tasks.domains": ["terminal"], "tasks.rl_domains": None}
ARMS: dict[str, dict[str, Any]] = {
    "k = 4, episodic": {"agent.window": 4, "agent.episodic_chars": 600},
    "k = 4": {"agent.window": 4, "agent.episodic_chars": 0},
    "k = 1, episodic": {"agent.window": 1, "agent.episodic_chars": 600},
    "k = 1": {"agent.window": 1, "agent.episodic_chars": 0},
    "k = 4, episodic, no notes": {"agent.window": 4, "agent.episodic_chars": 600, "agent.notes": False},
    "k = 14": {"agent.window": 14, "agent.episodic_chars": 0},
}


def measure(arm: str, seed: int, arguments: argparse.Namespace, console: Console) -> Row:
    """One arm on one seed, from its file where it was measured before."""
    target = ROOT / f"{arm.replace(' ', '').replace(',', '-')}-{seed}-{arguments.split.value}.json"
    whole, profile = profiles.load("sandbox"), profiles.load("sandbox", {**TASKS, **ARMS[arm]})
    config = profile.sft.model_copy(update={"steps": arguments.steps, "seed": seed})

    def figures() -> dict[str, Any]:
        with Progress(console=console, transient=True) as bars:
            base = base_policy(ROOT, whole, seed, bars)
            samples = demonstration_samples(asyncio.run(demonstrations(profile, arguments.demonstrations, bars)))
            bar, output = Bar(bars, f"fine-tuning: {arm}", arguments.steps), target.with_suffix("")
            train_supervised(config, samples, init=base, output=output, stage="sft_model", iteration="0001", on_progress=bar.step)
            episodes = asyncio.run(evaluation(profile, output, arguments.per_task, bars, split=arguments.split))
        lengths = [len(step.prompt_token_ids) for episode in episodes for step in episode.steps]
        return {"samples": len(samples), "prompt_tokens": mean(lengths), "counts": [asdict(count) for count in task_counts(episodes)]}

    parts = [part.model_dump(mode="json") for part in (profile.acting, config)]
    recipe = fingerprint(base_recipe(whole, seed), parts, arguments.demonstrations, arguments.per_task, arguments.split.value)
    return kept_row(target, recipe, {"arm": arm, "seed": seed, "split": arguments.split.value}, figures)


def table(rows: list[dict[str, Any]]) -> Table:
    tasks = list(dict.fromkeys(count["task"] for row in rows for count in row["counts"]))
    drawn = Table(title=f"Greedy success on {rows[0]['split']} instances (95 % interval)")
    for column in ("memory", "seed", *tasks, "prompt tokens"):
        drawn.add_column(column)
    for row in rows:
        cells = {count["task"]: (count["num_success"], count["num_episodes"]) for count in row["counts"]}
        shown = [_cell(*cells[task]) for task in tasks]
        drawn.add_row(row["arm"], str(row["seed"]), *shown, f"{row['prompt_tokens']:.0f}")
    return drawn


def _cell(num_success: int, num_episodes: int) -> str:
    interval = wilson(num_success, num_episodes)
    return f"{num_success / num_episodes:.2f} ({interval.low:.2f}–{interval.high:.2f}), {num_episodes}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="which memories (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="seeds of the policy (default: 0)")
    parser.add_argument("--demonstrations", type=int, default=60, help="oracle episodes a task (default: 60)")
    parser.add_argument("--steps", type=int, default=800, help="steps of fine-tuning (default: 800)")
    parser.add_argument("--per-task", type=int, default=100, help="episodes a task (default: 100)")
    add_split(parser)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ROOT.mkdir(parents=True, exist_ok=True)
    console = Console()
    rows = [measure(arm, seed, arguments, console) for seed in arguments.seeds for arm in arguments.arms]
    console.print(table(rows))
    if arguments.json:
        atomic_write(arguments.json, json.dumps(rows, indent=2).encode())


if __name__ == "__main__":
    main()
