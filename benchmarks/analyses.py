"""What each part of the paper's reinforcement learning adds: one weak start a seed, an arm without each part, greedy success after as many
episodes, and the paper's claims beside what was found.

    ppo                UI-TARS-2's parts: a value a token, lambda by length without a floor, lambda of the critic 1, clip-higher, a
                       critic that was pretrained on stored episodes of the start and steers from the first round on. Two settings
                       are not the paper's: on pointing alpha is 0.5 (0.05), and the loss is summed over an episode (mean over tokens)
    no_pretraining     its critic begins as a copy of the policy that says 0
    fixed_lambda       lambda of the policy 0.95
    coupled            lambda 0.95 of both policy and critic
    symmetric_clip     clipped at 0.2 on both sides
    step               a value a step
    token_mean         the loss is the mean over tokens, as in DAPO and VAPO, not summed over an episode's
    offset             values shifted by what the task's other episodes of the round earned above theirs
    gate, gate_task    the critic steers only in rounds in which it predicts better than a constant, or than those others' mean
    quickstart         the profile's: values a step, lambda 0.95 at least, nothing stored, a gate against a constant
    quickstart_task    the same with the gate of gate_task
    streaming          quickstart, and episodes go on while the policy learns
    reinforce, reinforce++, grpo, gigpo, rejection    the alternatives behind the same trainer, as published
    forks              reinforce, and each episode is forked at the step whose answer was least likely: three siblings begin there by
                       verified replay, and from there on are compared with each other and their parent
    replay_only        the control: as many episodes and as much compute, but only the replayed samples teach

Domains are the quickstart's MiniWoB++ tasks, `pointing` (one to three steps) and `forms` (three to five, more tokens and more time), and
`catch`, the shortest game. Starts of a domain share one policy that has read tutorials; each seed has its own demonstrations, one a task,
and its own order of everything. The arms of a seed share start, tasks, train instances and number of episodes, up to what does not divide
into whole rounds; stored ones count, and so does a fork, whose replayed steps are environment steps like others. As an arm's episodes get
shorter or longer it takes fewer or more steps: so these are shown, and learning curves are compared up to as many of them. Measured
instances are the same for all arms, and differences are paired. Intervals are Student's t over seeds, 95 %. Fewer than three seeds are
preliminary.

An arm is a line of ARMS, a comparison a line of CLAIMS (common/rl_arms.py). State lies under .bench/analyses, a file an arm;
interrupted, it goes on with what is missing, and refuses what is there of other settings.

    python -m benchmarks.analyses --split holdout --publish
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from agent.episode.episode import Episode, Outcome
from agent.episode.log import EpisodeLog
from assets.settings.profile import Profile
from benchmarks.common.gains import judged
from benchmarks.common.kept import Row, fingerprint, kept_row
from benchmarks.common.page import write_between
from benchmarks.common.provenance import MEASURED, Publish, publish_rows
from benchmarks.common.rl_arms import page, published, sections
from benchmarks.common.small_policy import Bar, Fumbler, Start, demonstrations, evaluation, make_start, sampled, start_recipe
from benchmarks.common.splits import add_split
from models.rl.config import PpoConfig
from models.rl.metrics import episode_metrics
from models.rl.trainer import PpoRun, rollout_log_of, train_ppo
from models.rl.value.pretraining import CriticSource
from pipelines import profiles
from pipelines.stages.context import profile_tasks
from pipelines.stages.sandboxes import open_collector
from sandbox.tasks.task import Split
from warehouse.core.errors import ValueGateNotPassed
from warehouse.core.home import atomic_write

ROOT = Path(".bench/analyses")
PAGE = Path("docs/rl.md")
BOLD = {"rl.learning_rate": 5e-4, "rl.epochs": 3, "rl.minibatch_episodes": 32, "rl.max_kl": 0.1, "rl.kl_check": "minibatch", "rl.rounds": 8}
CAREFUL = {"rl.learning_rate": 4e-4, "rl.epochs": 3, "rl.minibatch_episodes": 48, "rl.max_kl": 0.05, "rl.rounds": 10, "rl.replay_sft": 0}
"""Larger steps than the quickstart's trainer takes. One task alone overshoots where six or eleven hold each other back, and demonstrations
of one who errs are not to be replayed."""
DOMAINS: dict[str, dict[str, Any]] = {
    "pointing": {
        "tasks.lists": ["miniwob:quickstart"],
        "tasks.domains": ["pointing"],
        "ct.steps": 1000,
        "sft.steps": 25,
        "rl.lambda_alpha": 0.5,
        **BOLD,
    },
    "forms": {"tasks.lists": ["miniwob:quickstart"], "tasks.domains": ["forms"], "ct.steps": 2000, "sft.steps": 50, **BOLD},
    "catch": {"tasks.lists": ["games:first-elements"], "tasks.domains": ["games"], "ct.steps": 1000, "sft.steps": 70, **CAREFUL},
}
"""What makes a start weak is how little it is taught; the quickstart takes 2000 and 140 steps. On half of the tutorials' steps forms are as
good as unsolved (.09). An episode of pointing has ten to forty tokens: with the published alpha of 0.05 lambda would be 0 for most."""
EVEN = {"adaptive_episodes": False}
"""As many episodes of each task in each round, so that rounds of all arms are compared."""
PAPER: dict[str, Any] = {**EVEN, "level": "token", "lambda_floor": 0.0, "pretraining_rounds": 0, "gate_policy": "open"}
QUICKSTART: dict[str, Any] = {**EVEN, "offline_episodes": 0}
ARMS: dict[str, dict[str, Any]] = {
    "ppo": PAPER,
    "quickstart": QUICKSTART,
    "reinforce": {**EVEN, "algorithm": "reinforce"},
    "no_pretraining": {**PAPER, "offline_episodes": 0},
    "fixed_lambda": {**PAPER, "lambda_policy": 0.95},
    "coupled": {**PAPER, "lambda_policy": 0.95, "lambda_critic": 0.95},
    "symmetric_clip": {**PAPER, "clip_high": 0.2},
    "step": {**PAPER, "level": "step"},
    "grpo": {**EVEN, "algorithm": "grpo", "group_size": 4, "rounds": 7, "aggregation": "episode_mean"},
    "gigpo": {
        **EVEN,
        "algorithm": "gigpo",
        "group_size": 4,
        "rounds": 7,
        "aggregation": "episode_mean",
        "gamma": 0.95,
        "skip_uniform_tasks": False,
    },
    "forks": {**EVEN, "algorithm": "reinforce", "fork_siblings": 3, "rounds": 7},
    "reinforce++": {**EVEN, "algorithm": "reinforce++", "skip_uniform_tasks": False},
    "offset": {**PAPER, "value_offset": "task"},
    "streaming": {**QUICKSTART, "streaming": True, "off_policy": "decoupled", "max_staleness": 4},
    "gate_task": {**PAPER, "gate_policy": "fallback", "gate_baseline": "task"},
    "gate": {**PAPER, "gate_policy": "fallback"},
    "quickstart_task": {**QUICKSTART, "gate_baseline": "task"},
    "token_mean": {**PAPER, "aggregation": "token"},
    "replay_only": {**PAPER, "mode": "replay_only"},
    "rejection": {**EVEN, "algorithm": "rejection"},
}
"""Overrides of the profile's `rl`. Seven rounds have whole groups of four, or parents with their three forks, and as many episodes. GRPO is
a mean over an episode's tokens (2402.03300, equation 3); to sum them is Dr. GRPO, which does not divide by the spread. REINFORCE++ knows
no task to skip, and GiGPO (2505.10978) prefers fast successes to slow ones."""
STORED = 0.2
"""Share of an arm's episodes that the start plays beforehand, where its critic is pretrained on them."""
TUTORIALS = 4000
"""Of those that the base has read, so many are mixed into fine-tuning and replayed."""
STORED_SKIP = 2000
"""Train instances of each task that lie before those of stored episodes."""
GAME_DEMONSTRATIONS, FUMBLES = 12, 0.5
"""Episodes, of which the solved ones are shown, and the share of erring steps. A game's weak start has seen a player who errs: one that
always does the same wrong thing would have nothing to learn from."""
_starts: dict[tuple[str, int], Start] = {}


