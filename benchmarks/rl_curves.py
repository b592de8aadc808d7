"""What reinforcement learning adds: one weak start a seed and domain, every algorithm on as many episodes, greedy success before and after.

    pointing, forms    the quickstart's MiniWoB++ tasks of the domain, from one demonstration a task
    catch              the shortest game, from what a player solves who errs at every other step
    ppo                values a step, lambda 0.95 at least, the per-task baseline steers while the critic does not pass its gate
    pretrained         ppo, its critic fitted beforehand to stored episodes of the start, as a wheel has them from its second iteration on
    adaptive           pretrained, at token level, lambda by length (alpha 0.5, so that it moves at these lengths) without a floor
    paper              UI-TARS-2's: a value a token, lambda by length (alpha 0.05) without a floor, the mean over tokens, a critic that was
                       pretrained; the policy waits for it, or is blocked
    unpretrained       ppo, but the critic steers from the first round
    reinforce, reinforce++, grpo, rejection    the alternatives behind the same trainer, as published
    replay_only        the control: as many episodes and as much compute, but only the replayed samples teach
    strong             ppo from a start of ten demonstrations a task

All take larger steps than the quickstart's trainer (BOLD, CAREFUL). The arms of a seed share their start, tasks, train instances and number
of episodes, stored ones counted in, and environment steps are told beside; measured instances are the same for all, and differences are
paired. Beside arms with a critic: in how many rounds it steered, between what bounds lambda lay, and how much it explained. A run that the
gate blocks is judged by its start, which is what would go on. State lies under .bench/rl_curves, a file an arm; interrupted, it goes on
with what is missing, and refuses what is there of other settings.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent.episode.episode import Episode, Outcome
from agent.episode.log import EpisodeLog
from assets.profile import Profile
from benchmarks.common.gains import gain, judged, success, summary
from benchmarks.common.kept import Row, fingerprint, kept_row
from benchmarks.common.provenance import publish_rows
from benchmarks.common.small_policy import Bar, Fumbler, Start, demonstrations, evaluation, make_start
from benchmarks.common.splits import add_split
from models.engine.embedded import EmbeddedEngine
from models.rl.config import PpoConfig
from models.rl.trainer import PpoRun, rollout_log_of, train_ppo
from models.rl.value_pretraining import CriticSource
from pipelines import profiles
from pipelines.stages.context import pool_tasks, requests_for
from pipelines.stages.sandboxes import open_collector
from sandbox.tasks.task import Split
from warehouse.core.errors import ValueGateNotPassed
from warehouse.core.home import atomic_write

ROOT = Path(".bench/rl_curves")
BOLD = {"rl.learning_rate": 5e-4, "rl.epochs": 3, "rl.minibatch_episodes": 32, "rl.max_kl": 0.1, "rl.kl_check": "minibatch", "rl.rounds": 8}
CAREFUL = {"rl.learning_rate": 4e-4, "rl.epochs": 3, "rl.minibatch_episodes": 48, "rl.max_kl": 0.05, "rl.rounds": 10, "rl.replay_sft": 0}
"""One task alone overshoots where six or eleven hold each other back, and demonstrations of one who errs are not to be replayed."""
DOMAINS: dict[str, dict[str, Any]] = {
    "pointing": {"tasks.lists": ["miniwob:quickstart"], "tasks.domains": ["pointing"], "ct.steps": 1000, "sft.steps": 25, **BOLD},
    "forms": {"tasks.lists": ["miniwob:quickstart"], "tasks.domains": ["forms"], "ct.steps": 2000, "sft.steps": 50, **BOLD},
    "catch": {"tasks.lists": ["games:first-elements"], "tasks.domains": ["games"], "ct.steps": 1000, "sft.steps": 70, **CAREFUL},
}
"""What makes a start weak is how little it is taught; the quickstart takes 2000 and 140 steps."""
STRONG_SFT_STEPS = 280
ARMS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "pretrained": {},
    "adaptive": {"level": "token", "lambda_alpha": 0.5, "lambda_floor": 0.0},
    "paper": {
        "level": "token",
        "aggregation": "token",
        "lambda_floor": 0.0,
        "pretraining_policy": "frozen",
        "pretraining_rounds": 2,
        "pretraining_epochs": 10,
        "gate_policy": "block",
    },
    "unpretrained": {"pretraining_rounds": 0, "gate_policy": "open"},
    "reinforce": {"algorithm": "reinforce"},
    "reinforce++": {"algorithm": "reinforce++", "skip_uniform_tasks": False},
    "grpo": {"algorithm": "grpo", "group_size": 4, "aggregation": "episode_mean"},
    "rejection": {"algorithm": "rejection"},
    "replay_only": {"mode": "replay_only"},
    "strong": {},
}
"""No source says how long value pretraining lasts: here until held-out episodes are predicted no better, and where that does not pass the
gate two rounds of ten passes. GRPO is a mean over an episode's tokens
(2402.03300, equation 3); to sum them is Dr. GRPO, which does not divide by the spread. REINFORCE++ knows no task to skip."""
STORED = dict.fromkeys(("pretrained", "adaptive", "paper"), 0.2)
"""Share of an arm's episodes that the start plays beforehand, for its critic to be pretrained on; none of the others."""
STORED_SKIP = 2000
"""Train instances of each task that lie before those of stored episodes."""
WEAK, STRONG = 1, 10
"""Demonstrations a task behind the start."""
GAME_DEMONSTRATIONS, FUMBLES = 12, 0.5
"""Episodes, of which the solved ones are shown, and the share of erring steps. A game's weak start has seen a player who errs: one that
always does the same wrong thing would have nothing to learn from."""


