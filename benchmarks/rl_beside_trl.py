"""GRPO beside TRL's GRPOTrainer: the same start, live pages, instances, groups and episodes; greedy success before and after.

Only tasks of one step, and each episode ends after one: to TRL an attempt is one prompt and one completion that only grows, while our
policy's prompt is a window of history, made again at each step, so that an episode of several steps is not a single sequence. The tasks are
those of miniwob:quickstart that their oracle solves with a single action.

    ours     grpo with what our trainer has and TRL's has not: the loss on replayed samples, an update that stops where it strays too far
    plain    ours without these: what TRL does as well
    TRL      GRPOTrainer, whose prompts and rewards come from our browsers; it samples, learns and shuffles as it is wont to

The learning rate of each is chosen alike: every arm runs with every rate of `--rates` and every seed, and the rate of the best mean success
on the *eval* split is the one whose policies are then played on holdout. All rates are reported, with their intervals.

Alike in all three: attempts an instance, warm-up, Adam's settings, epochs, minibatches, clip range, clipping of the gradient, advantages by
group and its spread, loss averaged over an answer's tokens and then over answers, no KL penalty. Not alike: where all attempts at an
instance were rewarded alike ours leaves them out and fills minibatches with others, so it takes fewer updates from as many episodes (the
table says how many); TRL's first step has learning rate 0. CPU seconds are of sampling, learning, prompts and the bookkeeping of browsers,
not of the browsers, one thread each. State lies under .bench/rl_beside_trl, files of every policy; interrupted, it goes on with what is
missing, and refuses what is there of other settings. TRL runs in a venv of its own under .bench/trl, made on first use.

    python -m benchmarks.rl_beside_trl --seeds 0 1 2 --publish
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, cast

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent.episode.collector import Collector
from agent.episode.episode import Episode, Outcome
from agent.policy.policy import Prompt, Response
from assets.settings.profile import Profile
from benchmarks.common.gains import gain, judged, mean_success, success, summary
from benchmarks.common.kept import Row, fingerprint, kept_row
from benchmarks.common.provenance import Publish, publish_rows
from benchmarks.common.small_policy import Bar, Start, demonstrations, evaluation, make_start, start_recipe
from benchmarks.common.venv import TRL, python_of
from models.checkpoints import checkpoint
from models.families.chat import ChatCodec
from models.families.registry import load_codec
from models.families.shift_qwen3 import ShiftQwen3ForCausalLM
from models.rl.config import PpoConfig
from models.rl.rollouts.curriculum import instances_met, quotas, round_requests
from models.rl.trainer import PpoResult, PpoRun, train_ppo
from pipelines import profiles
from pipelines.stages.context import profile_tasks
from pipelines.stages.sandboxes import open_collector
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import ModelError
from warehouse.core.home import atomic_write

HERE = Path(__file__).resolve().parent
ONE_STEP = ("click-test-2", "click-button", "click-link", "click-dialog", "click-tab", "focus-text-2", "click-dialog-2")
START: dict[str, Any] = {
    "tasks.lists": ["miniwob:quickstart"],
    "tasks.domains": ["pointing"],
    "seed_data.curricula": ["web", "screens"],
    "seed_data.tutorials": 8000,
    "ct.steps": 500,
    "sft.steps": 40,
}
"""A start that is taught little: the quickstart's takes 2000 and 140 steps. In 500 it could read no more tutorials."""
SHOWN = 1
"""Demonstrations a task behind it."""
GROUP = 4
SHARED: dict[str, Any] = {
    "algorithm": "grpo",
    "group_size": GROUP,
    "adaptive_episodes": False,
    "aggregation": "episode_mean",
    "kl_coefficient": 0.0,
    "epochs": 3,
    "minibatch_episodes": GROUP * len(ONE_STEP),
    "max_kl": 0.1,
}
RATES = (1e-4, 2.5e-4, 5e-4, 1e-3, 2e-3)
OUT_OF_REACH = 1e9
ARMS: dict[str, dict[str, Any]] = {
    "ours": {},
    "plain": {"replay_weight": 0.0, "max_kl": OUT_OF_REACH, "explosive_kl": OUT_OF_REACH},
    "TRL": {},
}
REPORTED = {
    "seed",
    "rounds",
    "epochs",
    "minibatch_episodes",
    "group_size",
    "learning_rate",
    "warmup_steps",
    "adam_beta1",
    "adam_beta2",
    "max_grad_norm",
    "clip_low",
    "clip_high",
}
"""Settings of ours that TRL's are set by."""
LONGEST_LINE = 2**26
"""Bytes of a message to or from the child."""