def profile_of(domain: str, seed: int) -> Profile:
    return profiles.load("quickstart", {**DOMAINS[domain], "seed": seed, "seed_data.curricula": ["web", "screens"]})


def shown(domain: str, seed: int) -> list[Any]:
    """What fixes a start's demonstrations beside its profile."""
    return [domain, seed, GAME_DEMONSTRATIONS, FUMBLES, TUTORIALS]


def start_of(domain: str, seed: int, bars: Progress) -> Start:
    """Tutorials, then one demonstration a task."""
    if (domain, seed) not in _starts:
        profile = profile_of(domain, seed)
        show = partial(_demonstrations, profile, domain, seed, bars)
        texts = shown(domain, seed)
        name = f"{domain}-{seed}-start"
        _starts[domain, seed] = make_start(ROOT, name, profile, seed, show, bars, shown=texts, base_seed=0, num_tutorials=TUTORIALS)
    return _starts[domain, seed]


async def _demonstrations(profile: Profile, domain: str, seed: int, bars: Progress) -> list[Episode]:
    if domain == "catch":
        player = Fumbler(profile.agent.builder().grammar, FUMBLES)
        return await demonstrations(profile, GAME_DEMONSTRATIONS, bars, player, skip=seed * GAME_DEMONSTRATIONS)
    return await demonstrations(profile, 1, bars, skip=seed)


def config_of(profile: Profile, arm: str, *, episodes: int, seed: int) -> PpoConfig:
    """An arm's settings, of `episodes` a task in all: those of the start that are stored beforehand count, and forks."""
    settings = {**profile.rl.model_dump(), **ARMS[arm], "seed": seed}
    config = PpoConfig.model_validate(settings)
    in_a_round = (episodes - num_stored(config, episodes)) // config.rounds // config.with_forks
    whole_groups = in_a_round - in_a_round % config.group_size  # a round rounds them up
    return PpoConfig.model_validate({**settings, "episodes_per_task": whole_groups})


