"""Streaming updates beside rounds on a long-tailed workload: environment steps a second, how long sessions are leased to an unfinished
episode, how stale the tokens are, and what the policy can do after equal samples.

The workload, on live MiniWoB++ pages: two tasks of one step each, the same two with twenty pages in a row (an episode of twenty steps), and
in each batch's worth of episodes one straggler, a random one of them, that waits 10 s before its first step. Both ways have the same start,
instances, stragglers, sessions, samples an update and settings of learning; `rounds` collects a batch and then learns from it, `streaming`
goes on collecting. They take turns, repeat by repeat, in processes of their own. Clocks start with the first request.

State lies under .bench/streaming, a file a run; interrupted, it goes on with what is missing, and refuses what is there of other settings.

    python -m benchmarks.streaming --repeats 2 --json .bench/streaming.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.loop import EpisodeLimits
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.policy.action_source import ORACLE_POLICY_ID, OracleActionSource
from assets.settings.profile import Profile
from benchmarks.common.kept import Row, claim, fingerprint, kept_row
from benchmarks.common.small_policy import base_policy, base_recipe, demonstration_samples
from benchmarks.common.splits import add_split
from models.engine.embedded import EmbeddedEngine
from models.rl.config import PpoConfig
from models.rl.trainer import PpoResult, PpoRun, train_ppo
from models.rl.updates.replay import ReplayPool
from models.supervised.run import train_supervised
from pipelines import profiles
from pipelines.cluster.sessions import num_waiting, open_pool
from pipelines.stages.evaluate import task_counts
from sandbox.actions import Action
from sandbox.fleet.manager import Fleet
from sandbox.session import Observation, Session, Transition, Verdict
from sandbox.tasks.sources import tasks_in
from sandbox.tasks.task import Split, Task
from warehouse.core.home import atomic_write
from warehouse.core.identity import stable_seed

ROOT = Path(".bench/streaming")
PAGES = ("click-test-2", "click-button")
NUM_PAGES = 20
STRAGGLER_S = 10.0
ARMS: dict[str, dict[str, Any]] = {"rounds": {}, "streaming": {"streaming": True}}
TARGET_SPEED, TARGET_BUSY = 2.5, 0.9
SETTINGS: dict[str, Any] = {
    "algorithm": "reinforce",
    "learning_rate": 3e-4,
    "warmup_steps": 4,
    "epochs": 1,
    "minibatch_episodes": 8,
    "max_kl": 0.2,
    "replay_weight": 0.0,
    "off_policy": "decoupled",
    "max_staleness": 8,
    "adaptive_episodes": False,
}
START = {
    "tasks.lists": ["miniwob:quickstart"],
    "seed_data.curricula": ["web", "screens"],
    "seed_data.tutorials": 6000,
    "ct.steps": 600,
    "sft.steps": 40,
    "agent.window": 1,
    "agent.episodic_chars": 0,
}
SHOWN = 2
"""Demonstrations a page behind the start."""
REPORTED = ("batches", "per_task", "sessions", "ahead", "evaluate", "split")
"""Arguments that a run depends on."""


def tasks() -> list[Task]:
    """Short and long ones in turn: a long one is its page NUM_PAGES times."""
    found = tasks_in(["miniwob:quickstart"])
    return [found[name].model_copy(update={"max_steps": steps}) for name in PAGES for steps in (1, NUM_PAGES)]


class PagesInARow:
    """The same page again and again, with a new instance each time, as one episode; solved when half of its pages are."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.environment = getattr(session, "environment", "unknown")

    async def reset(self, task: Task, seed: int) -> Observation:
        self._task, self._seed, self._num_done, self._num_solved = task, seed, 0, 0
        return await self._session.reset(task, seed)

    async def step(self, action: Action) -> Transition:
        transition = await self._session.step(action)
        if not transition.terminated:
            return transition
        self._num_solved += (await self._session.evaluate()).success
        self._num_done += 1
        if self._num_done == self._task.max_steps:
            return transition
        observation = await self._session.reset(self._task, 1_000_000 + NUM_PAGES * self._seed + self._num_done)
        return Transition(observation=observation, reward=0.0, terminated=False, truncated=False)

    async def evaluate(self) -> Verdict:
        return Verdict(origin="verifier", score=self._num_solved / self._task.max_steps, threshold=0.5)

    async def oracle_action(self) -> Action | None:
        return await self._session.oracle_action()

    async def close(self) -> None:
        await self._session.close()


class Straggling(PagesInARow):
    """Some instances wait before their first step."""

    def __init__(self, session: Session, stragglers: set[tuple[str, int]]) -> None:
        super().__init__(session)
        self._stragglers = stragglers

    async def reset(self, task: Task, seed: int) -> Observation:
        observation = await super().reset(task, seed)
        if (task.task_id, seed) in self._stragglers:
            await asyncio.sleep(STRAGGLER_S)
        return observation


