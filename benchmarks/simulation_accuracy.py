"""How far `flywheel plan simulate` is from what it simulates: the real rollout pool, collector and sandbox servers on 1 to 8 nodes, in
rounds and streaming, beside the simulation of the same (pipelines/plan/simulation.py) that knows only the episodes of the run on one node.

Nodes are network namespaces whose sessions wait (benchmarks/nodes.py); episodes have 1 to 20 steps, most of them few; the trainer waits
where a real one computes. Kept under .bench/simulation; interrupted, it goes on.

    python -m benchmarks.simulation_accuracy --publish
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.loop import EpisodeLimits
from agent.episode.pool_collector import CollectorSettings, PoolCollector
from agent.policy.policy import Prompt, Response
from agent.prompts.prompt import PromptBuilder
from benchmarks.common.kept import Row, fingerprint, kept_row
from benchmarks.common.provenance import Publish, publish_rows
from benchmarks.common.waiting_hosts import server_nodes
from benchmarks.common.waiting_node import TASK
from benchmarks.nodes import NODES
from models.rl.rollouts.curriculum import num_to_admit
from models.rl.rollouts.log import RolloutLog
from models.rl.rollouts.pool import RolloutPool
from pipelines.plan.simulation import Cluster, Learning, RecordedEpisode, simulate
from sandbox.server.servers_pool import ServersPool

KEPT = Path(".bench/simulation")
LONG = TASK.model_copy(update={"name": "wait-long", "max_steps": 20})
SEED = re.compile(r"seed (\d+)")
WAYS = {"rounds": 0, "streaming": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured."""

    sessions_per_node: int = 4
    step_ms: float = 250.0
    batch_episodes: int = 32
    num_batches: int = 6
    update_s: float = 2.0


class Leaving:
    """A policy that ends an episode after as many steps as its seed says. It counts its weights as the trainer's learner does."""

    policy_id = "leaving"

    def __init__(self) -> None:
        self.version = 0

    async def act(self, prompts: Sequence[Prompt]) -> list[Response]:
        return [self._answer(prompt) for prompt in prompts]

    def _answer(self, prompt: Prompt) -> Response:
        seed = int(SEED.findall(str(prompt))[0])
        num_done = sum(message.role == "assistant" for message in prompt.messages)
        action = "finished(content='')" if num_done + 1 >= num_steps(seed) else "click(start_box='(1,1)')"
        return Response(
            text=f"Thought: Go on.\nAction: {action}",
            prompt_token_ids=(1,),
            token_ids=(1,),
            logprobs=(0.0,),
            policy_id=self.policy_id,
            versions=(self.version,),
        )


def num_steps(seed: int) -> int:
    """1 to 20, four in the median."""
    return min(LONG.max_steps, 1 + int(random.Random(seed).expovariate(1 / 5)))


def measured(num_nodes: int, way: str, settings: Settings) -> Row:
    """A run on real servers."""
    with server_nodes(num_nodes, settings.sessions_per_node, settings.step_ms) as made, tempfile.TemporaryDirectory() as folder:
        sessions = num_nodes * settings.sessions_per_node

        async def main() -> Row:
            async with ServersPool(made.addresses(), size=sessions) as servers:
                collector = PoolCollector(
                    servers, PromptBuilder("uitars15"), EpisodeLimits(), CollectorSettings(concurrency=sessions, max_wait_ms=0.0)
                )
                return await _learn(collector, RolloutLog(Path(folder)), WAYS[way], settings)

        return asyncio.run(main())


