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
    reinforce, reinforce++, grpo, rejection    the alternatives behind the same trainer, as published
    replay_only        the control: as many episodes and as much compute, but only the replayed samples teach

Domains are the quickstart's MiniWoB++ tasks, `pointing` (one to three steps) and `forms` (three to five, more tokens and more time), and
`catch`, the shortest game. Starts of a domain share one policy that has read tutorials; each seed has its own demonstrations, one a task,
and its own order of everything. The arms of a seed share start, tasks, train instances and number of episodes, stored ones counted in;
environment steps are told beside, and learning curves are compared up to as many of them. Measured instances are the same for all arms, and
differences are paired; their intervals are bootstraps over seeds, and over a seed's instances within each task. Whether an arm is better or
worse is decided by Student's t over the seeds' means. Fewer than three seeds are preliminary.

An arm is a line of ARMS, a comparison a line of CLAIMS. State lies under .bench/analyses, a file an arm; interrupted, it goes on with what
is missing, and refuses what is there of other settings.

    python -m benchmarks.analyses --split holdout --publish
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
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent.episode.episode import Episode, Outcome
from agent.episode.log import EpisodeLog
from assets.profile import Profile
from benchmarks.common.gains import gained_over_seeds, gains_by_seed, judged, mean_success, verdict
from benchmarks.common.kept import Row, fingerprint, kept_row
from benchmarks.common.provenance import MEASURED, distinct, publish_rows
from benchmarks.common.small_policy import Bar, Fumbler, Start, demonstrations, evaluation, make_start, start_recipe
from benchmarks.common.splits import add_split
from models.engine.embedded import EmbeddedEngine
from models.rl.config import PpoConfig
from models.rl.metrics import episode_metrics
from models.rl.trainer import PpoRun, rollout_log_of, train_ppo
from models.rl.value_pretraining import CriticSource
from pipelines import profiles
from pipelines.stages.context import pool_tasks, requests_for
from pipelines.stages.sandboxes import open_collector
from sandbox.tasks.task import Split
from warehouse.core.errors import ValueGateNotPassed
from warehouse.core.home import atomic_write