def profile_of(domain: str, seed: int) -> Profile:
    return profiles.load("quickstart", {**DOMAINS[domain], "seed": seed, "seed_data.curricula": ["web", "screens"]})


def start_of(domain: str, seed: int, num: int, bars: Progress) -> Start:
    """Tutorials, then `num` demonstrations a task."""
    profile = profile_of(domain, seed)
    if num != WEAK:
        profile = profile.model_copy(update={"sft": profile.sft.model_copy(update={"steps": STRONG_SFT_STEPS})})
    show, shown = partial(_demonstrations, profile, domain, num, bars), [num, GAME_DEMONSTRATIONS, FUMBLES]
    return make_start(ROOT, f"{domain}-{seed}-start-{num}", profile, seed, show, bars, shown=shown)


async def _demonstrations(profile: Profile, domain: str, num: int, bars: Progress) -> list[Episode]:
    if domain == "catch" and num == WEAK:
        return await demonstrations(profile, GAME_DEMONSTRATIONS, bars, Fumbler(profile.agent.builder().grammar, FUMBLES))
    return await demonstrations(profile, num, bars)


def recipe_of(domain: str, seed: int, arm: str, arguments: argparse.Namespace) -> str:
    """Fingerprint of the settings that an arm's figures depend on."""
    start = [profile_of(domain, seed).model_dump(mode="json"), WEAK, STRONG, STRONG_SFT_STEPS, GAME_DEMONSTRATIONS, FUMBLES]
    return fingerprint(start, ARMS.get(arm), STORED.get(arm), arguments.episodes, arguments.per_task, arguments.split.value)


def measure(domain: str, seed: int, arm: str, arguments: argparse.Namespace, console: Console) -> Row:
    """One arm of a domain and seed, from its file where it was measured before. `start` is the policy before any RL."""

    def figures() -> dict[str, Any]:
        with Progress(console=console, transient=True) as bars:
            start = start_of(domain, seed, STRONG if arm.startswith("strong") else WEAK, bars)
            policy, learned = start.folder, dict[str, Any]()
            if arm not in ("start", "strong start"):
                policy, learned = _learn(start, domain, seed, arm, arguments, bars)
            return {**learned, **judged(asyncio.run(evaluation(start.profile, policy, arguments.per_task, bars, split=arguments.split)))}

    recipe = recipe_of(domain, seed, arm, arguments)
    reported = {"domain": domain, "seed": seed, "arm": arm, "split": arguments.split.value}
    return kept_row(ROOT / f"{name_of(domain, seed, arm, arguments)}.json", recipe, reported, figures)