class LongTail:
    """A pool whose sessions show several pages in a row and straggle."""

    def __init__(self, pool: Fleet, stragglers: set[tuple[str, int]]) -> None:
        self._pool, self._stragglers, self.size = pool, stragglers, pool.size

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[Session]:
        async with self._pool.lease(task, screenshots=screenshots) as session:
            yield Straggling(session, self._stragglers)

    async def close(self) -> None:
        await self._pool.close()


def stragglers(per_task: int, num_batches: int) -> set[tuple[str, int]]:
    """One of the instances of each batch's worth, chosen by hash."""
    chosen, seeds = set(), {task.task_id: task.seeds(Split.TRAIN, per_task * num_batches) for task in tasks()}
    for batch in range(num_batches):
        task, place = divmod(stable_seed("straggler", batch) % (per_task * len(seeds)), per_task)
        task_id = list(seeds)[task]
        chosen.add((task_id, seeds[task_id][per_task * batch + place]))
    return chosen


@asynccontextmanager
async def collector(profile: Profile, slow: set[tuple[str, int]]) -> AsyncIterator[PoolCollector]:
    sandbox = profile.sandbox
    settings = CollectorSettings(concurrency=num_waiting(sandbox), max_retries=sandbox.max_retries)
    limits = EpisodeLimits(max_new_tokens=24, max_invalid_in_a_row=NUM_PAGES)
    async with open_pool(sandbox) as pool:
        yield PoolCollector(LongTail(pool, slow), profile.agent.builder(), limits, settings)


def requests(of: Sequence[Task], purpose: Any, policy_id: str, split: Split, num: int) -> list[EpisodeRequest]:
    return [
        EpisodeRequest(purpose=purpose, task=task, seed=seed, policy_id=policy_id, screenshots=False)
        for task in of
        for seed in task.seeds(split, num, skip=5000 if split is Split.TRAIN else 0)
    ]


def load_profile(num_sessions: int) -> Profile:
    return profiles.load("quickstart", {**START, "sandbox.num_sessions": num_sessions})


def start_recipe(profile: Profile) -> str:
    """Fingerprint of what the start depends on."""
    return fingerprint(base_recipe(profile, 0), profile.sft.model_dump(mode="json"), PAGES, SHOWN)


def start(profile: Profile, bars: Progress) -> Path:
    """A weak policy: tutorials, then a few demonstrations a page."""
    folder = ROOT / "start"
    claim(folder, start_recipe(profile))
    if folder.exists():
        return folder

    async def demonstrations() -> list[Episode]:
        short = [task for task in tasks() if task.max_steps == 1]
        asked = requests(short, "seed", ORACLE_POLICY_ID, Split.TRAIN, SHOWN)
        async with collector(profile, set()) as players:
            return [episode async for episode in players.play(OracleActionSource(profile.agent.builder().grammar), asked)]

    base = base_policy(ROOT, profile, 0, bars)
    samples = demonstration_samples(asyncio.run(demonstrations()))
    train_supervised(profile.sft, samples, init=base, output=folder, stage="sft_model", iteration="0001")
    return folder


def config_of(arm: str, repeat: int, arguments: argparse.Namespace) -> PpoConfig:
    reported = {"rounds": arguments.batches, "episodes_per_task": arguments.per_task, "seed": repeat, "batches_ahead": arguments.ahead}
    return PpoConfig.model_validate({**SETTINGS, **ARMS[arm], **reported})


def row(arm: str, repeat: int, arguments: argparse.Namespace) -> Row:
    """One run, in a process of its own; from its file where it was measured before."""
    target = ROOT / f"{arm}-{repeat}.json"

    def figures() -> Row:
        part = target.with_suffix(".part")
        command = [sys.executable, "-m", "benchmarks.streaming", "--one", arm, str(repeat), "--json", str(part)]
        for name in REPORTED:
            command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
        subprocess.run(command, check=True)
        return dict(json.loads(part.read_text()))

    settings = [config_of(arm, repeat, arguments).model_dump(mode="json"), *(getattr(arguments, name) for name in REPORTED)]
    recipe = fingerprint(start_recipe(load_profile(arguments.sessions)), NUM_PAGES, STRAGGLER_S, settings)
    return kept_row(target, recipe, {"arm": arm, "repeat": repeat}, figures)


