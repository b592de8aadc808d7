"""Can a policy learn here by looking? A vision-language model of half a million parameters, from random weights, on a task that only its
pixels show: MiniWoB's click-color, where the prompt is a sentence and a screenshot and the sentence names the colour only sometimes.

    python -m benchmarks.pixels --json .bench/pixels.json

Real screenshots of headless Chromium, demonstrations of the task's oracle on train instances, the trainer of SFT, and greedy episodes on
instances of a split by the embedded engine. Beside it the same policy with another instance's screenshot before its eyes: what it still
solves then it does not solve by looking (chance is one box of four).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.grammars.registry import grammar_named
from agent.policy.action_source import ORACLE_POLICY_ID, OracleActionSource, StepContext
from agent.policy.policy import Message, Policy, Prompt, Response
from agent.prompts.prompt import PromptBuilder, training_messages
from agent.prompts.texts import Mode
from benchmarks.common.splits import add_split
from sandbox.pool.pool import SessionPool
from sandbox.session import Observation
from sandbox.tasks.miniwob.source import load_tasks
from sandbox.tasks.task import Split, Task
from warehouse.core.home import atomic_write
from warehouse.evaluation.statistics import Interval, wilson

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GRAMMAR = "doubao"
TASK = "click-color"
NUM_SESSIONS = 4
WORDS = (
    "click",
    "Click",
    "point",
    "colored",
    "box",
    "Thought",
    "Action",
    "user",
    "assistant",
    "yes",
    "no",
    "on",
    "the",
    "red",
    "blue",
    "olive",
    "lime",
    "black",
    "white",
    "grey",
    "purple",
    "orange",
    "yellow",
    "cyan",
    "pink",
    "magenta",
    *(str(number) for number in range(501, 1001)),
)
"""Single tokens of the tiny policy; other words are spelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained, and on how much. The defaults reach about what they can; a test asks for less."""

    num_demonstrations: int = 1500
    num_episodes: int = 200
    split: Split = Split.EVAL
    steps: int = 340
    batch_tokens: int = 3072
    learning_rate: float = 2e-3
    initial_std: float = 0.1
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Success, 95 % intervals by Wilson, and what it cost. CPU seconds are this process's; the browser has its own."""

    recipe: Recipe
    num_parameters: int
    success: float
    interval: Interval
    success_with_another_screenshot: float
    loss: float
    num_tokens: int
    collect_s: float
    train_cpu_s: float
    evaluate_s: float
    wall_s: float
    cpu_s: float


def opening(grammar: str, mode: Mode, instruction: str) -> tuple[Message, ...]:
    """The task alone: what the grammars' own texts say of actions would be most of what so small a policy reads."""
    return (Message(role="user", content=instruction),)


def builder() -> PromptBuilder:
    """Prompts of a sentence and a screenshot; never the elements."""
    return PromptBuilder(GRAMMAR, standing=opening)


class LookingOracle(OracleActionSource):
    """The oracle's action after a thought that says what is seen: the wanted colour, then each box and whether it is that one. A policy has
    no such help; it reads the thought in demonstrations only."""

    def __init__(self) -> None:
        super().__init__(grammar_named(GRAMMAR))
        self._thinks = grammar_named(GRAMMAR)

    async def response_text(self, context: StepContext) -> str | None:
        action = await context.oracle_action()
        return None if action is None else self._thinks.format(colours_seen(context.observation), action, context.observation)


def colours_seen(observation: Observation) -> str:
    """For instance `red: blue no red yes lime no black no`, boxes in reading order."""
    shown = [element.text.split()[0] for element in observation.elements if element.text.endswith("square")]
    said = re.search(r"Click on the (\w+) colored", observation.instruction)
    wanted, boxes = (said[1], shown) if said else (shown[0], shown[1:])
    return " ".join([f"{wanted}:", *(word for box in boxes for word in (box, "yes" if box == wanted else "no"))])


class OtherEyes:
    """A policy that is shown the screenshot of the prompt before instead of its own."""

    def __init__(self, policy: Policy, first: bytes) -> None:
        self._policy, self._last = policy, first

    @property
    def policy_id(self) -> str:
        return self._policy.policy_id

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        changed = []
        for prompt in prompts:
            changed.append(replace(prompt, images=dict.fromkeys(prompt.images, self._last)))
            self._last = next(iter(prompt.images.values()))
        return await self._policy.act(changed)


@asynccontextmanager
async def open_collector() -> AsyncIterator[PoolCollector]:
    async with SessionPool(size=NUM_SESSIONS, num_browsers=1) as pool:
        yield PoolCollector(pool, builder(), settings=CollectorSettings(concurrency=3 * NUM_SESSIONS))


def requests(task: Task, split: Split, num: int, policy_id: str, *, skip: int = 0) -> list[EpisodeRequest]:
    purpose = "seed" if split is Split.TRAIN else "evaluation"
    return [EpisodeRequest(purpose=purpose, task=task, seed=seed, policy_id=policy_id) for seed in task.seeds(split, num, skip=skip)]


