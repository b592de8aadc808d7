"""What benchmarks of learning share: a small policy taught by tutorials, demonstrations to fine-tune it on, and its greedy episodes.

Each step draws a line of progress. What is compared is the business of the benchmark.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress, TaskID

from agent.decider import ORACLE_POLICY_ID, Decider, Moment, OracleDecider
from agent.episode import Episode
from agent.grammars.base import Grammar
from agent.prompt import training_messages
from agent.tutorials import tutorials
from agent.vocabulary import words
from assets.profile import Profile
from models.checkpoint import save
from models.engine import EmbeddedEngine
from models.metrics import Progress as TrainingProgress
from models.seed_policy import seed_policy
from models.supervised.run import TrainingSample, train_supervised
from pipelines.sandboxes import open_collector
from pipelines.workers.context import requests_for
from pipelines.workers.evaluate import greedy_requests
from sandbox.actions import Action, Hotkey
from sandbox.task import Split


class Bar:
    """One line of progress, of training steps or episodes."""

    def __init__(self, bars: Progress, text: str, total: int) -> None:
        self._bars, self._task = bars, TaskID(bars.add_task(text, total=total))

    def step(self, state: TrainingProgress) -> None:
        self._bars.update(self._task, completed=state.step)

    def advance(self) -> None:
        self._bars.advance(self._task)


def tutorial_samples(profile: Profile, seed: int) -> list[TrainingSample]:
    texts = tutorials(profile.seed_data.tutorials, seed, profile.seed_data.curricula, profile.agent.builder())
    return [TrainingSample(messages=messages) for messages in texts]


def base_policy(root: Path, profile: Profile, seed: int, bars: Progress) -> Path:
    """A checkpoint under `root`, trained on the profile's tutorials alone; from its folder where it was made before."""
    folder = root / f"base-{seed}"
    if folder.exists():
        return folder
    fresh = root / f"fresh-{seed}"
    save(fresh, *seed_policy(words(*profile.seed_data.curricula), seed), stage="seed_policy", iteration="0000")
    bar = Bar(bars, "tutorials", profile.ct.steps)
    config = profile.ct.model_copy(update={"seed": seed})
    samples = tutorial_samples(profile, seed)
    train_supervised(config, samples, init=fresh, output=folder, stage="ct_model", iteration="0001", on_progress=bar.step)
    return folder


class Fumbler(OracleDecider):
    """An oracle that presses a random arrow key at a share of its steps: what it shows is sound on the whole, unsure and often wrong. Its
    dice are the episode's own."""

    KEYS = ("left", "right")

    def __init__(self, grammar: Grammar, share: float) -> None:
        super().__init__(grammar)
        self._share = share

    async def answer(self, moment: Moment) -> str | None:
        dice = random.Random(moment.request.sampling_seed(moment.step_index))
        if dice.random() >= self._share:
            return await super().answer(moment)
        fumble: Action = Hotkey(keys=(dice.choice(self.KEYS),))
        return self._grammar.format(None, fumble, moment.observation)


async def demonstrations(profile: Profile, num: int, bars: Progress, player: Decider | None = None) -> list[Episode]:
    """The solved ones of `num` episodes a task that the oracle, or another player, plays on train instances."""
    requests = requests_for(profile.tasks, purpose="seed", policy_id=ORACLE_POLICY_ID, split=Split.TRAIN, num=num, screenshots=False)
    bar, episodes = Bar(bars, "demonstrations", len(requests)), []
    async with open_collector(profile.acting) as collector:
        async for episode in collector.play(player or OracleDecider(profile.agent.builder().grammar), requests):
            episodes.append(episode)
            bar.advance()
    return [episode for episode in episodes if episode.is_success]


def demonstration_samples(played: Sequence[Episode]) -> list[TrainingSample]:
    """One sample a step: the prompt as it was asked, and the oracle's answer."""
    return [TrainingSample(messages=training_messages(step.messages, step.response)) for episode in played for step in episode.steps]


async def evaluation(profile: Profile, policy: Path, num: int, bars: Progress) -> list[Episode]:
    """Greedy episodes of a checkpoint, `num` a task, on holdout instances."""
    engine = EmbeddedEngine.from_checkpoint(policy)
    requests = greedy_requests(profile.acting, engine.policy_id, Split.HOLDOUT, num)
    bar, episodes = Bar(bars, "holdout", len(requests)), []
    async with open_collector(profile.acting) as collector:
        async for episode in collector.collect(engine, requests):
            episodes.append(episode)
            bar.advance()
    engine.close()
    return episodes
