"""What CT should learn of failed episodes: each objective from the same policy and the same stored episodes, on the same budget of tokens;
greedy success on holdout afterwards.

A seed's base is the quickstart's policy before the first iteration (benchmarks/seed_policies.py). It plays train instances, several
attempts each, at temperature 1; these episodes are stored, judged and routed as an iteration's are, in a home of their own. Every arm then
trains CT from the base on tutorials and, as a share of the draws, on what its objective makes of the failed episodes; then SFT, alike in
all arms, on demonstrations, the solved attempts and tutorials. There is no RL.

    none                ct_weight 0: tutorials alone
    none, whole texts   the same, with the prompts of tutorials learned too: what prompt_loss_weight does without failures
    the others          failure_mining.ct_objectives; those that learn observations have the prompt_loss_weight of "none, whole texts"

Batches and steps are alike, so an arm sees as many tokens as another however busy the machine is. State lies under
.bench/ct_objectives; interrupted, it goes on with what is missing, and refuses what is there of other settings.

    python -m benchmarks.ct_objectives --seeds 0 1 2 --publish
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent.episode.rows import rows as episode_rows
from agent.grammars.compact import read_elements
from agent.policy.policy import Message
from assets.settings.profile import Profile
from benchmarks.common.gains import gain, judged, success, summary
from benchmarks.common.kept import Row, claim, fingerprint, kept_row
from benchmarks.common.provenance import Publish, publish_rows
from benchmarks.common.small_policy import Bar, collected, demonstrations, evaluation, tutorial_samples
from benchmarks.seed_policies import make
from models.engine.embedded import EmbeddedEngine
from models.supervised.config import SupervisedConfig
from models.supervised.run import train_supervised
from models.supervised.training_set import TrainingSample
from pipelines import profiles
from pipelines.stages.context import requests_for
from sandbox.tasks.task import Split
from warehouse.core.home import Home, atomic_write
from warehouse.core.stages import SEED_ITERATION
from warehouse.quality.filters import iteration_verdicts
from warehouse.routing.ct_objectives import OBJECTIVES, OF_OBSERVATIONS, CtObjective
from warehouse.routing.failure_mining import FailureMiningConfig
from warehouse.routing.routed_samples import MEMORY_LIMIT
from warehouse.routing.routes import route
from warehouse.routing.samples import RoutedTable, sample_parts
from warehouse.storage.sql.query import connect
from warehouse.storage.sql.scan import connect_to_scan
from warehouse.storage.tables import Warehouse

ROOT = Path(".bench/ct_objectives")
ITERATION = "0001"
BASELINE = "none"
WHOLE = "none, whole texts"
PROMPT_LOSS = 0.1
"""Prompts have about ten times as many tokens as answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all arms share."""

    instances: int
    attempts: int
    tutorials: int
    ct_steps: int
    sft_steps: int
    failure_share: float
    holdout: int


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    objectives: tuple[CtObjective, ...] = ()
    prompt_loss: float = 0.0


ARMS = (
    Arm(BASELINE),
    Arm(WHOLE, (), PROMPT_LOSS),
    *(Arm(name, (name,), PROMPT_LOSS if name in OF_OBSERVATIONS else 0.0) for name in OBJECTIVES),
)


def make_home(folder: Path, profile: Profile, base: Path, asked: Settings, bars: Progress) -> Warehouse:
    """The seed's demonstrations and the base's attempts, judged and routed."""
    warehouse = Warehouse(Home((folder / "home").absolute()))
    claim(warehouse.home.root, fingerprint(asked.instances, asked.attempts, profile.seed, base.name))
    if (warehouse.home.root / "complete").exists():
        return warehouse
    shown = asyncio.run(demonstrations(profile, profile.seed_data.demonstrations_per_task, bars))
    engine = EmbeddedEngine.from_checkpoint(base)
    requests = requests_for(
        profile.tasks,
        purpose="rollout",
        policy_id=engine.policy_id,
        split=Split.TRAIN,
        num=asked.instances,
        skip=profile.seed_data.demonstrations_per_task,
        attempts=asked.attempts,
        temperature=1.0,
        screenshots=False,
    )
    played = asyncio.run(collected(profile, engine, requests, Bar(bars, "attempts", len(requests))))
    for iteration, stage, episodes in ((SEED_ITERATION, "seed", shown), (ITERATION, "rollouts", played)):
        made = episode_rows(episodes)
        for table in ("steps", "episodes"):
            warehouse.replace_partition(table, made[table], iteration=iteration, stage=stage)
    parts = iteration_verdicts(warehouse, ITERATION, profile.quality)
    warehouse.replace_partition_by_parts("verdicts", parts, iteration=ITERATION, stage="verdicts")
    with connect(warehouse) as con:
        routes = route(con, profile.routing, iteration=ITERATION)
    warehouse.replace_partition("routes", routes, iteration=ITERATION, stage="routing")
    atomic_write(warehouse.home.root / "complete", b"")
    return warehouse


def routed(warehouse: Warehouse, table: RoutedTable, objectives: tuple[CtObjective, ...]) -> list[TrainingSample]:
    """What the stored episodes give. Solved attempts show a first error: nobody annotated."""
    mining = FailureMiningConfig(ct_objectives=objectives or ("answers",), solved_attempts_tell=True)
    with connect_to_scan(warehouse, ("episodes", "steps"), memory_limit=MEMORY_LIMIT, threads=1) as con:
        rows = [row for part in sample_parts(con, table, ITERATION, mining=mining, read_elements=read_elements) for row in part.to_pylist()]
    chats = {row["sample_id"]: tuple(Message(**message) for message in row["messages"]) for row in rows}
    return [TrainingSample(messages=messages, sample_id=sample_id) for sample_id, messages in chats.items()]


def with_share(samples: Sequence[TrainingSample], others: Sequence[TrainingSample], share: float) -> list[TrainingSample]:
    """Both, where `samples` make this share of the draws."""
    weight = share / (1 - share) * sum(sample.weight for sample in others) / max(1, len(samples))
    return [*others, *(replace(sample, weight=weight) for sample in samples)]


def drawn(samples: Sequence[TrainingSample], draws: float | None) -> list[TrainingSample]:
    return [replace(sample, weight=1.0 if draws is None else draws / len(samples)) for sample in samples]


def sft_samples(warehouse: Warehouse, profile: Profile, texts: Sequence[TrainingSample]) -> list[TrainingSample]:
    """Demonstrations, solved attempts and tutorials, weighed as the profile's mixture draws them."""
    rows = warehouse.read("steps", iteration=SEED_ITERATION).to_pylist()
    shown = [
        TrainingSample(messages=(*(Message(**m) for m in row["messages"]), Message(role="assistant", content=row["response"], loss=1.0)))
        for row in rows
    ]
    mixture = profile.sft_mixture
    pools = ((shown, mixture.demonstration), (routed(warehouse, "sft_samples", ()), mixture.on_policy), (texts, mixture.tutorial))
    return [sample for samples, pool in pools if pool is not None for sample in drawn(samples, pool.draws)]


