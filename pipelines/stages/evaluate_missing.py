"""Greedy episodes of a policy on those fixed instances of a split that it has not played yet, stored beside those of iterations: what
`flywheel compare --evaluate` plays. They count wherever episodes of an evaluation count, the release gate included.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import closing

from rich.console import Console
from rich.progress import Progress

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.rows import rows
from assets.settings.profile import Profile
from pipelines.stages.engines import ClosablePolicy, open_engine
from pipelines.stages.evaluate import greedy_requests
from pipelines.stages.sandboxes import open_collector
from sandbox.tasks.task import Split
from warehouse.lineage.registry import Registered
from warehouse.lineage.release_ledger import read_ledger
from warehouse.storage.tables import Warehouse


def evaluate_missing(warehouse: Warehouse, policy: Registered, split: str, profile: Profile, console: Console) -> int:
    """Play and store them, in a partition of the newest iteration that is replaced whole; returns how many. Raises SandboxErrors."""
    iteration = read_ledger(warehouse).newest_iteration
    stage = f"compared_{split}_{re.sub('[^a-z0-9]', '_', policy.checkpoint_id.lower())}"
    settings = profile.evaluation
    num = settings.eval_per_task if Split(split) is Split.EVAL else settings.holdout_per_task
    requests = greedy_requests(profile.acting, policy.checkpoint_id, Split(split), num)
    own, elsewhere = _played(warehouse, policy.checkpoint_id, iteration, stage)
    missing = [one for one in requests if (one.task.task_id, one.seed) not in elsewhere]
    if all((one.task.task_id, one.seed) in own for one in missing):
        return 0
    with closing(open_engine(policy.folder, profile.engine)) as engine:
        found = rows(asyncio.run(_play(profile, engine, missing, f"{policy.iteration}/{policy.stage}", console)))
    warehouse.add_screenshots(found["screenshots"])
    for table in ("steps", "episodes"):
        warehouse.replace_partition(table, found[table], iteration=iteration, stage=stage)
    return len(missing)


def _played(warehouse: Warehouse, checkpoint_id: str, iteration: str, stage: str) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """(task, seed) of what the policy has played: in this partition, and elsewhere."""
    columns = ["iteration", "stage", "purpose", "policy_id", "outcome", "task_id", "seed"]
    own: set[tuple[str, int]] = set()
    elsewhere: set[tuple[str, int]] = set()
    for row in warehouse.read("episodes", columns=columns).to_pylist():
        if (row["purpose"], row["policy_id"]) == ("evaluation", checkpoint_id) and row["outcome"] != "crashed":
            is_own = (row["iteration"], row["stage"]) == (iteration, stage)
            (own if is_own else elsewhere).add((row["task_id"], row["seed"]))
    return own, elsewhere


async def _play(profile: Profile, engine: ClosablePolicy, requests: list[EpisodeRequest], name: str, console: Console) -> list[Episode]:
    episodes = []
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(f"episodes of {name}", total=len(requests))
        async with open_collector(profile.acting) as collector:
            async for episode in collector.collect(engine, requests):
                episodes.append(episode)
                bar.advance(task)
    return episodes