def measure(arm: str, repeat: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run of one way, and greedy success on the short tasks afterwards."""
    profile, name, config = load_profile(arguments.sessions), f"{arm}-{repeat}", config_of(arm, repeat, arguments)
    run = PpoRun(
        config=config,
        init_checkpoint=ROOT / "start",
        tasks=tasks(),
        replay=ReplayPool(),
        output=ROOT / name,
        run_folder=ROOT / f"{name}.run",
        stage="rl_pointing",
        iteration="0001",
    )
    shutil.rmtree(run.run_folder, ignore_errors=True)
    slow = stragglers(arguments.per_task, arguments.batches)

    async def main() -> tuple[PpoResult, list[Episode]]:
        async with collector(profile, slow) as players:
            result = await train_ppo(run, players)
            engine = EmbeddedEngine.from_checkpoint(run.output)
            short = [task for task in tasks() if task.max_steps == 1]
            asked = requests(short, "evaluation", engine.policy_id, arguments.split, arguments.evaluate)
            evaluated = [episode async for episode in players.collect(engine, asked)]
            engine.close()
            return result, evaluated

    result, evaluated = asyncio.run(main())
    episodes = list(result.rollout_log.episodes())
    wall_s = sum(metrics["round_s"] for metrics in result.metrics)
    steps = sum(len(episode.steps) for episode in episodes)
    return {
        "episodes": len(episodes),
        "steps": steps,
        "wall_s": wall_s,
        "steps_per_s": steps / wall_s,
        "crashed": sum(metrics["crashed"] for metrics in result.metrics),
        "updates": len(result.metrics),
        "busy": _busy(result, range(len(result.metrics))),
        # Once the last batch is under way there are no more episodes to lease to.
        "busy_until_drain": _busy(result, range(max(1, len(result.metrics) - (arguments.ahead if config.streaming else 0)))),
        "staleness": _staleness(result),
        "tasks": Counter(f"{e.request.task.name} x {e.request.task.max_steps}" for e in episodes),
        "late_success": mean(metrics["success"] for metrics in result.metrics[-3:]),
        "greedy": [asdict(count) for count in task_counts(evaluated)],
        "curve": list(result.metrics),
    }


def _busy(result: PpoResult, chosen: range) -> float:
    rounds = [result.metrics[index] for index in chosen]
    return sum(m["lease_busy_share"] * m["round_s"] for m in rounds) / sum(m["round_s"] for m in rounds)


def _staleness(result: PpoResult) -> dict[str, float]:
    """Share of tokens at each lag, mean over updates."""
    names = sorted({name for metrics in result.metrics for name in metrics if name.startswith("staleness/")})
    return {name.partition("/")[2]: mean(metrics.get(name, 0.0) for metrics in result.metrics) for name in names}


def tables(found: list[dict[str, Any]]) -> list[Table]:
    runs = Table(title="a run a line")
    for column in (
        "way",
        "repeat",
        "env steps/s",
        "wall s",
        "leased to an unfinished episode (until the drain)",
        "late success",
        "greedy",
        "staleness: share of tokens at each lag",
    ):
        runs.add_column(column)
    for row in found:
        greedy = mean(count["num_success"] / count["num_episodes"] for count in row["greedy"])
        lags = ", ".join(f"{lag}: {share:.0%}" for lag, share in row["staleness"].items())
        runs.add_row(
            row["arm"],
            str(row["repeat"]),
            f"{row['steps_per_s']:.1f}",
            f"{row['wall_s']:.0f}",
            f"{row['busy']:.0%} ({row['busy_until_drain']:.0%})",
            f"{row['late_success']:.2f}",
            f"{greedy:.2f}",
            lags,
        )
    summary = Table(title="streaming over rounds")
    for column in ("measure", "found", "aim"):
        summary.add_column(column)
    by = {arm: {row["repeat"]: row for row in found if row["arm"] == arm} for arm in ARMS}
    pairs = [(by["streaming"][repeat], by["rounds"][repeat]) for repeat in by["streaming"] if repeat in by["rounds"]]
    if pairs:
        ratios = [ours["steps_per_s"] / theirs["steps_per_s"] for ours, theirs in pairs]
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        summary.add_row("env steps/s, times the rounds' (each repeat)", f"{mean(ratios):.2f} ({shown})", f">= {TARGET_SPEED}")
        busy = mean(ours["busy_until_drain"] for ours, _ in pairs)
        summary.add_row("leased to an unfinished episode, streaming", f"{busy:.0%}", f">= {TARGET_BUSY:.0%}")
    return [runs, summary]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2, help="runs of each way, in turn (default: 2)")
    parser.add_argument("--batches", type=int, default=16, help="updates of a run (default: 16)")
    parser.add_argument("--per-task", type=int, default=4, help="episodes a task and update (default: 4)")
    parser.add_argument("--sessions", type=int, default=8, help="browser sessions (default: 8)")
    parser.add_argument("--ahead", type=int, default=2, help="batches_ahead of streaming (default: 2)")
    parser.add_argument("--evaluate", type=int, default=30, help="greedy episodes a short task (default: 30)")
    add_split(parser)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "REPEAT"), help="only this run, in this process, its figures to --json")
    arguments = parser.parse_args()
    if arguments.one and not arguments.json:
        parser.error("--one writes its figures to --json: name a file")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ROOT.mkdir(parents=True, exist_ok=True)
    console, found = Console(), []
    if arguments.one:
        arm, repeat = arguments.one
        atomic_write(arguments.json, json.dumps(measure(arm, int(repeat), arguments)).encode())
        return
    with Progress(console=console, transient=True) as bars:
        start(load_profile(arguments.sessions), bars)
    for repeat in range(arguments.repeats):
        for arm in ARMS:
            found.append(row(arm, repeat, arguments))
            console.print(f"{arm} {repeat}: {found[-1]['steps_per_s']:.1f} environment steps a second")
    for table in tables(found):
        console.print(table)
    if arguments.json:
        atomic_write(arguments.json, json.dumps(found, indent=2).encode())


if __name__ == "__main__":
    main()