def tasks_of(profile: Profile) -> dict[str, Task]:
    return {task.name: task.model_copy(update={"max_steps": 1}) for task in profile_tasks(profile.tasks) if task.name in ONE_STEP}


def profile_of(seed: int) -> Profile:
    return profiles.load("quickstart", {**START, "seed": seed})


def start_of(root: Path, seed: int, bars: Progress) -> Start:
    """Tutorials, then demonstrations."""
    profile = profile_of(seed)
    show = partial(demonstrations, profile, SHOWN, bars, tasks=tasks_of(profile))
    return make_start(root, f"start-{seed}", profile, seed, show, bars, shown=[SHOWN, ONE_STEP])


def config_of(profile: Profile, arm: str, rate: float, seed: int, arguments: argparse.Namespace) -> PpoConfig:
    rounds, groups = arguments.rounds, max(1, round(arguments.episodes / len(ONE_STEP) / arguments.rounds / GROUP))
    settings = {**SHARED, **ARMS[arm], "learning_rate": rate, "rounds": rounds, "episodes_per_task": groups * GROUP, "seed": seed}
    return PpoConfig.model_validate({**profile.rl.model_dump(), **settings})


def recipe_of(seed: int, arm: str, rate: float | None, arguments: argparse.Namespace) -> str:
    """Fingerprint of the settings that a policy depends on; `start`, which has no rate, is the one before any RL."""
    profile, learning = profile_of(seed), []
    if rate is not None:
        learning = [arm, config_of(profile, arm, rate, seed, arguments).model_dump(mode="json"), TRL if arm == "TRL" else None]
    return fingerprint(start_recipe(profile, seed, [SHOWN, ONE_STEP]), learning)


def measure(seed: int, arm: str, rate: float | None, split: Split, arguments: argparse.Namespace, console: Console) -> Row:
    """A policy on a split, from its files where it was learned or played before."""
    name = f"{seed}-{arm}" if rate is None else f"{seed}-{arm}-{rate:g}"
    recipe = recipe_of(seed, arm, rate, arguments)

    def learned() -> dict[str, Any]:
        if rate is None:
            return {}
        with Progress(console=console, transient=True) as bars:
            start = start_of(arguments.root, seed, bars)
            config = config_of(start.profile, arm, rate, seed, arguments)
            learn, began_s = (learn_by_trl if arm == "TRL" else learn_by_ours), time.perf_counter()
            found = asyncio.run(learn(start, config, arguments.root / name, Bar(bars, name, config.rounds)))
            return found | {"wall_s": time.perf_counter() - began_s}

    def figures() -> dict[str, Any]:
        with Progress(console=console, transient=True) as bars:
            start = start_of(arguments.root, seed, bars)
            folder = start.folder if rate is None else arguments.root / name
            return judged(asyncio.run(evaluation(start.profile, folder, arguments.per_task, bars, tasks_of(start.profile), split)))

    made = kept_row(arguments.root / f"{name}.learned.json", recipe, {"seed": seed, "arm": arm, "rate": rate}, learned)
    names = {"seed": seed, "arm": arm, "rate": rate, "split": split.value}
    played = kept_row(arguments.root / f"{name}.{split.value}.json", fingerprint(recipe, arguments.per_task), names, figures)
    return {**made, **played}


def best_rate(rows: Sequence[Row], arm: str) -> float:
    """The rate whose policies of all seeds have the best mean success on eval. Raises ValueError where a row is of another split."""
    if others := {row["split"] for row in rows} - {Split.EVAL.value}:
        raise ValueError(f"a rate is chosen on eval, not on {', '.join(sorted(others))}")
    by_rate: dict[float, list[float]] = defaultdict(list)
    for row in rows:
        if row["arm"] == arm:
            by_rate[row["rate"]].append(mean_success(row))
    return max(by_rate, key=lambda rate: mean(by_rate[rate]))


async def learn_by_ours(start: Start, config: PpoConfig, folder: Path, bar: Bar) -> dict[str, Any]:
    """Run our trainer; what it cost and showed. The checkpoint lies at `folder`."""
    run = PpoRun(
        config=config,
        init_checkpoint=start.folder,
        tasks=list(tasks_of(start.profile).values()),
        replay=start.replay(),
        output=folder,
        run_folder=folder.with_suffix(".run"),
        stage="rl_one_step",
        iteration="0001",
    )
    began_cpu_s = time.process_time()
    async with open_collector(start.profile.acting) as collector:
        result: PpoResult = await train_ppo(run, collector, on_progress=lambda *_: bar.advance())
    cpu_s = time.process_time() - began_cpu_s
    num_episodes = sum(1 for _ in result.rollout_log.episodes())
    shutil.rmtree(run.run_folder, ignore_errors=True)
    return {
        "episodes": num_episodes,
        "updates": sum(each["updates"] for each in result.metrics),
        "cpu_s": cpu_s,
        "curve": [each["success"] for each in result.metrics if "success" in each],
    }