ROOT = Path(".bench/analyses")
PAGE, MARKS = Path("docs/rl.md"), ("<!-- analyses: begin -->", "<!-- analyses: end -->")
LEAST_SEEDS = 3
"""With fewer a figure is preliminary."""
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
"""Overrides of the profile's `rl`. Seven rounds have whole groups of four and as many episodes. GRPO is a mean over an episode's
tokens (2402.03300, equation 3); to sum them is Dr. GRPO, which does not divide by the spread. REINFORCE++ knows no task to skip."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """`arm` beside `other`; `paper` is what UI-TARS-2 (arXiv 2509.02544) or its source says, empty where the question is ours."""

    about: str
    arm: str
    other: str
    paper: str = ""


CLAIMS = (
    Claim(about="value pretraining", arm="ppo", other="no_pretraining", paper="higher reward throughout"),
    Claim(about="decoupled λ", arm="fixed_lambda", other="coupled", paper="better (VC-PPO)"),
    Claim(about="length-adaptive λ", arm="ppo", other="fixed_lambda", paper="better (VAPO)"),
    Claim(about="clip-higher", arm="ppo", other="symmetric_clip", paper="keeps exploring (DAPO)"),
    Claim(about="token against step level", arm="ppo", other="step"),
    Claim(about="PPO against GRPO", arm="ppo", other="grpo", paper="higher reward, less variance"),
    Claim(about="PPO against REINFORCE++", arm="ppo", other="reinforce++"),
    Claim(about="PPO against REINFORCE", arm="ppo", other="reinforce"),
    Claim(about="mean over tokens against sum over an episode", arm="token_mean", other="ppo"),
    Claim(about="values shifted by the task's mean", arm="offset", other="ppo"),
    Claim(about="shifted values against REINFORCE", arm="offset", other="reinforce"),
    Claim(about="gate against the task's mean, or a constant", arm="gate_task", other="gate"),
    Claim(about="gate against the task's mean, in the quickstart", arm="quickstart_task", other="quickstart"),
    Claim(about="streaming against rounds, in the quickstart", arm="streaming", other="quickstart"),
    Claim(about="the paper's parts against the quickstart's settings", arm="ppo", other="quickstart"),
    Claim(about="RL against replayed samples alone", arm="ppo", other="replay_only"),
)
TRENDS = {"entropy": "rises on GUI tasks", "think_tokens_per_step": "falls on GUI tasks", "steps_per_episode": "falls"}
"""What is watched over training, and what the paper saw."""
LOSSES = ("loss_of_critic", "loss_by_task")
KEPT = (
    "success",
    *TRENDS,
    "explained_variance",
    "explained_by_task",
    "explained_shifted",
    *LOSSES,
    "critic_steers",
    "kl",
    "clip_fraction_high",
)
"""Of each round, in what is published."""


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
        told = shown(domain, seed)
        name = f"{domain}-{seed}-start"
        _starts[domain, seed] = make_start(ROOT, name, profile, seed, show, bars, shown=told, base_seed=0, num_tutorials=TUTORIALS)
    return _starts[domain, seed]


async def _demonstrations(profile: Profile, domain: str, seed: int, bars: Progress) -> list[Episode]:
    if domain == "catch":
        player = Fumbler(profile.agent.builder().grammar, FUMBLES)
        return await demonstrations(profile, GAME_DEMONSTRATIONS, bars, player, skip=seed * GAME_DEMONSTRATIONS)
    return await demonstrations(profile, 1, bars, skip=seed)


def config_of(profile: Profile, arm: str, *, episodes: int, seed: int) -> PpoConfig:
    """An arm's settings, of `episodes` a task in all, those of the start that are stored beforehand counted in."""
    settings = {**profile.rl.model_dump(), **ARMS[arm], "seed": seed}
    config = PpoConfig.model_validate(settings)
    in_a_round = (episodes - num_stored(config, episodes)) // config.rounds
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
    tasks = [task for task in pool_tasks(profile.tasks) if not task.held_out]
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
    steps = [len(episode.steps) for episode in (*stored, *rollout_log_of(run).episodes())]
    shutil.rmtree(run.run_folder, ignore_errors=True)
    return folder, {
        "episodes": len(steps),
        "env_steps": sum(steps),
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


Rows = Mapping[tuple[str, int], Row]
"""By arm and seed."""


def by_arm(rows: Sequence[Row]) -> dict[tuple[str, int], Row]:
    return {(row["arm"], row["seed"]): row for row in rows}


def paired(arm: str, other: str, rows: Rows) -> tuple[list[Row], list[Row]]:
    """The rows of both for the seeds that both have."""
    seeds = sorted(seed for name, seed in rows if name == arm and (other, seed) in rows)
    return [rows[arm, seed] for seed in seeds], [rows[other, seed] for seed in seeds]


def curve_of(row: Row) -> tuple[list[float], list[float]]:
    """Environment steps so far, and the success at temperature 1 of the episodes of each part: the stored ones, where there are any, then
    each round's, which is played before anything is learned from it. Rounds in which all episodes crashed are left out."""
    rounds = [metrics for metrics in row["curve"] if "success" in metrics]
    parts = [(metrics["steps_per_episode"] * metrics["episodes"], metrics["success"]) for metrics in rounds]
    if row["env_steps_stored"]:
        parts.insert(0, (row["env_steps_stored"], row["success_stored"]))
    return np.cumsum([steps for steps, _ in parts]).tolist(), [rate for _, rate in parts]


def success_by_steps(row: Row, up_to: float) -> float:
    """Mean success over the environment steps of learning, up to so many of them."""
    steps, rates = curve_of(row)
    widths = [max(0.0, min(end, up_to) - begin) for begin, end in pairwise([0.0, *steps])]
    return float(np.average(rates, weights=widths))


def compared(claim: Claim, rows: Rows) -> dict[str, Any] | None:
    """Greedy success of the one less that of the other with its interval, and by seed how much more their learning curves solved up to as
    many environment steps; None where no seed has both."""
    ours, theirs = paired(claim.arm, claim.other, rows)
    if not ours:
        return None
    found = gained_over_seeds(ours, theirs)
    ends = [min(curve_of(one)[0][-1], curve_of(other)[0][-1]) for one, other in zip(ours, theirs, strict=True)]
    curves = [success_by_steps(one, end) - success_by_steps(other, end) for one, other, end in zip(ours, theirs, ends, strict=True)]
    return {
        "domain": ours[0]["domain"],
        "about": claim.about,
        "arm": claim.arm,
        "other": claim.other,
        "paper": claim.paper,
        "seeds": [row["seed"] for row in ours],
        "preliminary": len(ours) < LEAST_SEEDS,
        "gain": round(100 * found.mean, 1),
        "low": round(100 * found.interval.low, 1),
        "high": round(100 * found.interval.high, 1),
        "curve": [round(100 * each, 1) for each in curves],
        "found": verdict(gains_by_seed(ours, theirs), LEAST_SEEDS),
        "measured": distinct([*ours, *theirs]),
    }


def published(domain: str, rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """What goes into docs/measured: a row an arm, with its curves by seed, and a row a claim."""
    by, found = by_arm(rows), dict[str, dict[str, Any]]()
    for arm in dict.fromkeys(row["arm"] for row in rows if row["arm"] != "start"):
        mine, before = paired(arm, "start", by)
        gain = gained_over_seeds(mine, before)
        steers, lambdas, explained = steering(mine)
        found[f"{domain} {arm}"] = {
            "domain": domain,
            "arm": arm,
            "seeds": [row["seed"] for row in mine],
            "preliminary": len(mine) < LEAST_SEEDS,
            "start": [round(mean_success(row), 3) for row in before],
            "after": [round(mean_success(row), 3) for row in mine],
            "instances": sum(count["num_episodes"] for count in mine[0]["counts"]),
            "gain": round(100 * gain.mean, 1),
            "low": round(100 * gain.interval.low, 1),
            "high": round(100 * gain.interval.high, 1),
            "critic": {"steers": steers, "lambda": lambdas, "explained": explained},
            "by_seed": [_of_seed(row) for row in mine],
            "measured": distinct([*before, *mine]),
        }
    for claim in CLAIMS:
        if row := compared(claim, by):
            found[f"{domain}: {claim.about}"] = row
    return found


def _of_seed(row: Row) -> dict[str, Any]:
    """Null where a round does not have a figure, since all of its episodes crashed."""
    costs = {name: round(row[name]) for name in ("episodes", "env_steps", "wall_s", "cpu_s")}
    kept = [name for name in KEPT if any(name in metrics for metrics in row["curve"])]
    curve = {name: [round(metrics[name], 3) if name in metrics else None for metrics in row["curve"]] for name in kept}
    return {"seed": row["seed"], **costs, "curve": curve}


def steering(rows: Sequence[Row]) -> tuple[str, str, str]:
    """In how many of the rounds of all seeds the critic steered, how many runs its gate blocked, the least and the greatest lambda of any
    episode, and the means of what it explained of a round's returns before it was fitted to them and of what the mean return of a task's
    other episodes did; empty for what has no critic."""
    rounds = [metrics for row in rows for metrics in row.get("curve", []) if "critic_steers" in metrics]
    if not rounds:
        return "", "", ""
    num_blocked = sum(row.get("is_blocked", False) for row in rows)
    share = f"{sum(metrics['critic_steers'] for metrics in rounds):.0f} of {len(rounds)} rounds"
    low, high = min(metrics["lambda_policy_min"] for metrics in rounds), max(metrics["lambda_policy_max"] for metrics in rounds)
    explained = [mean(metrics.get(name, 0.0) for metrics in rounds) for name in ("explained_variance", "explained_by_task")]
    share += f", {num_blocked} of {len(rows)} blocked" if num_blocked else ""
    return share, f"{low:.2f} to {high:.2f}", f"{explained[0]:.2f}, {explained[1]:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table of what is published, for the terminal and for the page."""

    title: str
    columns: tuple[str, ...]
    lines: list[tuple[str, ...]]

    def drawn(self) -> Table:
        table = Table(*self.columns, title=self.title)
        for line in self.lines:
            table.add_row(*line)
        return table

    def markdown(self) -> str:
        lines = [self.columns, ("---",) * len(self.columns), *self.lines]
        return "\n".join([f"{self.title}:", "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def sections(domain: str, found: Mapping[str, Mapping[str, Any]]) -> list[Section]:
    """A domain's arms, claims and trends, of published rows; those that there are."""
    of_domain = [row for name, row in found.items() if row["domain"] == domain]
    arms, claims = [row for row in of_domain if "about" not in row], [row for row in of_domain if "about" in row]
    all_of_them = [
        Section(
            title=f"{domain}, greedy success on holdout instances before and after, mean over tasks, by seed; gains in points (95 %)",
            columns=(
                "arm",
                "seeds",
                "start",
                "after",
                "gain",
                "environment steps",
                "critic steers",
                "λ",
                "explains, the task's mean explains",
            ),
            lines=[
                (
                    f"`{row['arm']}`",
                    _seeds(row),
                    _each(row["start"], ".3f"),
                    _each(row["after"], ".3f"),
                    _interval(row),
                    _each([each["env_steps"] for each in row["by_seed"]], ",d"),
                    row["critic"]["steers"],
                    row["critic"]["lambda"],
                    row["critic"]["explained"],
                )
                for row in arms
            ],
        ),
        Section(
            title=f"{domain}, one arm less another: greedy success, and what all episodes of learning solved by as many environment steps",
            columns=("", "arms", "seeds", "difference (95 %)", "while learning, by seed", "the paper", "here"),
            lines=[
                (
                    row["about"],
                    f"`{row['arm']}` − `{row['other']}`",
                    _seeds(row),
                    _interval(row),
                    _each(row["curve"], "+.1f"),
                    row["paper"],
                    row["found"],
                )
                for row in claims
            ],
        ),
        Section(
            title=f"{domain}, while learning, mean of the first two rounds → of the last two, by seed ({_what_the_paper_saw()})",
            columns=("arm", *(name.replace("_", " ") for name in TRENDS)),
            lines=[(f"`{row['arm']}`", *(_trend(row, name) for name in TRENDS)) for row in arms],
        ),
    ]
    return [section for section in all_of_them if section.lines]


def page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """What docs/rl.md says of published rows, between its marks."""
    if not found:
        return "No arm has been measured to its end yet.\n"
    domains = dict.fromkeys(row["domain"] for row in found.values())
    measured = distinct([{"measured": each} for row in found.values() for each in row["measured"]])
    said = "; ".join(f"{each['date']} at commit {each['commit']} ({each['machine']})" for each in measured)
    return "\n".join([section.markdown() for domain in domains for section in sections(domain, found)] + [f"Measured on {said}.", ""])


def published_rows(folder: Path = MEASURED) -> dict[str, dict[str, Any]]:
    """All that is published; nothing before the first time."""
    path = folder / "analyses.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.exists() else {}


def write_page() -> None:
    found = published_rows()
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    atomic_write(PAGE, f"{head}{MARKS[0]}\n{page(found)}{MARKS[1]}{rest.partition(MARKS[1])[2]}".encode())


def _what_the_paper_saw() -> str:
    return ", ".join(f"{name.replace('_', ' ')} {seen}" for name, seen in TRENDS.items()) + " in the paper"


def _seeds(row: Mapping[str, Any]) -> str:
    return " ".join(map(str, row["seeds"])) + (", preliminary" if row["preliminary"] else "")


def _interval(row: Mapping[str, Any]) -> str:
    return f"{row['gain']:+.1f} ({row['low']:+.1f} to {row['high']:+.1f})"


def _each(values: Sequence[float], form: str) -> str:
    return ", ".join(f"{value:{form}}" for value in values)


def _trend(row: Mapping[str, Any], name: str) -> str:
    curves = [[value for value in each["curve"][name] if value is not None] for each in row["by_seed"] if name in each["curve"]]
    return ", ".join(f"{mean(curve[:2]):.2f} → {mean(curve[-2:]):.2f}" for curve in curves)


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
    parser.add_argument("--publish", action="store_true", help="put the figures into docs/measured/analyses.json and docs/rl.md")
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
        told = published(domain, rows)
        for section in sections(domain, told):
            console.print(section.drawn())
        if arguments.publish:
            publish_rows("analyses", told)
        found += rows
    if arguments.publish:
        write_page()
    if arguments.json:
        atomic_write(arguments.json, json.dumps(found, indent=2).encode())


if __name__ == "__main__":
    main()
