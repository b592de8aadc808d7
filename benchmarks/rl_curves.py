"""What reinforcement learning adds: one weak start a seed and domain, every algorithm on as many episodes, greedy success before and after.

    pointing, forms    the quickstart's MiniWoB++ tasks of the domain, from one demonstration a task
    catch              the shortest game, from the demonstrations of a player who errs at every other step
    ppo                critic with value pretraining, decoupled and length-adaptive GAE: the trainer's default
    unpretrained       the same, but the critic steers from the first round
    reinforce, reinforce++, grpo, rejection    the alternatives behind the same trainer
    replay_only        the control: as many episodes and as much compute, but only the replayed samples teach
    strong             ppo from a start of ten demonstrations a task

All arms of a seed share their start, tasks, train instances and number of episodes; holdout instances are the same for all, and
differences are paired. State lies under .bench/rl_curves, a file an arm; interrupted, it goes on with what is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import time
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent.episode import Episode, Outcome
from agent.policy import Message
from assets.profile import Profile
from benchmarks.common.small_policy import Bar, Fumbler, base_policy, demonstration_samples, demonstrations, evaluation, tutorial_samples
from models.batching import EncodedSample
from models.checkpoint import load_tokenizer
from models.ppo.config import PpoConfig
from models.ppo.replay import ReplayPool
from models.ppo.trainer import PpoResult, PpoRun, train_ppo
from models.supervised.run import TrainingSample, encode_samples, train_supervised
from pipelines import profiles
from pipelines.sandboxes import open_collector
from pipelines.workers.context import pool_tasks
from pipelines.workers.evaluate import task_counts
from warehouse.home import atomic_write
from warehouse.statistics import TaskCount, compare_paired, macro_average

ROOT = Path(".bench/rl_curves")
BOLD = {"rl.learning_rate": 5e-4, "rl.epochs": 3, "rl.minibatch_episodes": 32, "rl.max_kl": 0.1, "rl.rounds": 8}
CAREFUL = {
    "rl.learning_rate": 4e-4, "rl.epochs": 3, "rl.minibatch_episodes": 48, "rl.max_kl": 0.05, "rl.rounds": 10, "rl.replay_sft": 0,
}  # fmt: skip
"""One task alone overshoots where six or eleven hold each other back, and demonstrations of one who errs are not to be replayed."""
DOMAINS: dict[str, dict[str, Any]] = {
    "pointing": {"tasks.lists": ["miniwob:quickstart"], "tasks.domains": ["pointing"], "ct.steps": 1000, "sft.steps": 70, **BOLD},
    "forms": {"tasks.lists": ["miniwob:quickstart"], "tasks.domains": ["forms"], "ct.steps": 2000, "sft.steps": 50, **BOLD},
    "catch": {"tasks.lists": ["games:first-elements"], "tasks.domains": ["games"], "ct.steps": 1000, "sft.steps": 70, **CAREFUL},
}
"""What makes a start weak is how little it is taught; the quickstart takes 2000 and 140 steps."""
STRONG_SFT_STEPS = 280
ARMS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "unpretrained": {"pretraining_rounds": 0, "gate_policy": "open"},
    "reinforce": {"algorithm": "reinforce"},
    "reinforce++": {"algorithm": "reinforce++"},
    "grpo": {"algorithm": "grpo", "group_size": 4},
    "rejection": {"algorithm": "rejection"},
    "replay_only": {"mode": "replay_only"},
    "strong": {},
}
WEAK, STRONG = 1, 10
"""Demonstrations a task behind the start."""
GAME_DEMONSTRATIONS, FUMBLES = 12, 0.5
"""A game's weak start has seen a player who errs: one that always does the same wrong thing would have nothing to learn from."""
MAX_REPLAY = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The policy that RL starts from, and the samples it was made of."""

    profile: Profile
    folder: Path
    sft: list[TrainingSample]
    ct: list[TrainingSample]

    def replay(self) -> ReplayPool:
        return ReplayPool(sft=self._encoded(self.sft), ct=self._encoded(self.ct))

    def _encoded(self, samples: list[TrainingSample]) -> list[EncodedSample]:
        tokenizer = load_tokenizer(self.folder)
        few = samples[:: max(1, len(samples) // MAX_REPLAY)]
        return encode_samples(tokenizer, few, prompt_loss_weight=0.0, max_tokens=int(tokenizer.model_max_length))


def profile_of(domain: str, seed: int) -> Profile:
    return profiles.load("quickstart", {**DOMAINS[domain], "seed": seed, "seed_data.curricula": ["web", "screens"]})


def start_of(domain: str, seed: int, num: int, bars: Progress) -> Start:
    """Tutorials, then `num` demonstrations a task, half of what is drawn being tutorials again; from its folder if made before."""
    profile = profile_of(domain, seed)
    base = base_policy(ROOT / f"{profile.ct.steps} steps", profile, seed, bars)
    folder = ROOT / f"{domain}-{seed}-start-{num}"
    shown = folder.with_suffix(".json")
    if not shown.exists():
        fresh = demonstration_samples(asyncio.run(_demonstrations(profile, domain, num, bars)))
        atomic_write(shown, json.dumps([[asdict(message) for message in sample.messages] for sample in fresh]).encode())
    sft = [TrainingSample(messages=tuple(Message(**message) for message in each)) for each in json.loads(shown.read_text())]
    ct = tutorial_samples(profile, seed)
    if not folder.exists():
        config = profile.sft.model_copy(update={"seed": seed} | ({} if num == WEAK else {"steps": STRONG_SFT_STEPS}))
        bar = Bar(bars, f"{domain}: start", config.steps)
        mixed = [*sft, *(replace(sample, weight=len(sft) / len(ct)) for sample in ct)]
        train_supervised(config, mixed, init=base, output=folder, stage="sft_model", iteration="0001", on_progress=bar.step)
    return Start(profile=profile, folder=folder, sft=sft, ct=ct)


async def _demonstrations(profile: Profile, domain: str, num: int, bars: Progress) -> list[Episode]:
    if domain == "catch" and num == WEAK:
        return await demonstrations(profile, GAME_DEMONSTRATIONS, bars, Fumbler(profile.agent.builder().grammar, FUMBLES))
    return await demonstrations(profile, num, bars)


def measure(domain: str, seed: int, arm: str, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """One arm of a domain and seed, from its file where it was measured before. `start` is the policy before any RL."""
    target = ROOT / f"{domain}-{seed}-{arm}.json"
    if target.exists():
        return dict(json.loads(target.read_text()))
    with Progress(console=console, transient=True) as bars:
        start = start_of(domain, seed, STRONG if arm.startswith("strong") else WEAK, bars)
        policy, learned = start.folder, {}
        if arm not in ("start", "strong start"):
            policy, learned = _learn(start, domain, seed, arm, arguments, bars)
        episodes = asyncio.run(evaluation(start.profile, policy, arguments.per_task, bars))
    found = {"domain": domain, "seed": seed, "arm": arm, **learned, "outcomes": _outcomes(episodes), "counts": _counts(episodes)}
    atomic_write(target, json.dumps(found).encode())
    return found


def _learn(start: Start, domain: str, seed: int, arm: str, arguments: argparse.Namespace, bars: Progress) -> tuple[Path, dict[str, Any]]:
    """Run an arm's RL; the checkpoint, and what it cost and showed."""
    profile, folder = start.profile, ROOT / f"{domain}-{seed}-{arm}"
    tasks = [task for task in pool_tasks(profile.tasks) if not task.held_out]
    settings = {"episodes_per_task": arguments.episodes // len(tasks) // profile.rl.rounds, "seed": seed}
    config = PpoConfig.model_validate({**profile.rl.model_dump(), **settings, **ARMS[arm]})
    run = PpoRun(
        config=config, init_checkpoint=start.folder, tasks=tasks, replay=start.replay(), output=folder,
        run_folder=folder.with_suffix(".run"), stage=f"rl_{domain}", iteration="0001",
    )  # fmt: skip
    bar = Bar(bars, f"{domain} {seed}: {arm}", config.rounds)
    started_s, started_cpu_s = time.perf_counter(), time.process_time()

    async def train() -> PpoResult:
        async with open_collector(profile.acting) as collector:
            return await train_ppo(run, collector, on_progress=lambda *_: bar.advance())

    result = asyncio.run(train())
    steps = [len(episode.steps) for episode in result.spool.episodes()]
    shutil.rmtree(run.run_folder, ignore_errors=True)
    return folder, {
        "episodes": len(steps), "env_steps": sum(steps), "wall_s": time.perf_counter() - started_s,
        "cpu_s": time.process_time() - started_cpu_s, "curve": list(result.metrics),
    }  # fmt: skip


def _outcomes(episodes: Sequence[Episode]) -> list[tuple[str, int, bool]]:
    """(task, seed, solved); crashed episodes have no outcome."""
    return [(each.request.task.name, each.request.seed, each.is_success) for each in episodes if each.outcome is not Outcome.CRASHED]


def _counts(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    return [asdict(count) for count in task_counts(episodes)]


def table(domain: str, rows: list[dict[str, Any]]) -> Table:
    """An arm a line: success of each seed, the gain over its own start with a paired interval, and what it cost."""
    drawn = Table(title=f"{domain}: greedy success on holdout instances, mean over tasks ± standard error")
    seeds = sorted({row["seed"] for row in rows})
    for column in ("arm", *(f"seed {seed}" for seed in seeds), "gain over the start (95 %)", "env steps", "CPU s"):
        drawn.add_column(column)
    by = {(row["arm"], row["seed"]): row for row in rows}
    for arm in dict.fromkeys(row["arm"] for row in rows):
        cells = [_success(by[arm, seed]) if (arm, seed) in by else "" for seed in seeds]
        mine = [by[arm, seed] for seed in seeds if (arm, seed) in by]
        cost = [f"{mean(row[key] for row in mine):.0f}" if key in mine[0] else "" for key in ("env_steps", "cpu_s")]
        drawn.add_row(arm, *cells, _gain(arm, mine, by), *cost)
    return drawn


def _success(row: dict[str, Any]) -> str:
    estimate = macro_average([TaskCount(**count) for count in row["counts"]])
    return f"{estimate.mean:.3f} ± {estimate.standard_error:.3f}"


def _gain(arm: str, rows: list[dict[str, Any]], by: dict[tuple[str, int], dict[str, Any]]) -> str:
    """All seeds together: instances are strata of their task and seed."""
    before = {"strong": "strong start"}.get(arm, "start")
    if arm in ("start", "strong start") or any((before, row["seed"]) not in by for row in rows):
        return ""
    after: dict[tuple[str, Hashable], bool] = {}
    start: dict[tuple[str, Hashable], bool] = {}
    for row in rows:
        for found, into in ((row, after), (by[before, row["seed"]], start)):
            into.update({(f"{task} of seed {row['seed']}", seed): solved for task, seed, solved in found["outcomes"]})
    comparison = compare_paired(after, start)
    interval = comparison.difference.interval
    return f"{comparison.difference.mean:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", nargs="+", choices=list(DOMAINS), default=list(DOMAINS))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="which algorithms (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of start and RL (default: 0 1 2)")
    parser.add_argument("--episodes", type=int, default=1280, help="RL episodes of a domain (default: 1280)")
    parser.add_argument("--per-task", type=int, default=40, help="holdout episodes a task (default: 40)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ROOT.mkdir(parents=True, exist_ok=True)
    console, found = Console(), []
    starts = ["start", *(["strong start"] if "strong" in arguments.arms else [])]
    for domain in arguments.domains:
        rows = [measure(domain, seed, arm, arguments, console) for seed in arguments.seeds for arm in [*starts, *arguments.arms]]
        console.print(table(domain, rows))
        found += rows
    if arguments.json:
        atomic_write(arguments.json, json.dumps(found, indent=2).encode())


if __name__ == "__main__":
    main()