def name_of(domain: str, seed: int, arm: str, arguments: argparse.Namespace) -> str:
    return f"{domain}-{seed}-{arm}-{arguments.split.value}"


def _learn(start: Start, domain: str, seed: int, arm: str, arguments: argparse.Namespace, bars: Progress) -> tuple[Path, dict[str, Any]]:
    """Run an arm's RL; the checkpoint, and what it cost and showed."""
    profile, folder = start.profile, ROOT / name_of(domain, seed, arm, arguments)
    tasks = [task for task in pool_tasks(profile.tasks) if not task.held_out]
    num_stored = int(STORED.get(arm, 0.0) * arguments.episodes) // len(tasks)
    settings = {"episodes_per_task": (arguments.episodes // len(tasks) - num_stored) // profile.rl.rounds, "seed": seed}
    stored = asyncio.run(_stored(start, num_stored, arguments, bars)) if num_stored else []
    config = PpoConfig.model_validate({**profile.rl.model_dump(), **settings, **ARMS[arm]})
    run = PpoRun(
        config=config,
        init_checkpoint=start.folder,
        tasks=tasks,
        replay=start.replay(),
        output=folder,
        run_folder=folder.with_suffix(".run"),
        stage=f"rl_{domain}",
        iteration="0001",
        critic=CriticSource(stage=f"critic_{domain}", output=folder.with_suffix(".critic"), episodes=lambda: stored) if stored else None,
    )
    bar, curve = Bar(bars, f"{domain} {seed}: {arm}", config.rounds), []
    started_s, started_cpu_s = time.perf_counter(), time.process_time()

    def report(_: int, metrics: Mapping[str, float]) -> None:
        curve.append(dict(metrics))
        bar.advance()

    async def train() -> None:
        async with open_collector(profile.acting) as collector:
            await train_ppo(run, collector, on_progress=report)

    is_blocked = False
    try:
        asyncio.run(train())
    except ValueGateNotPassed:
        folder, is_blocked = start.folder, True
    steps = [len(episode.steps) for episode in (*stored, *rollout_log_of(run).episodes())]
    shutil.rmtree(run.run_folder, ignore_errors=True)
    return folder, {
        "episodes": len(steps),
        "env_steps": sum(steps),
        "wall_s": time.perf_counter() - started_s,
        "cpu_s": time.process_time() - started_cpu_s,
        "curve": curve,
        "is_blocked": is_blocked,
    }


async def _stored(start: Start, num: int, arguments: argparse.Namespace, bars: Progress) -> list[Episode]:
    """Episodes of the start on train instances that its RL does not meet, `num` a task; those that were played before are kept."""
    log, profile = EpisodeLog(start.folder.with_suffix(f".stored-{arguments.episodes}")), start.profile
    log.repair()
    engine = EmbeddedEngine.from_checkpoint(start.folder)
    requests = requests_for(
        profile.tasks,
        purpose="rollout",
        policy_id=engine.policy_id,
        split=Split.TRAIN,
        num=num,
        skip=STORED_SKIP,
        temperature=profile.rl.temperature,
        screenshots=False,
    )
    known = {episode.episode_id for episode in log.without_screenshots()}
    missing = [request for request in requests if request.episode_id not in known]
    bar = Bar(bars, "stored episodes", len(missing))
    with closing(engine):
        async with open_collector(profile.acting) as collector:
            async for _ in collector.collect(engine, missing, log=log):
                bar.advance()
    return [episode for episode in log.without_screenshots() if episode.outcome is not Outcome.CRASHED]


def table(domain: str, rows: list[dict[str, Any]]) -> Table:
    """An arm a line: success of each seed, the gain over its own start with a paired interval, and what it cost."""
    measured = f"{domain}: greedy success on {rows[0]['split']} instances"
    drawn = Table(title=f"{measured}, mean over tasks ± standard error (95 % interval where it is 0)")
    seeds = sorted({row["seed"] for row in rows})
    reported = ("gain over the start (95 %)", "env steps", "CPU s", "critic steers", "lambda", "explained")
    for column in ("arm", *(f"seed {seed}" for seed in seeds), *reported):
        drawn.add_column(column)
    by = {(row["arm"], row["seed"]): row for row in rows}
    for arm in dict.fromkeys(row["arm"] for row in rows):
        cells = [success(by[arm, seed]) if (arm, seed) in by else "" for seed in seeds]
        mine = [by[arm, seed] for seed in seeds if (arm, seed) in by]
        cost = [f"{mean(row[key] for row in mine):.0f}" if key in mine[0] else "" for key in ("env_steps", "cpu_s")]
        drawn.add_row(arm, *cells, _gain(arm, mine, by), *cost, *steering(mine))
    return drawn


def published(domain: str, rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What goes into docs/measured: a row an arm, the gain over its own start."""
    by: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by.setdefault(row["arm"], []).append(row)
    arms = [arm for arm in by if not arm.endswith("start")]
    return {
        f"{domain} {arm}": {"domain": domain, "arm": arm, **summary(by[arm], by["strong start" if arm == "strong" else "start"])}
        for arm in arms
    }


def steering(rows: Sequence[Row]) -> tuple[str, str, str]:
    """In how many of the rounds of all seeds the critic steered, how many runs its gate blocked, the least and the greatest lambda of any
    episode, and the mean of what it explained of a round's returns before it was fitted to them; empty for what has no critic."""
    rounds = [metrics for row in rows for metrics in row.get("curve", []) if "critic_steers" in metrics]
    if not rounds:
        return "", "", ""
    num_blocked = sum(row.get("is_blocked", False) for row in rows)
    share = f"{sum(metrics['critic_steers'] for metrics in rounds):.0f} of {len(rounds)} rounds"
    low, high = min(metrics["lambda_policy_min"] for metrics in rounds), max(metrics["lambda_policy_max"] for metrics in rounds)
    explained = mean(metrics.get("explained_variance", 0.0) for metrics in rounds)
    return share + (f", {num_blocked} of {len(rows)} blocked" if num_blocked else ""), f"{low:.2f} to {high:.2f}", f"{explained:.2f}"


def _gain(arm: str, rows: list[dict[str, Any]], by: dict[tuple[str, int], dict[str, Any]]) -> str:
    before = {"strong": "strong start"}.get(arm, "start")
    if arm in ("start", "strong start") or any((before, row["seed"]) not in by for row in rows):
        return ""
    return gain(rows, [by[before, row["seed"]] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", nargs="+", choices=list(DOMAINS), default=list(DOMAINS))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="which algorithms (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of start and RL (default: 0 1 2)")
    parser.add_argument("--episodes", type=int, default=1280, help="RL episodes of a domain (default: 1280)")
    parser.add_argument("--per-task", type=int, default=40, help="episodes a task (default: 40)")
    add_split(parser)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--publish", action="store_true", help="put the figures into docs/measured/rl_curves.json")
    arguments = parser.parse_args()
    if arguments.publish and arguments.split is not Split.HOLDOUT:
        parser.error("--publish reports figures, and those are on holdout instances: add --split holdout")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ROOT.mkdir(parents=True, exist_ok=True)
    console, found = Console(), []
    starts = ["start", *(["strong start"] if "strong" in arguments.arms else [])]
    for domain in arguments.domains:
        rows = [measure(domain, seed, arm, arguments, console) for seed in arguments.seeds for arm in [*starts, *arguments.arms]]
        console.print(table(domain, rows))
        if arguments.publish:
            publish_rows("rl_curves", published(domain, rows))
        found += rows
    if arguments.json:
        atomic_write(arguments.json, json.dumps(found, indent=2).encode())


if __name__ == "__main__":
    main()
