"""How much of returns a critic explains on episodes that it was not fitted to, after each pass, beside what tables of means explain.

The quickstart's policy before the first iteration (benchmarks/seed_policies.py) plays train instances of a domain, each once. A quarter of
them is held out. Fitted are all the others (`stored`), as before a run of RL, or as few as a round of pretraining has (`round`):

    task, step    tables: the mean return of a task, or of a task's k-th steps; a mean over few is drawn to the wider one
    1024, 6144    a critic that begins as the policy and takes an optimizer step on so many padded tokens at most; 6,144 was the default

A critic values steps or tokens (`level`). State lies under .bench/critic_fit: the policy, the episodes, a file an arm.

    python -m benchmarks.critic_fit --seeds 0 1 2 --publish
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent.episode.log import EpisodeLog
from assets.settings.profile import Profile
from benchmarks.common.kept import Row, claim, fingerprint, kept_row
from benchmarks.common.provenance import Publish, publish_rows
from benchmarks.common.small_policy import Bar, sampled
from benchmarks.seed_policies import make
from models.families.registry import load_codec, load_policy
from models.rl.config import PpoConfig
from models.rl.updates.advantages import Floats, explained_variance
from models.rl.updates.buffer import Trajectory, trajectory
from models.rl.value.critic import Critic, Level, predict, rewards_per_value
from models.rl.value.learner import ValueLearner, held_apart
from pipelines import profiles

ROOT = Path(".bench/critic_fit")
SKIP = 100
"""Train instances of each task before those that are played: demonstrations are among them."""
ROUND = 132
"""Episodes that the critic is fitted to in a round of the quickstart's pretraining on pointing: 11 tasks, 16 each, less the held-out."""
SHRINK = 2.0
"""Episodes' worth of the wider mean in each mean of a table."""
SIZES = (1024, 6144)
AMOUNTS = ("round", "stored")


async def played(folder: Path, profile: Profile, policy: Path, num: int, bars: Progress) -> list[Trajectory]:
    """Episodes of `num` train instances a task; those that were played before are kept."""
    codec = load_codec(policy)
    episodes = await sampled(profile, policy, num, bars, skip=SKIP, log=EpisodeLog(folder))
    found = (trajectory(episode, codec=codec) for episode in episodes)
    return [item for item in found if item is not None]


def returns_of(item: Trajectory, level: Level) -> Floats:
    """What the episode still earns from each value's place on."""
    return np.cumsum(rewards_per_value(item, level)[::-1])[::-1].copy()


def table_estimates(items: Sequence[Trajectory], fitted: Sequence[int], checked: Sequence[int], level: Level, by: str) -> Floats:
    """Of the checked episodes, by the means of the fitted ones."""
    of_task, of_step, everything = defaultdict[Hashable, list[float]](list), defaultdict[Hashable, list[float]](list), list[float]()
    for i in fitted:
        for (task, step), value in zip(_places(items[i], level), returns_of(items[i], level), strict=True):
            of_task[task].append(value)
            of_step[task, step].append(value)
            everything.append(value)
    overall, found = float(np.mean(everything)), []
    for i in checked:
        for task, step in _places(items[i], level):
            estimate = _shrunk(of_task[task], overall)
            found.append(estimate if by == "task" else _shrunk(of_step[task, step], estimate))
    return np.array(found)


def _places(item: Trajectory, level: Level) -> Iterator[tuple[str, int]]:
    for index, step in enumerate(item.steps):
        for _ in step.response_ids if level == "token" else (0,):
            yield item.task_name, index


def _shrunk(values: Sequence[float], wider: float) -> float:
    return (sum(values) + SHRINK * wider) / (len(values) + SHRINK)


def fitted_to(items: Sequence[Trajectory], amount: str) -> tuple[list[int], list[int]]:
    """Which episodes are fitted and which are held out; of a round as many of the former as it has, spread over the tasks."""
    fitted, checked = held_apart(items, PpoConfig().gate_holdout)
    spread = np.random.default_rng(0).permutation(fitted).tolist()
    return spread[: ROUND if amount == "round" else None], checked