async def _learn(collector: PoolCollector, log: RolloutLog, ahead: int, settings: Settings) -> Row:
    """The trainer's loop, with a pause for an update."""
    policy, size = Leaving(), settings.batch_episodes
    idle_s, lags, learned = 0.0, list[int](), list[Episode]()
    async with RolloutPool(collector, policy, log, num_learned=0) as pool:
        started_s = time.monotonic()
        for index in range(settings.num_batches):
            first = pool.num_admitted
            more = num_to_admit(first, index, batch_size=size, batches_ahead=ahead, num_batches=settings.num_batches)
            if more:
                pool.admit([_request(seed) for seed in range(first, first + more)])
            since = time.monotonic()
            batch = await pool.batch(index + 1, size)
            idle_s += time.monotonic() - since
            lags += [index - version for episode in batch for step in episode.steps for version in step.response_versions]
            learned += batch
            await asyncio.sleep(settings.update_s)
            policy.version += 1
        seconds = time.monotonic() - started_s
        use = collector.lease_use
    return {
        "seconds": seconds,
        "staleness_mean": fmean(lags),
        "trainer_idle": idle_s / seconds,
        "sessions_busy": use.leased_s / (seconds * use.num_sessions),
        "episodes": [[step.latency_ms / 1000 for step in episode.steps] for episode in learned],
    }


def _request(seed: int) -> EpisodeRequest:
    return EpisodeRequest(task=LONG, seed=seed, purpose="rl", policy_id="leaving", screenshots=False, temperature=1.0)


def simulated(num_nodes: int, way: str, episodes: Sequence[Sequence[float]], settings: Settings) -> Row:
    """The mean of ten draws."""
    cluster = Cluster(num_nodes=num_nodes, sessions_per_node=settings.sessions_per_node)
    learning = Learning(
        batch_episodes=settings.batch_episodes, num_batches=settings.num_batches, update_s=settings.update_s, batches_ahead=WAYS[way]
    )
    recorded = [RecordedEpisode(steps_s=tuple(steps)) for steps in episodes]
    runs = [simulate(recorded, cluster, learning, seed=seed) for seed in range(10)]
    names = ("seconds", "staleness_mean", "trainer_idle", "sessions_busy")
    return {name: fmean(getattr(run, name) for run in runs) for name in names}


def measure(settings: Settings, repeats: int, console: Console) -> dict[str, Row]:
    recipe, found = fingerprint(asdict(settings)), dict[str, Row]()
    runs: dict[tuple[int, str], list[Row]] = {}
    for repeat in range(repeats):
        for num in NODES:
            for way in WAYS:
                console.print(f"{num} nodes, {way}, {repeat + 1} of {repeats} …", highlight=False)
                path = KEPT / f"{way}-{num}-{repeat}.json"
                row = kept_row(path, recipe, {"nodes": num, "way": way}, lambda num=num, way=way: measured(num, way, settings))  # type: ignore[misc]
                runs.setdefault((num, way), []).append(row)
    for (num, way), rows in runs.items():
        known = [episode for row in runs[1, way] for episode in row["episodes"]]
        real: dict[str, Any] = {name: fmean(row[name] for row in rows) for name in simulated(num, way, known, settings)}
        guess = simulated(num, way, known, settings)
        found[f"{way}-{num}"] = {
            **{f"{name}_measured": round(real[name], 3) for name in real},
            **{f"{name}_simulated": round(guess[name], 3) for name in real},
            "ratio": round(guess["seconds"] / real["seconds"], 3),
            "seconds_all": [round(row["seconds"], 2) for row in rows],
            "measured": rows[-1]["measured"],
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--publish", action=Publish, help="write docs/measured/simulation.json")
    chosen = parser.parse_args()
    console = Console()
    found = measure(Settings(), chosen.repeats, console)
    table = Table("run", "seconds", "simulated", "ratio", "staleness", "simulated", "trainer waits", "simulated", "busy", "simulated")
    for name, row in found.items():
        figures = [
            f"{row[f'{figure}_{kind}']:.2f}"
            for figure in ("staleness_mean", "trainer_idle", "sessions_busy")
            for kind in ("measured", "simulated")
        ]
        table.add_row(name, f"{row['seconds_measured']:.1f}", f"{row['seconds_simulated']:.1f}", f"{row['ratio']:.2f}", *figures)
    console.print(table)
    if chosen.publish:
        publish_rows("simulation", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