def num_stored(config: PpoConfig, episodes: int) -> int:
    """Episodes a task that are stored for a critic to be pretrained on."""
    return int(STORED * episodes) if config.algorithm == "ppo" and config.offline_episodes else 0


def recipe_of(domain: str, seed: int, arm: str, arguments: argparse.Namespace) -> str:
    """Fingerprint of the settings that an arm's figures depend on."""
    profile = profile_of(domain, seed)
    settings: list[Any] = [start_recipe(profile, seed, shown(domain, seed), base_seed=0), arguments.per_task, arguments.split.value]
    if arm != "start":
        rl = PpoConfig.model_validate({**profile.rl.model_dump(), **ARMS[arm]})
        settings += [rl.model_dump(mode="json"), STORED, STORED_SKIP, arguments.episodes]
    return fingerprint(*settings)


def measure(domain: str, seed: int, arm: str, arguments: argparse.Namespace, console: Console) -> Row:
    """One arm of a domain and seed, from its file where it was measured before. `start` is the policy before any RL."""

    def figures() -> dict[str, Any]:
        with Progress(console=console, transient=True) as bars:
            start = start_of(domain, seed, bars)
            policy, learned = start.folder, dict[str, Any]()
            if arm != "start":
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
    tasks = [task for task in profile_tasks(profile.tasks) if not task.held_out]
    config = config_of(profile, arm, episodes=arguments.episodes, seed=seed)
    stored = asyncio.run(_stored(start, num_stored(config, arguments.episodes), arguments, bars))
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
    except ValueGateNotPassed:  # judged by its start, which is what would go on
        folder, is_blocked = start.folder, True
    played = list(rollout_log_of(run).without_screenshots())
    steps = [len(episode.steps) for episode in (*stored, *played)]
    shutil.rmtree(run.run_folder, ignore_errors=True)
    return folder, {
        "episodes": len(steps),
        "env_steps": sum(steps),
        "replayed_steps": sum(len(episode.steps) - len(episode.own_steps) for episode in played),
        "env_steps_stored": sum(len(episode.steps) for episode in stored),
        "success_stored": episode_metrics(stored).get("success", 0.0),
        "wall_s": time.perf_counter() - started_s,
        "cpu_s": time.process_time() - started_cpu_s,
        "curve": curve,
        "is_blocked": is_blocked,
    }


async def _stored(start: Start, num: int, arguments: argparse.Namespace, bars: Progress) -> list[Episode]:
    """Episodes of the start on train instances that its RL does not meet, `num` a task; those that were played before are kept."""
    if not num:
        return []
    log = EpisodeLog(start.folder.with_suffix(f".stored-{arguments.episodes}"))
    temperature = start.profile.rl.temperature
    episodes = await sampled(start.profile, start.folder, num, bars, skip=STORED_SKIP, temperature=temperature, log=log)
    return [episode for episode in episodes if episode.outcome is not Outcome.CRASHED]


def published_rows(folder: Path = MEASURED) -> dict[str, dict[str, Any]]:
    """All that is published; nothing before the first time."""
    path = folder / "analyses.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.exists() else {}


def write_page() -> None:
    write_between(PAGE, "analyses", page(published_rows()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", nargs="+", choices=list(DOMAINS), default=["pointing"], help="which tasks (default: pointing)")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="which settings (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of start and RL (default: 0 1 2)")
    parser.add_argument("--episodes", type=int, default=112, help="episodes of an arm a task (default: 112)")
    parser.add_argument("--per-task", type=int, default=30, help="measured episodes a task (default: 30)")
    add_split(parser)
    parser.add_argument("--only-measured", action="store_true", help="measure nothing: only what lies there")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--publish", action=Publish, help="put the figures into docs/measured/analyses.json and docs/rl.md")
    arguments = parser.parse_args()
    if arguments.publish and arguments.split is not Split.HOLDOUT:
        parser.error("--publish reports figures, and those are on holdout instances: add --split holdout")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ROOT.mkdir(parents=True, exist_ok=True)
    console, found = Console(), []
    for domain in arguments.domains:
        wanted = [(seed, arm) for seed in arguments.seeds for arm in ("start", *arguments.arms)]
        if arguments.only_measured:
            wanted = [(seed, arm) for seed, arm in wanted if (ROOT / f"{name_of(domain, seed, arm, arguments)}.json").exists()]
        rows = [measure(domain, seed, arm, arguments, console) for seed, arm in wanted]
        figures = published(domain, rows)
        for section in sections(domain, figures):
            console.print(section.drawn())
        if arguments.publish:
            publish_rows("analyses", figures)
        found += rows
    if arguments.publish:
        write_page()
    if arguments.json:
        atomic_write(arguments.json, json.dumps(found, indent=2).encode())


if __name__ == "__main__":
    main()
