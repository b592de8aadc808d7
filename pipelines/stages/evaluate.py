"""Greedy success of several checkpoints on the fixed instances: rows of `episodes`, `steps` and `evaluations`.

A share of the holdout may be played again in full Chromium through Playwright, a driver and a browser that our own sessions do not use:
episodes of purpose `second_browser`, which no figure counts. Episodes are kept as they finish (kept_episodes.py).
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from statistics import fmean, stdev
from typing import Any

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from assets.settings.profile import ActingSettings
from assets.stages.requests import EvaluateRequest, StageResult
from pipelines.stages.context import WorkerContext, requests_for
from pipelines.stages.kept_episodes import KeptEpisodes
from pipelines.stages.sandboxes import open_collector
from pipelines.stages.storing import store_episodes
from sandbox.tasks.sources import kind_of
from sandbox.tasks.task import Split
from warehouse.evaluation.statistics import TaskCount, macro_average

CANDIDATE = "merged_policy"
"""The role whose holdout is played again."""
PLAYWRIGHT_SESSIONS = 4
"""At once: each is a context of a full browser."""


def run(request: EvaluateRequest, context: WorkerContext) -> StageResult:
    kept = KeptEpisodes(context, whole=True)
    by_checkpoint = asyncio.run(_evaluate(request, context, kept))
    again = again_in_playwright(request)
    if again:
        asyncio.run(_play_again(request, context, kept, again))
    episodes = {role: _of_role(request, role, by_checkpoint) for role in request.checkpoints}
    rows = [row for role, of_role in episodes.items() for row in evaluation_rows(role, of_role)]
    stored = store_episodes(context, kept.episodes())
    version = context.warehouse.replace_partition("evaluations", rows, iteration=request.iteration, stage=request.stage)
    context.when_finished(kept.remove)
    metrics = {
        f"{split}/{role}": macro_average(task_counts(episode for episode in of_role if episode.request.split == split)).mean
        for role, of_role in episodes.items()
        for split in request.splits[role]
    } | agreement(kept, again)
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


def again_in_playwright(request: EvaluateRequest) -> list[tuple[EpisodeRequest, EpisodeRequest]]:
    """What is played again, and as what: the first of the holdout's instances on pages, balanced over tasks."""
    policy_id, evaluation = request.checkpoints.get(CANDIDATE), request.evaluation
    if policy_id is None or not evaluation.playwright_share:
        return []
    played = greedy_requests(request.acting, policy_id, Split.HOLDOUT, evaluation.holdout_per_task)
    on_pages = [one for one in played if kind_of(one.task) == "page"]
    chosen = on_pages[: math.ceil(evaluation.playwright_share * len(on_pages))]
    return [(one, one.model_copy(update={"purpose": "second_browser"})) for one in chosen]


async def _play_again(
    request: EvaluateRequest, context: WorkerContext, kept: KeptEpisodes, again: Sequence[tuple[EpisodeRequest, EpisodeRequest]]
) -> None:
    second = [other for _, other in again]
    if not kept.missing(second):
        return
    progress, done = context.progress(), len(kept.outcomes(second))
    async with open_collector(in_playwright(request.acting)) as collector:
        with closing(context.engine(second[0].policy_id, request.acting.engine)) as engine:
            async for _ in kept.play(collector, engine, second):
                done += 1
                progress.update(done, len(second), "episodes in Playwright")


def in_playwright(acting: ActingSettings) -> ActingSettings:
    """The same on a few sessions of this stage's own, driven by Playwright."""
    ours = {"servers": (), "ray": None, "session": "playwright", "num_workers": 1, "num_browsers": 1}
    sessions = min(PLAYWRIGHT_SESSIONS, acting.sandbox.num_sessions)
    return acting.model_copy(update={"sandbox": acting.sandbox.model_copy(update={**ours, "num_sessions": sessions})})


def agreement(kept: KeptEpisodes, again: Sequence[tuple[EpisodeRequest, EpisodeRequest]]) -> dict[str, float]:
    """Share of the instances that were played twice whose verdicts agree, and success in either browser; crashed episodes do not count."""
    outcomes = [(kept.outcome(one.episode_id), kept.outcome(other.episode_id)) for one, other in again]
    pairs = [(a.is_success, b.is_success) for a, b in outcomes if a and b and Outcome.CRASHED not in (a.outcome, b.outcome)]
    if not pairs:
        return {}
    return {
        "playwright/agree": sum(a == b for a, b in pairs) / len(pairs),
        "playwright/success here": sum(a for a, _ in pairs) / len(pairs),
        "playwright/success there": sum(b for _, b in pairs) / len(pairs),
    }


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
            **points_of(group),
        }
        for (task_id, split), group in sorted(groups.items())
    ]


def points_of(episodes: Sequence[Episode]) -> dict[str, float | None]:
    """Mean and deviation of the scores in a game's own points, 0 for an episode that was ended before a verdict was asked for; empty where
    no episode has any."""
    counted = [episode.points for episode in episodes if episode.outcome is not Outcome.CRASHED]
    if all(points is None for points in counted):
        return {}
    scores = [points or 0.0 for points in counted]
    return {"mean_points": fmean(scores), "points_deviation": stdev(scores) if len(scores) > 1 else None}
