"""What benchmarks of learning share: a small policy taught by tutorials, the start for RL that demonstrations make of it, and greedy
episodes.

Each step draws a line of progress. What is compared is the business of the benchmark.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress, TaskID

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.log import EpisodeLog
from agent.grammars.base import Grammar
from agent.policy.action_source import ORACLE_POLICY_ID, ActionSource, OracleActionSource, StepContext
from agent.policy.policy import Message
from agent.prompts.prompt import training_messages
from assets.seed_data.tutorials import tutorials
from assets.seed_data.vocabulary import words
from assets.settings.profile import Profile
from benchmarks.common.kept import claim, fingerprint
from models.checkpoints.checkpoint import load_tokenizer, save
from models.engine.embedded import EmbeddedEngine
from models.families.seed_policy import seed_policy
from models.rl.updates.replay import ReplayPool
from models.supervised.run import train_supervised
from models.supervised.training_set import TrainingSample, encode_samples
from models.training.batching import EncodedSample
from models.training.metrics import Progress as TrainingProgress
from pipelines.stages.context import requests_for
from pipelines.stages.evaluate import greedy_requests
from pipelines.stages.sandboxes import open_collector
from sandbox.actions import Action, Hotkey
from sandbox.tasks.task import Split, Task
from warehouse.core.home import atomic_write

MAX_REPLAY = 2000


class Bar:
    """One line of progress, of training steps or episodes."""

    def __init__(self, bars: Progress, text: str, total: int) -> None:
        self._bars, self._task = bars, TaskID(bars.add_task(text, total=total))

    def step(self, state: TrainingProgress) -> None:
        self._bars.update(self._task, completed=state.step)

    def advance(self) -> None:
        self._bars.advance(self._task)


def tutorial_samples(profile: Profile, seed: int, num: int | None = None) -> list[TrainingSample]:
    """The profile's tutorials, or the first `num` of them."""
    texts = tutorials(num or profile.seed_data.tutorials, seed, profile.seed_data.curricula, profile.agent.builder())
    return [TrainingSample(messages=messages) for messages in texts]


def base_recipe(profile: Profile, seed: int) -> str:
    """Fingerprint of what a base policy depends on."""
    return fingerprint(seed, *(part.model_dump(mode="json") for part in (profile.ct, profile.seed_data, profile.agent)))


def base_policy(root: Path, profile: Profile, seed: int, bars: Progress) -> Path:
    """A checkpoint under `root`, trained on the profile's tutorials alone; from its folder where it was made before. Raises SystemExit
    where that one is of other settings."""
    folder = root / f"base-{seed}"
    claim(folder, base_recipe(profile, seed))
    if folder.exists():
        return folder
    torch.set_num_threads(1)  # a second thread makes a tiny model slower on a busy machine
    fresh = root / f"fresh-{seed}"
    save(fresh, *seed_policy(words(*profile.seed_data.curricula), seed), stage="seed_policy", iteration="0000")
    bar = Bar(bars, "tutorials", profile.ct.steps)
    config = profile.ct.model_copy(update={"seed": seed})
    samples = tutorial_samples(profile, seed)
    train_supervised(config, samples, init=fresh, output=folder, stage="ct_model", iteration="0001", on_progress=bar.step)
    return folder


class Fumbler(OracleActionSource):
    """An oracle that presses a random arrow key at a share of its steps: what it shows is sound on the whole, unsure and often wrong. Its
    dice are the episode's own."""

    KEYS = ("left", "right")

    def __init__(self, grammar: Grammar, share: float) -> None:
        super().__init__(grammar)
        self._share = share

    async def response_text(self, context: StepContext) -> str | None:
        dice = random.Random(context.request.sampling_seed(context.step_index))
        if dice.random() >= self._share:
            return await super().response_text(context)
        fumble: Action = Hotkey(keys=(dice.choice(self.KEYS),))
        return self._grammar.format(None, fumble, context.observation)


def of_tasks(requests: Sequence[EpisodeRequest], tasks: Mapping[str, Task] | None) -> list[EpisodeRequest]:
    """The requests for tasks of these names, each for the task that stands there: with another limit of steps, say. None: all, as they
    are."""
    if tasks is None:
        return list(requests)
    return [request.model_copy(update={"task": tasks[request.task.name]}) for request in requests if request.task.name in tasks]


async def demonstrations(
    profile: Profile, num: int, bars: Progress, player: ActionSource | None = None, tasks: Mapping[str, Task] | None = None, skip: int = 0
) -> list[Episode]:
    """The solved ones of `num` episodes a task that the oracle, or another player, plays on train instances after the first `skip`."""
    drawn = requests_for(
        profile.tasks, purpose="seed", policy_id=ORACLE_POLICY_ID, split=Split.TRAIN, num=num, skip=skip, screenshots=False
    )
    requests = of_tasks(drawn, tasks)
    bar, episodes = Bar(bars, "demonstrations", len(requests)), []
    async with open_collector(profile.acting) as collector:
        async for episode in collector.play(player or OracleActionSource(profile.agent.builder().grammar), requests):
            episodes.append(episode)
            bar.advance()
    return [episode for episode in episodes if episode.is_success]


