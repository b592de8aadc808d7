"""Greedy success of the two policies that the flywheel starts from, before its first iteration.

    tutorials only    CT on the tutorials: no demonstration, no page of a task
    seed SFT          then SFT on the seed's demonstrations, two a task

Both are made from the quickstart profile's own settings, as its first iteration makes them, and play the quickstart's tasks and the
unseen ones. This needs no home and takes minutes, so it is where lessons are compared: on the `eval` split by default. The
rows of the same names in benchmarks/iteration_curves.py are those of a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from assets.seed_data.vocabulary import words
from assets.settings.profile import Profile
from benchmarks.common.kept import claim, fingerprint
from benchmarks.common.small_policy import Bar, demonstration_samples, demonstrations, tutorial_samples
from models.checkpoints.checkpoint import save
from models.engine.embedded import EmbeddedEngine
from models.families.seed_policy import seed_policy
from models.supervised.run import train_supervised
from models.supervised.training_set import TrainingSample
from pipelines import profiles
from pipelines.stages.context import profile_tasks
from pipelines.stages.evaluate import task_counts
from pipelines.stages.evaluate_checkpoint import run_evaluation
from sandbox.tasks.task import Split
from warehouse.core.home import atomic_write
from warehouse.evaluation.statistics import macro_average

ROOT = Path(".bench/seed_policies")
RECIPE_TEXTS = 1000
"""Tutorials that show whether a kept policy was taught by the same."""
TASK_LISTS = {"quickstart": "miniwob:quickstart", "unseen": "miniwob:unseen"}


def make(folder: Path, profile: Profile, bars: Progress) -> Iterator[tuple[str, Path, float]]:
    """Both policies by name, with their folders and the CPU seconds of their training; from `folder` where they were made before."""
    torch.set_num_threads(1)  # a second thread makes a tiny model slower on a busy machine
    seed, first = profile.seed, tutorial_samples(profile, profile.seed, RECIPE_TEXTS)
    recipe = fingerprint(seed, *(part.model_dump(mode="json") for part in (profile.ct, profile.sft, profile.seed_data, profile.agent)))
    for part in ("fresh", "ct_model", "sft_model"):
        claim(folder / part, fingerprint(recipe, [[asdict(message) for message in text.messages] for text in first]))
    if not (folder / "fresh").exists():
        save(folder / "fresh", *seed_policy(words(*profile.seed_data.curricula), seed), stage="seed_policy", iteration="0000")
    is_made = all((folder / part).exists() for part in ("ct_model", "sft_model"))
    texts = [] if is_made else tutorial_samples(profile, seed)
    if not (folder / "ct_model").exists():
        yield _trained("tutorials only", profile.ct, texts, folder / "fresh", folder / "ct_model", seed, bars)
    else:
        yield "tutorials only", folder / "ct_model", 0.0
    if not (folder / "sft_model").exists():
        yield _trained("seed SFT", profile.sft, _sft_samples(profile, texts, bars), folder / "ct_model", folder / "sft_model", seed, bars)
    else:
        yield "seed SFT", folder / "sft_model", 0.0


def _trained(
    name: str, config: Any, samples: list[TrainingSample], init: Path, output: Path, seed: int, bars: Progress
) -> tuple[str, Path, float]:
    bar, started = Bar(bars, name, config.steps), time.process_time()
    config = config.model_copy(update={"seed": config.seed + seed})
    train_supervised(config, samples, init=init, output=output, stage=output.name, iteration="0001", on_progress=bar.step)
    return name, output, time.process_time() - started


def _sft_samples(profile: Profile, texts: list[TrainingSample], bars: Progress) -> list[TrainingSample]:
    """Demonstrations and tutorials, weighed as the profile's mixture draws them."""
    shown = demonstration_samples(asyncio.run(demonstrations(profile, profile.seed_data.demonstrations_per_task, bars)))
    mixture = profile.sft_mixture
    pools = ((shown, mixture.demonstration), (texts, mixture.tutorial))
    return [
        replace(sample, weight=(len(samples) if pool.draws is None else pool.draws) / len(samples))
        for samples, pool in pools
        if pool is not None
        for sample in samples
    ]


def measure(profile: Profile, policy: Path, split: Split, num_episodes: int) -> dict[str, Any]:
    """Success by task list: the mean over tasks, and each task's count. `num_episodes` is shared out over a list's tasks."""
    found = {}
    for name, tasks in TASK_LISTS.items():
        listed = profiles.load(profile.name, {"tasks.lists": [tasks]})
        each = num_episodes // len(profile_tasks(listed.tasks))
        engine = EmbeddedEngine.from_checkpoint(policy)
        counts = task_counts(run_evaluation(listed, engine, split, each, Console(quiet=True)))
        engine.close()
        by_task = {count.task: f"{count.num_success}/{count.num_episodes}" for count in counts}
        found[name] = {**asdict(macro_average(counts)), "tasks": by_task}
    return found


def print_rows(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = Table(title="Greedy success, mean over tasks")
    for column in ("seed", "policy", "tasks", "split", "success", "95 % interval", "episodes", "CPU seconds of training"):
        table.add_column(column, justify="right" if column in ("success", "episodes") else "left")
    for row in rows:
        for name in TASK_LISTS:
            found = row[name]
            table.add_row(
                str(row["seed"]),
                row["policy"],
                name,
                row["split"],
                f"{found['mean']:.3f}",
                f"{found['interval']['low']:.3f} – {found['interval']['high']:.3f}",
                str(found["num_episodes"]),
                f"{row['cpu_s']:.0f}",
            )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="profile seeds (default: 0)")
    parser.add_argument("--split", default="eval", choices=["eval", "holdout"], help="instances that are played (default: eval)")
    parser.add_argument("--episodes", type=int, default=204, help="episodes a task list, shared out over its tasks (default: 204)")
    parser.add_argument("--root", type=Path, default=ROOT, help=f"where policies are kept (default: {ROOT})")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console, rows = Console(), []
    for seed in arguments.seeds:
        profile = profiles.load("quickstart", {"seed": seed})
        with Progress(console=console, transient=True) as bars:
            for name, folder, cpu_s in make(arguments.root / str(seed), profile, bars):
                figures = measure(profile, folder, Split(arguments.split), arguments.episodes)
                rows.append({"seed": seed, "policy": name, "split": arguments.split, "cpu_s": cpu_s, **figures})
                console.print_json(json.dumps(rows[-1]))
    print_rows(rows, console)
    if arguments.json:
        atomic_write(arguments.json, (json.dumps(rows, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
