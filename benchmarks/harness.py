"""A public agent that is trained: browser-use, unmodified, collects MiniWoB episodes from a teacher; a tiny policy learns those that the
verifier calls good; and browser-use, answered by that policy, is measured on held-out instances before and after.

    python -m benchmarks.harness --publish

The teacher knows the tasks by rules (benchmarks/common/screen_teacher.py). The policy is a tiny Qwen3 with random weights whose answers
are held to browser-use's schema by the server, so that before it has learned anything it acts, at random. browser-use runs in a venv of
its own, made on first use, with a short system message: a tiny policy cannot read its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from agent.episode.episode import Episode, EpisodeRequest, Outcome, Purpose
from agent.episode.log import EpisodeLog
from agent.harness.registry import HARNESSES
from agent.policy.policy import Message
from assets.settings.agent import HarnessSettings
from assets.settings.execution import SandboxSettings
from assets.settings.profile import ActingSettings, TaskSettings
from benchmarks.common.kept import claim, fingerprint
from benchmarks.common.provenance import Publish, provenance, publish_rows
from benchmarks.common.tiny_qwen3 import byte_tokenizer, tiny_qwen3_of
from benchmarks.common.venv import python_of
from models.checkpoints.checkpoint import read_card, save
from models.families.registry import load_codec
from models.rl.config import PpoConfig
from models.rl.trainer import PpoRun, train_ppo
from models.rl.updates.replay import ReplayPool
from models.supervised.config import SupervisedConfig
from models.supervised.run import train_supervised
from models.supervised.training_set import TrainingSample, encode_samples
from pipelines.stages.context import requests_for
from pipelines.stages.harness import HarnessService, open_harness_collector
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Split
from warehouse.evaluation.statistics import wilson

BROWSER_USE = ("browser-use==0.13.14",)
AGENT = Path(__file__).parent / "common" / "browser_use_agent.py"
TASKS = ("click-test-2", "click-tab", "focus-text-2", "click-button", "enter-text")
SYSTEM = "Answer with the JSON of the next action."
HARNESS_FILE = "bench_harness.py"
VARIABLES = {"AGENT_SYSTEM_MESSAGE": SYSTEM, "AGENT_MAX_TOKENS": "96"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(".bench/harness"), help="where episodes and checkpoints are kept")
    parser.add_argument("--venv", type=Path, default=Path(".bench/browser-use"), help="of browser-use; made on first use")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--demonstrations", type=int, default=16, help="episodes of the teacher for each task")
    parser.add_argument("--evaluated", type=int, default=8, help="held-out instances of each task")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps of SFT")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of RL after SFT, played by browser-use, too")
    parser.add_argument("--episodes", type=int, default=8, help="episodes of each task in a round of RL")
    parser.add_argument("--at-once", type=int, default=2, help="programs that run at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--publish", action=Publish, help="put the figures into docs/measured/harness.json")
    asked = parser.parse_args()
    python = python_of(asked.venv.resolve(), BROWSER_USE)
    register(asked.root, python)
    bench = Bench(asked)
    with teacher() as url:
        shown = bench.play("demonstrations", "gateway", Split.TRAIN, asked.demonstrations, upstream=url)
    good = [episode for episode in shown if episode.is_success]
    fresh, learned = bench.train(good)
    rows = {"before": bench.play("before", "evaluation", Split.EVAL, asked.evaluated, policy=fresh)}
    rows["after"] = bench.play("after", "evaluation", Split.EVAL, asked.evaluated, policy=learned)
    if asked.rounds:
        reinforced = asyncio.run(bench.reinforce(good, learned))
        rows["after RL"] = bench.play("after-rl", "evaluation", Split.EVAL, asked.evaluated, policy=reinforced)
    report(asked, {"demonstrations": shown} | rows)


def register(root: Path, python: Path) -> None:
    """Twice: with answers that are held to its schema, and with plain ones, as a policy that learns by RL gives them."""
    root.mkdir(parents=True, exist_ok=True)
    command, variables = (str(python), str(AGENT)), {"HELD": VARIABLES, "PLAIN": VARIABLES | {"AGENT_PLAIN": "1"}}
    lines = [f"{name} = Command({command!r}, variables={given!r})\n" for name, given in variables.items()]
    (root / HARNESS_FILE).write_text("from agent.harness.harness import Command\n\n" + "".join(lines))
    HARNESSES.use({"browser_use": f"{HARNESS_FILE}:HELD", "browser_use_plain": f"{HARNESS_FILE}:PLAIN"}, root.resolve())


@contextmanager
def teacher() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.common.screen_teacher"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


class Bench:
    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked, self._root = asked, asked.root.resolve()
        self._tasks = TaskSettings(lists=("miniwob:smoke",), domains=("pointing", "forms"))
        sandbox = SandboxSettings(num_sessions=asked.at_once, episode_timeout_s=240)
        self._acting = ActingSettings(tasks=self._tasks, sandbox=sandbox)

    def play(
        self, name: str, purpose: Purpose, split: Split, num: int, *, upstream: str | None = None, policy: Path | None = None
    ) -> list[Episode]:
        """Each task's episodes, those that an earlier start played among them."""
        log = EpisodeLog(self._root / name)
        log.repair()
        policy_id = "screen-teacher" if policy is None else read_card(policy).checkpoint_id
        found = requests_for(self._tasks, purpose=purpose, policy_id=policy_id, split=split, num=num, screenshots=False)
        requests = [request for request in found if request.task.name in self._asked.tasks]
        played = {episode.episode_id: episode for episode in log.episodes()}
        self._play([request for request in requests if request.episode_id not in played], log, name, upstream, policy)
        wanted = {request.episode_id for request in requests}
        return [episode for episode in log.episodes() if episode.episode_id in wanted]

    def _play(self, requests: Sequence[EpisodeRequest], log: EpisodeLog, name: str, upstream: str | None, policy: Path | None) -> None:
        settings = HarnessSettings(name="browser_use", upstream=upstream, max_tokens=128, num_at_once=self._asked.at_once)
        if not requests:
            return
        folder = self._root / f"{name}-gateway"
        with HarnessService(self._acting, settings, policy or self._root, log, folder) as service:
            for number, future in enumerate([service.submit(request) for request in requests], 1):
                episode = future.result()
                said = (episode.error or "")[-200:]
                print(f"{name} {number}/{len(requests)} {episode.request.task.name} {episode.outcome} {said}", flush=True)

    def train(self, good: Sequence[Episode]) -> tuple[Path, Path]:
        """A fresh policy, and the same after SFT on these episodes. Raises SystemExit where those of an earlier start are of others, or
        were trained otherwise."""
        samples = [sample for episode in good for sample in samples_of(episode)]
        fresh, learned = self._root / "fresh", self._root / "learned"
        sizes = {"max_position_embeddings": 4096, "initializer_range": 0.02, "hidden_size": 128, "num_attention_heads": 4}
        config = SupervisedConfig(steps=self._asked.steps, learning_rate=2e-3, batch_tokens=2560, seed=self._asked.seed)
        claim(learned, fingerprint(sorted(one.episode_id for one in good), sizes, config.model_dump(mode="json"), VARIABLES))
        if learned.exists():
            return fresh, learned
        torch.set_num_threads(1)
        tokenizer = byte_tokenizer(message.content for sample in samples for message in sample.messages)
        model, codec = tiny_qwen3_of(tokenizer, self._asked.seed, **sizes, num_key_value_heads=4)
        save(fresh, model, codec, stage="seed_policy", iteration="0000")
        begun_s = time.monotonic()
        card = train_supervised(config, samples, init=fresh, output=learned, stage="sft_model", iteration="0001", on_progress=print)
        print(f"trained on {len(samples)} samples in {time.monotonic() - begun_s:.0f} s: {card.metrics}", flush=True)
        return fresh, learned

    async def reinforce(self, good: Sequence[Episode], learned: Path) -> Path:
        """The policy after RL on train instances of the tasks, answered plainly."""
        asked, output = self._asked, Path(self._root / "reinforced")
        tasks = [task for task in tasks_of("miniwob") if task.name in asked.tasks]
        samples = [sample for episode in good for sample in samples_of(episode)]
        replay = ReplayPool(sft=encode_samples(load_codec(learned), samples, prompt_loss_weight=0.0, max_tokens=4096))
        sizes = {"rounds": asked.rounds, "episodes_per_task": asked.episodes, "minibatch_episodes": 8, "replay_sft": 4}
        run = PpoRun(
            config=PpoConfig(algorithm="reinforce", learning_rate=2e-4, max_kl=0.1, seed_offset=1000, **sizes),
            init_checkpoint=learned,
            tasks=tasks,
            replay=replay,
            output=output,
            run_folder=self._root / "reinforced.run",
            stage="rl_pointing",
            iteration="0001",
        )
        of = [read_card(learned).checkpoint_id, sorted(one.episode_id for one in good), asked.tasks]
        claim(output, fingerprint(*of, run.config.model_dump(mode="json"), VARIABLES))
        settings = HarnessSettings(name="browser_use_plain", max_tokens=96, num_at_once=asked.at_once)
        collecting = open_harness_collector(
            self._acting, settings, temperature=run.config.temperature, folder=self._root / "reinforced-gateway"
        )
        async with collecting as collector:
            await train_ppo(run, collector, on_progress=lambda index, metrics: print(index, metrics["success"], flush=True))
        return output