def demonstration_samples(played: Sequence[Episode]) -> list[TrainingSample]:
    """One sample a step: the prompt as it was asked, and the oracle's answer."""
    return [TrainingSample(messages=training_messages(step.messages, step.response)) for episode in played for step in episode.steps]


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
        few = samples[:: max(1, math.ceil(len(samples) / MAX_REPLAY))]
        return encode_samples(tokenizer, few, prompt_loss_weight=0.0, max_tokens=int(tokenizer.model_max_length))


def start_recipe(profile: Profile, seed: int, shown: Sequence[Any], *, base_seed: int | None = None) -> str:
    """Fingerprint of what a start depends on; `shown` are settings beside the profile's that fix the demonstrations."""
    parts = (profile.sft, profile.tasks, profile.sandbox)
    base = base_recipe(profile, seed if base_seed is None else base_seed)
    return fingerprint(base, *(part.model_dump(mode="json") for part in parts), shown)


def make_start(
    root: Path,
    name: str,
    profile: Profile,
    seed: int,
    show: Callable[[], Coroutine[Any, Any, list[Episode]]],
    bars: Progress,
    *,
    shown: Sequence[Any],
    base_seed: int | None = None,
    num_tutorials: int | None = None,
) -> Start:
    """Tutorials, then the demonstrations that `show` plays and `shown` describes, half of what is drawn being tutorials again; from its
    folder if made before. With `base_seed` the tutorials and what reads them are of that seed, so that starts share them; with
    `num_tutorials` only the first of them are drawn again. Raises SystemExit where that folder is of other settings."""
    folder = root / name
    claim(folder, start_recipe(profile, seed, shown, base_seed=base_seed))
    of_base = seed if base_seed is None else base_seed
    base = base_policy(root / f"{profile.ct.steps} steps", profile, of_base, bars)
    episodes = folder.with_suffix(".json")
    if not episodes.exists():
        fresh = demonstration_samples(asyncio.run(show()))
        if not fresh:
            raise SystemExit(f"no demonstration for {name} was solved, so there is no start: try again when the machine is less busy")
        atomic_write(episodes, json.dumps([[asdict(message) for message in sample.messages] for sample in fresh]).encode())
    sft = [TrainingSample(messages=tuple(Message(**message) for message in each)) for each in json.loads(episodes.read_text())]
    ct = tutorial_samples(profile, of_base, num_tutorials)
    if not folder.exists():
        torch.set_num_threads(1)
        config = profile.sft.model_copy(update={"seed": seed})
        bar = Bar(bars, f"{name}: start", config.steps)
        mixed = [*sft, *(replace(sample, weight=len(sft) / len(ct)) for sample in ct)]
        train_supervised(config, mixed, init=base, output=folder, stage="sft_model", iteration="0001", on_progress=bar.step)
    return Start(profile=profile, folder=folder, sft=sft, ct=ct)


async def evaluation(
    profile: Profile, policy: Path, num: int, bars: Progress, tasks: Mapping[str, Task] | None = None, split: Split = Split.EVAL
) -> list[Episode]:
    """Greedy episodes of a checkpoint, `num` a task, on instances of a split."""
    engine = EmbeddedEngine.from_checkpoint(policy)
    requests = of_tasks(greedy_requests(profile.acting, engine.policy_id, split, num), tasks)
    return await collected(profile, engine, requests, Bar(bars, split.value, len(requests)))


async def collected(
    profile: Profile, engine: EmbeddedEngine, requests: Sequence[EpisodeRequest], bar: Bar, log: EpisodeLog | None = None
) -> list[Episode]:
    """Episodes of an engine, which is closed afterwards."""
    episodes = []
    with closing(engine):
        async with open_collector(profile.acting) as collector:
            async for episode in collector.collect(engine, requests, log=log):
                episodes.append(episode)
                bar.advance()
    return episodes


async def sampled(
    profile: Profile, policy: Path, num: int, bars: Progress, *, skip: int, temperature: float = 1.0, log: EpisodeLog | None = None
) -> list[Episode]:
    """Episodes of a checkpoint on `num` train instances a task after the first `skip`, crashed ones too. With a `log` only what it lacks is
    played, and all that it has come back."""
    engine = EmbeddedEngine.from_checkpoint(policy)
    requests = requests_for(
        profile.tasks,
        purpose="rollout",
        policy_id=engine.policy_id,
        split=Split.TRAIN,
        num=num,
        skip=skip,
        temperature=temperature,
        screenshots=False,
    )
    known = set[str]()
    if log is not None:
        log.repair()
        known = {episode.episode_id for episode in log.without_screenshots()}
    missing = [request for request in requests if request.episode_id not in known]
    episodes = await collected(profile, engine, missing, Bar(bars, "episodes to learn from", len(missing)), log)
    return episodes if log is None else list(log.without_screenshots())