async def demonstrate(task: Task, num: int) -> list[Episode]:
    """Episodes that the oracle solves on the first `num` train instances."""
    async with open_collector() as collector:
        wanted = requests(task, Split.TRAIN, num, ORACLE_POLICY_ID)
        solved = [episode async for episode in collector.play(LookingOracle(), wanted) if episode.is_success]
    return sorted(solved, key=lambda episode: episode.request.seed)  # they finish in any order, and a run follows from its samples


async def evaluate(policy: Policy, task: Task, recipe: Recipe) -> list[Episode]:
    """Greedy episodes on the first instances of a split; of train, on the first that were not asked for as demonstrations."""
    skip = recipe.num_demonstrations if recipe.split is Split.TRAIN else 0
    wanted = requests(task, recipe.split, recipe.num_episodes, policy.policy_id, skip=skip)
    async with open_collector() as collector:
        return [episode async for episode in collector.collect(policy, wanted)]


def train(recipe: Recipe, demonstrations: Sequence[Episode], folder: Path) -> Path:
    """The tiny policy from random weights, taught by SFT; its checkpoint's folder."""
    from benchmarks.common.tiny_vision import tiny_vision_policy
    from models.checkpoints.checkpoint import save
    from models.supervised.config import SupervisedConfig
    from models.supervised.run import train_supervised
    from models.supervised.training_set import TrainingSample

    model, codec = tiny_vision_policy(WORDS, recipe.seed, initializer_range=recipe.initial_std)
    save(folder / "seed", model, codec, stage="seed_policy", iteration="0000")
    images = {name: data for episode in demonstrations for name, data in episode.screenshots.items()}
    samples = [TrainingSample(messages=training_messages(step.messages, step.response)) for e in demonstrations for step in e.steps]
    config = SupervisedConfig(
        steps=recipe.steps,
        learning_rate=recipe.learning_rate,
        batch_tokens=recipe.batch_tokens,
        warmup_steps=50,
        save_every=10_000,
        seed=recipe.seed,
    )
    train_supervised(
        config, samples, init=folder / "seed", output=folder / "sft", stage="sft_model", iteration="0001", read_image=images.__getitem__
    )
    return folder / "sft"


def measure(recipe: Recipe, folder: Path) -> Result:
    """Demonstrate, train, evaluate; everything is written below `folder`."""
    import torch

    from models.checkpoints.checkpoint import read_card
    from models.engine.embedded import EmbeddedEngine
    from models.families.registry import load_policy

    torch.set_num_threads(1)
    started, cpu = time.monotonic(), _cpu_s()
    task = load_tasks()[TASK]
    demonstrations = asyncio.run(demonstrate(task, recipe.num_demonstrations))
    collected = time.monotonic()
    checkpoint = train(recipe, demonstrations, folder)
    trained = time.monotonic()
    engine = EmbeddedEngine.from_checkpoint(checkpoint)
    try:
        episodes = asyncio.run(evaluate(engine, task, recipe))
        screenshot = next(iter(demonstrations[0].screenshots.values()))
        misled = asyncio.run(evaluate(OtherEyes(engine, screenshot), task, recipe))
    finally:
        engine.close()
    card = read_card(checkpoint)
    num_success = sum(episode.is_success for episode in episodes)
    return Result(
        recipe=recipe,
        num_parameters=load_policy(checkpoint).num_parameters(),
        success=num_success / len(episodes),
        interval=wilson(num_success, len(episodes)),
        success_with_another_screenshot=sum(e.is_success for e in misled) / len(misled),
        loss=card.metrics["loss"],
        num_tokens=int(card.metrics["tokens"]),
        collect_s=collected - started,
        train_cpu_s=card.metrics["cpu_s"],
        evaluate_s=time.monotonic() - trained,
        wall_s=time.monotonic() - started,
        cpu_s=_cpu_s() - cpu,
    )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in asdict(Recipe()).items():
        if name != "split":
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    add_split(parser)
    parser.add_argument("--num-seeds", type=int, default=1, help="trained from so many seeds, from --seed on")
    parser.add_argument("--json", type=Path)
    arguments = vars(parser.parse_args())
    num_seeds, path = arguments.pop("num_seeds"), arguments.pop("json")
    table = Table(title=f"{TASK} from pixels: greedy success on {arguments['split'].value} instances")
    for column in ("seed", "success", "95 % interval", "other screenshot", "training cpu-s", "all cpu-s", "wall s"):
        table.add_column(column, justify="right")
    results = []
    for seed in range(arguments["seed"], arguments["seed"] + num_seeds):
        folder = Path(tempfile.mkdtemp(prefix="flywheel-pixels-"))
        try:
            result = measure(Recipe(**{**arguments, "seed": seed}), folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        results.append(result)
        table.add_row(
            str(seed),
            f"{result.success:.3f}",
            f"{result.interval.low:.3f} – {result.interval.high:.3f}",
            f"{result.success_with_another_screenshot:.3f}",
            f"{result.train_cpu_s:.0f}",
            f"{result.cpu_s:.0f}",
            f"{result.wall_s:.0f}",
        )
    Console().print(table)
    if path is not None:
        atomic_write(path, json.dumps([asdict(result) for result in results], default=str).encode())


if __name__ == "__main__":
    main()