def samples_of(episode: Episode) -> Iterator[TrainingSample]:
    for step in episode.steps:
        yield TrainingSample(messages=(*step.messages, Message(role="assistant", content=step.response, loss=1.0)))


def report(asked: argparse.Namespace, played: Mapping[str, Sequence[Episode]]) -> None:
    measured, load = provenance(), round(os.getloadavg()[0], 1)
    rows: dict[str, dict[str, Any]] = {}
    for name, episodes in played.items():
        for task in [*asked.tasks, "all"]:
            of_task = [one for one in episodes if task in (one.request.task.name, "all") and one.outcome is not Outcome.CRASHED]
            solved = sum(one.is_success for one in of_task)
            interval = wilson(solved, max(1, len(of_task)))
            row = {"episodes": len(of_task), "solved": solved, "low": round(interval.low, 3), "high": round(interval.high, 3)}
            crashed = sum(one.outcome is Outcome.CRASHED and task in (one.request.task.name, "all") for one in episodes)
            seconds = sum(one.duration_ms for one in of_task) / 1000 / max(1, len(of_task))
            rows[f"{name} {task}"] = {**row, "crashed": crashed, "s_per_episode": round(seconds, 1), "load": load, "measured": measured}
            print(f"{name} {task}: {json.dumps(rows[f'{name} {task}'])}", flush=True)
    if asked.publish:
        publish_rows("harness", rows)


if __name__ == "__main__":
    main()