def curve(items: Sequence[Trajectory], policy: Path, arm: Sequence[Any], passes: int, seed: int) -> dict[str, Any]:
    """Explained variance and loss on held-out episodes, after each pass of a critic; once for a table."""
    started, (amount, level, by) = time.process_time(), arm
    fitted, checked = fitted_to(items, amount)
    returns = [returns_of(item, level) for item in items]
    wanted = np.concatenate([returns[i] for i in checked])
    found = {"fitted": len(fitted), "held_out": len(checked), "loss_of_0": float(np.mean(wanted**2))}
    estimates = list[Floats]()
    if isinstance(by, str):
        estimates.append(table_estimates(items, fitted, checked, level, by))
    else:
        config, model = PpoConfig(level=level, critic_minibatch_tokens=by, seed=seed), load_policy(policy, device="cpu")
        values = ValueLearner(Critic.of_policy(model, config, seed=seed), config, pad_id=load_codec(policy).pad_token_id)
        generator, held_out = np.random.default_rng(seed), [items[i] for i in checked]
        for _ in range(passes):
            values.fit_chosen(items, returns, fitted, generator)
            estimates.append(np.concatenate(predict(values.critic, held_out, level=level, batching=values.batching)))
    explained = [round(explained_variance(each, wanted), 4) for each in estimates]
    losses = [round(float(np.mean((each - wanted) ** 2)), 4) for each in estimates]
    return {**found, "explained": explained, "losses": losses, "cpu_s": time.process_time() - started}


def arms(amounts: Sequence[str] = AMOUNTS) -> Iterator[tuple[str, Level, str | int]]:
    for amount in amounts:
        for level in get_args(Level):
            for by in ("task", "step", *SIZES):
                yield amount, level, by


def measure(domain: str, seed: int, arguments: argparse.Namespace, bars: Progress) -> list[Row]:
    profile, folder = profiles.load("quickstart", {"seed": seed}), ROOT / str(seed)
    policy = {name: path for name, path, _ in make(folder, profile, bars)}["seed SFT"]
    of_domain = profiles.load("quickstart", {"seed": seed, "tasks.domains": [domain]})
    parts = [part.model_dump(mode="json") for part in (of_domain.tasks, of_domain.agent)]  # `make` answers for the policy's
    recipe = fingerprint(parts, seed, SKIP, arguments.episodes)
    log = folder / f"{domain}-episodes"
    claim(log, recipe)
    items, rows = asyncio.run(played(log, of_domain, policy, arguments.episodes, bars)), []
    bar = Bar(bars, f"{domain} {seed}: critics", len(list(arms(arguments.amounts))))
    for arm in arms(arguments.amounts):
        labels = {"domain": domain, "seed": seed, **dict(zip(("amount", "level", "by"), arm, strict=True))}
        settings = fingerprint(recipe, arm, arguments.passes, ROUND, SHRINK, PpoConfig().critic_learning_rate)
        path = folder / f"{domain}-{'-'.join(map(str, arm))}.json"
        rows.append(kept_row(path, settings, labels, partial(curve, items, policy, arm, arguments.passes, seed)))
        bar.advance()
    return rows


def table(domain: str, rows: Sequence[Row]) -> Table:
    seeds = sorted({row["seed"] for row in rows})
    drawn = Table(title=f"{domain}: explained variance of held-out returns, mean of seeds {', '.join(map(str, seeds))}, after each pass")
    for column in ("fitted to", "level", "by", "explained"):
        drawn.add_column(column)
    for arm in arms():
        curves = [row["explained"] for row in rows if (row["amount"], row["level"], row["by"]) == arm]
        if curves:
            drawn.add_row(arm[0], arm[1], str(arm[2]), " ".join(f"{x:.2f}" for x in np.mean(curves, axis=0)))
    return drawn


def published(domain: str, rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    kept = ("amount", "level", "by", "fitted", "held_out", "loss_of_0", "explained", "losses", "measured")
    return {
        f"{domain} {row['seed']} {row['amount']} {row['level']} {row['by']}": {"domain": domain, "seed": row["seed"]}
        | {name: row[name] for name in kept}
        for row in rows
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", nargs="+", choices=["pointing", "forms"], default=["pointing"], help="(default: pointing)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="profile seeds (default: 0 1 2)")
    parser.add_argument("--amounts", nargs="+", choices=AMOUNTS, default=list(AMOUNTS), help="what is fitted (default: both)")
    parser.add_argument("--episodes", type=int, default=60, help="episodes a task (default: 60)")
    parser.add_argument("--passes", type=int, default=4, help="passes of a critic over what it is fitted to (default: 4)")
    parser.add_argument("--publish", action=Publish, help="put the figures into docs/measured/critic_fit.json")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console = Console()
    for domain in arguments.domains:
        with Progress(console=console, transient=True) as bars:
            rows = [row for seed in arguments.seeds for row in measure(domain, seed, arguments, bars)]
        console.print(table(domain, rows))
        if arguments.publish:
            publish_rows("critic_fit", published(domain, rows))


if __name__ == "__main__":
    main()