class Child:
    """TRL's process: JSON lines both ways, one message at a time."""

    def __init__(self, to: asyncio.StreamWriter, of: asyncio.StreamReader, log: Path) -> None:
        self._to, self._of, self._log = to, of, log

    @classmethod
    @asynccontextmanager
    async def running(cls, python: Path, settings: Mapping[str, Any], folder: Path) -> AsyncIterator[Child]:
        reported, log = folder.with_suffix(".settings.json"), folder.with_suffix(".log")
        atomic_write(reported, json.dumps(settings).encode())
        environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"), "TOKENIZERS_PARALLELISM": "false"}
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                str(python),
                str(HERE / "peers/trl_grpo.py"),
                str(reported),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=environment,
                limit=LONGEST_LINE,
            )
            try:
                yield cls(cast("asyncio.StreamWriter", process.stdin), cast("asyncio.StreamReader", process.stdout), log)
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    async def hear(self) -> dict[str, Any]:
        """Its next message. Raises ModelError where it has ended."""
        line = await self._of.readline()
        if not line:
            raise ModelError(f"TRL's process ended without an answer; its last words: {self._log.read_text()[-2000:]}")
        return dict(json.loads(line))

    async def say(self, message: Mapping[str, Any]) -> None:
        self._to.write(json.dumps(message).encode() + b"\n")
        await self._to.drain()


class ChildPolicy:
    """A Policy whose answers TRL's process samples, at temperature 1 and by seeds of its own. The collector asks one batch at a time."""

    def __init__(self, child: Child, codec: ChatCodec, policy_id: str) -> None:
        self._child, self._codec, self.policy_id = child, codec, policy_id

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        asked = [tuple(self._codec.encode(prompt.messages, prompt.images).token_ids) for prompt in prompts]
        await self._child.say({"prompts": asked})
        answers = (await self._child.hear())["answers"]
        return [
            Response(
                text=self._codec.decode(answer["ids"]),
                prompt_token_ids=ids,
                token_ids=tuple(answer["ids"]),
                logprobs=tuple(answer["logprobs"]),
                policy_id=self.policy_id,
            )
            for ids, answer in zip(asked, answers, strict=True)
        ]


async def learn_by_trl(start: Start, config: PpoConfig, folder: Path, bar: Bar) -> dict[str, Any]:
    """Run TRL's trainer on our browsers, the instances being those that ours gets; what it cost and showed. The checkpoint lies at
    `folder`."""
    tasks, codec = list(tasks_of(start.profile).values()), load_codec(start.folder)
    card, raw = checkpoint.read_card(start.folder), folder.with_suffix(".raw")
    python = python_of(Path(".bench/trl").resolve(), *TRL)
    settings = config.model_dump(include=REPORTED) | {
        "start": str(start.folder.resolve()),
        "output": str(raw.resolve()),
        "model_class": str(HERE.parent / "models/families/shift_qwen3.py"),
        "round_episodes": config.episodes_per_task * len(tasks),
        "max_new_tokens": start.profile.agent.max_new_tokens,
    }
    played: list[Episode] = []
    curve: list[float] = []
    began_cpu_s = time.process_time()
    async with open_collector(start.profile.acting) as collector, Child.running(python, settings, folder) as child:
        while "round" in (message := await child.hear()):
            policy = ChildPolicy(child, codec, f"{card.checkpoint_id}-{len(curve)}")
            episodes = await _round(collector, policy, tasks, config, played)
            await child.say({"rows": rows_of(episodes, codec.eos_token_ids[0])})
            played += episodes
            curve.append(mean(episode.is_success for episode in episodes))
            bar.advance()
        cpu_s = time.process_time() - began_cpu_s + message["done"]["cpu_s"]
    with checkpoint.quiet():
        model = ShiftQwen3ForCausalLM.from_pretrained(raw)
    checkpoint.save(folder, model, codec, stage="trl_grpo", iteration="0001", parents=(card.checkpoint_id,))
    shutil.rmtree(raw)
    return {"episodes": len(played), "updates": message["done"]["updates"], "cpu_s": cpu_s, "curve": curve}


