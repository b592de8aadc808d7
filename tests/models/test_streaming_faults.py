"""`kill -9` of a trainer while it streams: a real process on a tiny model. What it had acknowledged is learned from once, what it had asked
for is requested again, and the weights are those of a run that nobody killed.

The environment is the corridor of corridor.py (short and long walks), once real browsers.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agent.episode.episode import Episode
from agent.episode.loop import EpisodeLimits
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.prompts.prompt import PromptBuilder
from models.rl.config import PpoConfig
from models.rl.rollouts.log import RolloutLog
from models.rl.trainer import PpoRun, train_ppo
from models.rl.updates.replay import ReplayPool
from sandbox.tasks.task import Task
from tests.models.corridor import SHORT, CorridorPool, Refusing

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
LONG = Task(source="corridor", name="walk-12", domain="pointing", max_steps=12)
SETTINGS = {
    "algorithm": "reinforce",
    "streaming": True,
    "rounds": 6,
    "episodes_per_task": 12,
    "min_batch_episodes": 12,
    "batches_ahead": 1,
    "minibatch_episodes": 6,
    "warmup_steps": 1,
    "max_kl": 10.0,
    "explosive_kl": 100.0,
}
NUM_EPISODES, NUM_BATCHES = 144, 12
GONE_S = 15.0


def a_run(init: Path, folder: Path, tasks: list[Task], **settings: object) -> PpoRun:
    return PpoRun(
        config=PpoConfig.model_validate(SETTINGS | settings),
        init_checkpoint=init,
        tasks=tasks,
        replay=ReplayPool(),
        output=folder / "out",
        run_folder=folder / "run",
        stage="rl_pointing",
        iteration="0001",
    )


def main(init: str, folder: str, kind: str) -> None:
    """What runs in the process that is killed; prints the checkpoint's id."""

    async def train() -> None:
        run = a_run(Path(init), Path(folder), [SHORT, LONG], state_every=2)
        if kind == "browsers":
            await train_on_browsers(Path(init), Path(folder))
            return
        settings = CollectorSettings(concurrency=8)
        limits = EpisodeLimits(max_invalid_in_a_row=100, max_new_tokens=4)
        walking = PoolCollector(CorridorPool(8, step_s=0.001), PromptBuilder("compact"), limits, settings)
        result = await train_ppo(run, Refusing() if kind == "refusing" else walking)
        print(result.card.checkpoint_id)

    asyncio.run(train())


async def train_on_browsers(init: Path, folder: Path) -> None:
    from assets.settings.execution import SandboxSettings
    from assets.settings.profile import ActingSettings, TaskSettings
    from pipelines.stages.context import profile_tasks
    from pipelines.stages.sandboxes import open_collector

    tasks = TaskSettings(lists=("miniwob:smoke",), domains=("pointing", "forms"))
    acting = ActingSettings(tasks=tasks, sandbox=SandboxSettings(num_sessions=2))
    settings = {"rounds": 3, "episodes_per_task": 6, "min_batch_episodes": 8}
    run = a_run(init, folder, profile_tasks(tasks), **settings)
    async with open_collector(acting) as collector:
        result = await train_ppo(run, collector)
    print(result.card.checkpoint_id)