def play_arm(
    folder: Path,
    profile: Profile,
    base: Path,
    warehouse: Warehouse,
    texts: Sequence[TrainingSample],
    arm: Arm,
    asked: Settings,
    bars: Progress,
) -> dict[str, Any]:
    """CT as the arm says, SFT, greedy episodes."""
    started = time.process_time()
    failures = routed(warehouse, "ct_samples", arm.objectives) if arm.objectives else []
    ct = profile.ct_refresh.model_copy(update={"steps": asked.ct_steps, "prompt_loss_weight": arm.prompt_loss})
    taught = train(folder / f"{arm.name}-ct", ct, with_share(failures, texts, asked.failure_share) if failures else texts, base, bars)
    sft = profile.sft_refresh.model_copy(update={"steps": asked.sft_steps})
    tuned = train(folder / f"{arm.name}-sft", sft, sft_samples(warehouse, profile, texts), taught, bars)
    episodes = asyncio.run(evaluation(profile, tuned, asked.holdout, bars, split=Split.HOLDOUT))
    tokens = asked.ct_steps * ct.batch_tokens
    return {"samples": len(failures), "ct_tokens": tokens, "cpu_s": time.process_time() - started, **judged(episodes)}


def train(output: Path, config: SupervisedConfig, samples: Iterable[TrainingSample], init: Path, bars: Progress) -> Path:
    if not output.exists():
        bar = Bar(bars, output.name, config.steps)
        train_supervised(config, samples, init=init, output=output, stage=output.name, iteration=ITERATION, on_progress=bar.step)
    return output


