"""Greedy success of several checkpoints on the fixed instances: rows of `episodes`, `steps` and `evaluations`."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from agent.episode import Episode, EpisodeRequest, Outcome
from agent.pool_collector import PoolCollector
from assets.requests import EvaluateRequest, StageResult
from pipelines.sandboxes import open_collector
from pipelines.workers.context import WorkerContext, requests_for
from pipelines.workers.storing import store_episodes
from sandbox.task import Split
from warehouse.statistics import TaskCount, macro_average


def run(request: EvaluateRequest, context: WorkerContext) -> StageResult:
    episodes = asyncio.run(_evaluate(request, context))
    rows = [row for role, of_role in episodes.items() for row in evaluation_rows(role, of_role)]
    stored = store_episodes(context, [episode for of_role in episodes.values() for episode in of_role])
    version = context.warehouse.replace_partition("evaluations", rows, iteration=request.iteration, stage=request.stage)
    metrics = {
        f"{split}/{role}": macro_average(task_counts(episode for episode in of_role if episode.request.split == split)).mean
        for role, of_role in episodes.items()
        for split in request.splits[role]
    }
    return StageResult(table_versions={**stored.versions, "evaluations": version}, counts=stored.counts, metrics=metrics)


async def _evaluate(request: EvaluateRequest, context: WorkerContext) -> dict[str, list[Episode]]:
    requests = {role: _requests(request, role) for role in request.checkpoints}
    total = sum(len(of_role) for of_role in requests.values())
    progress, done = context.progress(), 0
    found: dict[str, list[Episode]] = defaultdict(list)
    async with open_collector(request.sandbox) as collector:
        for role, of_role in requests.items():
            engine = context.engine(request.checkpoints[role])
            async for episode in collector.collect(engine, of_role):
                found[role].append(episode)
                done += 1
                progress.update(done, total, "episodes", {"success": sum(e.is_success for e in found[role]) / len(found[role])})
    return found


def _requests(request: EvaluateRequest, role: str) -> list[EpisodeRequest]:
    num = {"eval": request.evaluation.eval_per_task, "holdout": request.evaluation.holdout_per_task}
    return [
        one
        for split in request.splits[role]
        for one in greedy_requests(request.tasks, request.checkpoints[role], Split(split), num[split])
    ]


def greedy_requests(tasks: Any, policy_id: str, split: Split, num: int) -> list[EpisodeRequest]:
    """The fixed instances of a split: the same for every policy and every iteration."""
    return requests_for(tasks, purpose="evaluation", policy_id=policy_id, split=split, num=num, screenshots=False)


def task_counts(episodes: Any) -> list[TaskCount]:
    """Solved and counted episodes by task; crashed ones have no reward and do not count."""
    by_task: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        if episode.outcome is not Outcome.CRASHED:
            by_task[episode.request.task.name].append(episode.is_success)
    return [TaskCount(task=task, num_success=sum(solved), num_episodes=len(solved)) for task, solved in sorted(by_task.items())]


def evaluation_rows(role: str, episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Rows of the table `evaluations` for one checkpoint."""
    groups: dict[tuple[str, str], list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[(episode.request.task.task_id, episode.request.split)].append(episode)
    return [
        {
            "checkpoint_id": group[0].request.policy_id, "checkpoint_role": role, "task_id": task_id, "task_name": group[0].request.task.name,
            "domain": group[0].request.task.domain, "split": str(split),
            "num_episodes": sum(episode.outcome is not Outcome.CRASHED for episode in group),
            "num_success": sum(episode.is_success for episode in group),
            "num_crashed": sum(episode.outcome is Outcome.CRASHED for episode in group),
        }
        for (task_id, split), group in sorted(groups.items())
    ]


async def success_of(collector: PoolCollector, policy: Any, requests: Sequence[EpisodeRequest]) -> float:
    """Macro-averaged success of a policy on some instances."""
    return macro_average(task_counts([episode async for episode in collector.collect(policy, requests)])).mean
