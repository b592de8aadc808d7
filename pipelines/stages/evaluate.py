"""Greedy success of several checkpoints on the fixed instances: rows of `episodes`, `steps` and `evaluations`.

Episodes are kept as they finish (kept_episodes.py).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from assets.profile import ActingSettings
from assets.requests import EvaluateRequest, StageResult
from pipelines.stages.context import WorkerContext, requests_for
from pipelines.stages.kept_episodes import KeptEpisodes
from pipelines.stages.sandboxes import open_collector
from pipelines.stages.storing import store_episodes
from sandbox.tasks.task import Split
from warehouse.evaluation.statistics import TaskCount, macro_average


def run(request: EvaluateRequest, context: WorkerContext) -> StageResult:
    kept = KeptEpisodes(context, whole=True)
    by_checkpoint = asyncio.run(_evaluate(request, context, kept))
    episodes = {role: _of_role(request, role, by_checkpoint) for role in request.checkpoints}
    rows = [row for role, of_role in episodes.items() for row in evaluation_rows(role, of_role)]
    stored = store_episodes(context, kept.episodes())
    version = context.warehouse.replace_partition("evaluations", rows, iteration=request.iteration, stage=request.stage)
    context.when_finished(kept.remove)
    metrics = {
        f"{split}/{role}": macro_average(task_counts(episode for episode in of_role if episode.request.split == split)).mean
        for role, of_role in episodes.items()
        for split in request.splits[role]
    }
    return StageResult(
        table_versions={**stored.versions, "evaluations": version}, counts={**stored.counts, **kept.resumed.counts}, metrics=metrics
    )


async def _evaluate(request: EvaluateRequest, context: WorkerContext, kept: KeptEpisodes) -> dict[str, list[Episode]]:
    """Episodes by checkpoint, without their steps: a merge at a corner of the simplex is its parent, and is not run twice."""
    splits: dict[str, set[str]] = defaultdict(set)
    for role, checkpoint_id in request.checkpoints.items():
        splits[checkpoint_id].update(request.splits[role])
    num = {"eval": request.evaluation.eval_per_task, "holdout": request.evaluation.holdout_per_task}
    requests = {
        checkpoint_id: [one for split in sorted(wanted) for one in greedy_requests(request.acting, checkpoint_id, Split(split), num[split])]
        for checkpoint_id, wanted in splits.items()
    }
    total = sum(len(group) for group in requests.values())
    done = sum(len(kept.outcomes(group)) for group in requests.values())
    progress = context.progress()
    async with open_collector(request.acting) as collector:
        for checkpoint_id, group in requests.items():
            if not kept.missing(group):
                continue
            outcomes = kept.outcomes(group)
            with closing(context.engine(checkpoint_id, request.acting.engine)) as engine:
                async for episode in kept.play(collector, engine, group):
                    outcomes.append(episode)
                    done += 1
                    progress.update(done, total, "episodes", {"success": sum(each.is_success for each in outcomes) / len(outcomes)})
    return {checkpoint_id: kept.outcomes(group) for checkpoint_id, group in requests.items()}


def _of_role(request: EvaluateRequest, role: str, by_checkpoint: Mapping[str, Sequence[Episode]]) -> list[Episode]:
    return [episode for episode in by_checkpoint[request.checkpoints[role]] if episode.request.split in request.splits[role]]


def greedy_requests(acting: ActingSettings, policy_id: str, split: Split, num: int) -> list[EpisodeRequest]:
    """The fixed instances of a split: the same for every policy and every iteration. With screenshots where prompts show them; a policy
    that reads text goes on without, for speed."""
    screenshots = acting.agent.builder().shows_screens
    return requests_for(acting.tasks, purpose="evaluation", policy_id=policy_id, split=split, num=num, screenshots=screenshots)


def requests_to_choose(acting: ActingSettings, policy_id: str, num: int) -> list[EpisodeRequest]:
    """`greedy_requests` of the split that is chosen by."""
    return greedy_requests(acting, policy_id, Split.EVAL, num)


def task_counts(episodes: Iterable[Episode]) -> list[TaskCount]:
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
            "checkpoint_id": group[0].request.policy_id,
            "checkpoint_role": role,
            "task_id": task_id,
            "task_name": group[0].request.task.name,
            "domain": group[0].request.task.domain,
            "split": str(split),
            "num_episodes": sum(episode.outcome is not Outcome.CRASHED for episode in group),
            "num_success": sum(episode.is_success for episode in group),
            "num_crashed": sum(episode.outcome is Outcome.CRASHED for episode in group),
        }
        for (task_id, split), group in sorted(groups.items())
    ]