def recipe_of(profile: Profile, asked: Settings, arm: Arm) -> str:
    parts = (profile.ct, profile.ct_refresh, profile.sft, profile.sft_refresh, profile.seed_data, profile.agent, profile.tasks)
    return fingerprint(str(asked), str(arm), profile.seed, *(part.model_dump(mode="json") for part in parts))


def print_rows(rows: Sequence[Row], console: Console) -> None:
    by_seed = [f"seed {row['seed']}" for row in of(rows, BASELINE)]
    table = Table(title=f"Greedy success on holdout after CT and SFT{'' if len(by_seed) > 2 else ', preliminary'}")
    for column in ("CT of failures", "samples", *by_seed, f"beside {BASELINE}"):
        table.add_column(column)
    for arm in ARMS:
        if mine := of(rows, arm.name):
            seeds_of_arm = {row["seed"] for row in mine}
            beside = [row for row in of(rows, BASELINE) if row["seed"] in seeds_of_arm]
            difference = gain(mine, beside) if arm.name != BASELINE and beside else ""
            table.add_row(arm.name, str(round(sum(row["samples"] for row in mine) / len(mine))), *map(success, mine), difference)
    console.print(table)


def of(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if row["arm"] == name]


def published(rows: Sequence[Row], asked: Settings) -> Mapping[str, Mapping[str, Any]]:
    """By arm; `gain` is beside the baseline of the same seeds."""
    return {
        arm.name: {
            "objectives": list(arm.objectives),
            "prompt_loss_weight": arm.prompt_loss,
            "samples": [row["samples"] for row in mine],
            "ct_tokens": mine[0]["ct_tokens"],
            "failure_share": asked.failure_share if arm.objectives else 0.0,
            "episodes": sum(len(row["outcomes"]) for row in mine),
            **summary(mine, [row for row in of(rows, BASELINE) if row["seed"] in {one["seed"] for one in mine}]),
        }
        for arm in ARMS
        if (mine := of(rows, arm.name))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="profile seeds (default: 0 1 2)")
    parser.add_argument("--arms", nargs="+", default=[arm.name for arm in ARMS], help="arms by name (default: all)")
    parser.add_argument("--instances", type=int, default=6, help="train instances a task (default: 6)")
    parser.add_argument("--attempts", type=int, default=4, help="attempts an instance (default: 4)")
    parser.add_argument("--tutorials", type=int, default=6000, help="tutorials that CT and SFT draw from (default: 6000)")
    parser.add_argument("--ct-steps", type=int, default=200, help="optimizer steps of CT (default: 200)")
    parser.add_argument("--sft-steps", type=int, default=120, help="optimizer steps of SFT (default: 120)")
    parser.add_argument("--failure-share", type=float, default=0.3, help="share of CT's draws that are of failures (default: 0.3)")
    parser.add_argument("--holdout", type=int, default=12, help="holdout instances a task (default: 12)")
    parser.add_argument("--root", type=Path, default=ROOT, help=f"where state is kept (default: {ROOT})")
    parser.add_argument("--publish", action=Publish, help="put the figures into docs/measured/ct_objectives.json")
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.arms) - {arm.name for arm in ARMS}):
        parser.error(f"--arms {', '.join(unknown)}: the arms are {', '.join(arm.name for arm in ARMS)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    asked = Settings(**{name: getattr(chosen, name) for name in Settings.__dataclass_fields__})
    console, rows = Console(), []
    for seed in chosen.seeds:
        profile, folder = profiles.load("quickstart", {"seed": seed}), chosen.root / str(seed)
        with Progress(console=console, transient=True) as bars:
            base = {name: path for name, path, _ in make(folder, profile, bars)}["seed SFT"]
            warehouse = make_home(folder, profile, base, asked, bars)
            texts = tutorial_samples(profile, seed, asked.tutorials)
            for arm in (arm for arm in ARMS if arm.name in chosen.arms):
                rows.append(
                    kept_row(
                        folder / f"{arm.name}.json",
                        recipe_of(profile, asked, arm),
                        {"arm": arm.name, "seed": seed},
                        partial(play_arm, folder, profile, base, warehouse, texts, arm, asked, bars),
                    )
                )
                console.print(json.dumps({"seed": seed, "arm": arm.name, "success": success(rows[-1]), "samples": rows[-1]["samples"]}))
    print_rows(rows, console)
    if chosen.publish:
        publish_rows("ct_objectives", published(rows, asked))


if __name__ == "__main__":
    main()