async def _round(
    collector: Collector, policy: ChildPolicy, tasks: Sequence[Task], config: PpoConfig, played: Iterable[Episode]
) -> list[Episode]:
    met = instances_met(episode.request for episode in played)
    requests = round_requests(tasks, quotas(tasks, config, {}), met, config, policy.policy_id)
    return [episode async for episode in collector.collect(policy, requests)]


def rows_of(episodes: Iterable[Episode], end_id: int) -> list[dict[str, Any]]:
    """What TRL learns from, the attempts at an instance side by side. An attempt that crashed has no reward, and its place is kept by a
    bare end token."""
    groups: dict[tuple[str, int], list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[episode.request.task.name, episode.request.seed].append(episode)
    return [_row(episode, end_id) for group in groups.values() for episode in group]


def _row(episode: Episode, end_id: int) -> dict[str, Any]:
    if episode.outcome is Outcome.CRASHED or not episode.steps or not episode.steps[0].response_token_ids:
        return {"prompt_ids": [end_id], "completion_ids": [end_id], "logprobs": [0.0], "reward": None}
    step = episode.steps[0]
    return {
        "prompt_ids": step.prompt_token_ids,
        "completion_ids": step.response_token_ids,
        "logprobs": step.response_logprobs,
        "reward": float(episode.is_success),
    }


def table(rows: Sequence[Row], split: Split) -> Table:
    """An arm and rate a line: success of each seed, the gain over the start with a paired interval, and what it cost."""
    drawn = Table(title=f"one-step tasks, {split.value}: greedy success ± standard error over tasks (95 % interval where it is 0)")
    seeds = sorted({row["seed"] for row in rows})
    reported = ("gain over the start (95 %)", "episodes", "updates", "CPU s", "wall s")
    for column in ("arm", "learning rate", *(f"seed {seed}" for seed in seeds), *reported):
        drawn.add_column(column)
    for arm, rate in dict.fromkeys((row["arm"], row["rate"]) for row in rows):
        mine = [row for row in rows if (row["arm"], row["rate"]) == (arm, rate)]
        cost = [f"{mean(row[key] for row in mine):.0f}" if key in mine[0] else "" for key in ("episodes", "updates", "cpu_s", "wall_s")]
        gained = "" if rate is None else gain(mine, [row for row in rows if row["arm"] == "start"])
        drawn.add_row(arm, "" if rate is None else f"{rate:g}", *(success(row) for row in mine), gained, *cost)
    return drawn


def published(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """What goes into docs/measured: a row an arm, rate and split."""
    found: dict[str, dict[str, Any]] = {}
    for arm, rate, split in dict.fromkeys((row["arm"], row["rate"], row["split"]) for row in rows):
        if rate is not None:
            on_split = [row for row in rows if row["split"] == split]
            mine = [row for row in on_split if (row["arm"], row["rate"]) == (arm, rate)]
            before = [row for row in on_split if row["arm"] == "start"]
            cost = {key: round(mean(row[key] for row in mine), 1) for key in ("episodes", "updates", "cpu_s")}
            found[f"{arm} {rate:g} {split}"] = {"arm": arm, "rate": rate, "split": split, **cost, **summary(mine, before)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="which trainers (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of start and RL (default: 0 1 2)")
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES), help="learning rates to choose from (default: five)")
    parser.add_argument("--episodes", type=int, default=672, help="RL episodes, to whole groups of every task and round (default: 672)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds they come in (default: 8)")
    parser.add_argument("--per-task", type=int, default=40, help="episodes a task and split (default: 40)")
    parser.add_argument("--root", type=Path, default=Path(".bench/rl_beside_trl"), help="where state lies (default: .bench/rl_beside_trl)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--publish", action=Publish, help="put the figures into docs/measured/rl_beside_trl.json")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    arguments.root.mkdir(parents=True, exist_ok=True)
    console = Console()
    swept: list[tuple[str, float | None]] = [("start", None), *((arm, rate) for arm in arguments.arms for rate in arguments.rates)]
    rows = [measure(seed, *each, Split.EVAL, arguments, console) for seed in arguments.seeds for each in swept]
    console.print(table(rows, Split.EVAL))
    chosen: list[tuple[str, float | None]] = [("start", None), *((arm, best_rate(rows, arm)) for arm in arguments.arms)]
    final = [measure(seed, *each, Split.HOLDOUT, arguments, console) for seed in arguments.seeds for each in chosen]
    console.print(table(final, Split.HOLDOUT))
    if arguments.json:
        atomic_write(arguments.json, json.dumps([*rows, *final], indent=2).encode())
    if arguments.publish:
        publish_rows("rl_beside_trl", published([*rows, *final]))


if __name__ == "__main__":
    main()