class Trainer:
    """The run in processes of their own, one after the other."""

    def __init__(self, init: Path, folder: Path) -> None:
        self._init, self.folder = init, folder
        self._log = folder / "log.txt"
        folder.mkdir()

    def start(self, kind: str = "corridor") -> subprocess.Popen[str]:
        program = "import sys, test_streaming_faults; test_streaming_faults.main(*sys.argv[1:])"
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", program, str(self._init), str(self.folder), kind]
        with self._log.open("a") as log:
            return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)

    def finish(self, kind: str = "corridor") -> str:
        """Run to the end; the checkpoint's id."""
        process = self.start(kind)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, self._log.read_text()[-3000:]
        return output.split()[-1]

    def kill_when(self, is_time: Callable[[], bool], kind: str = "corridor") -> None:
        process = self.start(kind)
        assert process.stdout is not None
        with process.stdout:
            deadline = time.monotonic() + 120
            while not is_time() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert process.poll() is None, self._log.read_text()[-3000:]
            descendants = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGKILL)
            process.wait()
        _, alive = psutil.wait_procs(descendants, timeout=GONE_S)
        assert alive == []

    def lines(self, pattern: str) -> list[dict[str, object]]:
        """Complete lines of the rollout log's files."""
        found = []
        for path in sorted(self.folder.glob(f"run/*/episodes/{pattern}")):
            data = path.read_bytes()
            found += [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
        return found

    @property
    def rollout_log(self) -> RolloutLog:
        (folder,) = self.folder.glob("run/*/episodes")
        return RolloutLog(folder)

    def acknowledged(self) -> dict[str, Episode]:
        """Episodes that are on disk, each once. Raises where one is there twice."""
        episodes = [Episode.model_validate(line) for line in self.lines("episodes.jsonl")]
        found = {episode.episode_id: episode for episode in episodes}
        assert len(found) == len(episodes), "an episode was run twice"
        return found


@pytest.mark.timeout(600)
def test_kills_lose_nothing_and_train_on_nothing_twice(seed_checkpoint: Path, tmp_path: Path) -> None:
    trainer, moments = Trainer(seed_checkpoint, tmp_path / "killed"), random.Random(0)
    promised: dict[str, Episode] = {}
    batches: list[dict[str, object]] = []
    for share in (0.05, 0.3, 0.6, 0.9):
        until = int(NUM_EPISODES * share) + moments.randrange(8)
        trainer.kill_when(lambda until=until: len(trainer.lines("episodes.jsonl")) >= until)
        now = trainer.acknowledged()
        assert promised.keys() <= now.keys()
        assert trainer.lines("batches.jsonl")[: len(batches)] == batches, "a batch changed after it was taken"
        promised, batches = now, trainer.lines("batches.jsonl")
    checkpoint_id = trainer.finish()
    episodes, recovered = trainer.acknowledged(), trainer.rollout_log.recover(0)
    issued = [request for block in recovered.blocks for request in block.requests]
    trained = [episode_id for ids in recovered.batches.values() for episode_id in ids]
    assert len(issued) == len(trained) == NUM_EPISODES and len(recovered.batches) == NUM_BATCHES
    assert sorted(trained) == sorted(episodes) == sorted(request.episode_id for request in issued)
    # As many long walks as short ones, as if nobody had been killed.
    assert Counter(episode.request.task.name for episode in episodes.values()) == {"walk-1": 72, "walk-12": 72}
    metrics = (line for path in trainer.folder.glob("run/*/metrics.jsonl") for line in path.read_text().splitlines())
    assert [json.loads(line)["step"] for line in metrics] == list(range(1, NUM_BATCHES + 1))
    # Learning from the rollout log alone, in one go, makes the same weights.
    shutil.rmtree(next(trainer.folder.glob("run/*/state")))
    assert trainer.finish("refusing") == checkpoint_id


@pytest.mark.timeout(600)
def test_a_trainer_killed_on_live_browsers_leaves_none_and_goes_on(seed_checkpoint: Path, tmp_path: Path) -> None:
    trainer = Trainer(seed_checkpoint, tmp_path / "live")
    trainer.kill_when(lambda: len(trainer.lines("episodes.jsonl")) >= 11, "browsers")
    promised = trainer.acknowledged()
    trainer.finish("browsers")
    episodes, recovered = trainer.acknowledged(), trainer.rollout_log.recover(0)
    assert promised.keys() <= episodes.keys()
    assert sorted(episodes) == sorted(episode_id for ids in recovered.batches.values() for episode_id in ids)
    assert sorted(episodes) == sorted(request.episode_id for block in recovered.blocks for request in block.requests)
    assert all(step.response_versions for episode in episodes.values() for step in episode.steps if step.response_token_ids)
