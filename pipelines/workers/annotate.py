"""Annotation by the scripted annotator: the released policy acts on training tasks, each task's oracle approves and corrects."""

from __future__ import annotations

import asyncio
from collections import Counter

from agent.episode import Episode, EpisodeRequest
from annotation.scripted import AnnotationResult, annotate
from assets.requests import AnnotateRequest, StageResult
from pipelines.sandboxes import open_annotator
from pipelines.workers.context import WorkerContext, requests_for
from pipelines.workers.storing import store_episodes
from sandbox.task import Split


def run(request: AnnotateRequest, context: WorkerContext) -> StageResult:
    requests = requests_for(
        request.acting.tasks,
        purpose="annotation",
        policy_id=request.checkpoint_id,
        split=Split.TRAIN,
        num=request.instances_per_task,
        skip=request.first_instance,
        temperature=request.annotator.temperature,
    )
    result = asyncio.run(_annotate(request, requests, context))
    stored = store_episodes(context, result.episodes)
    version = context.warehouse.replace_partition("annotations", result.rows, iteration=request.iteration, stage=request.stage)
    decisions = Counter(f"decision/{annotation.decision}" for annotation in result.annotations)
    return StageResult(
        table_versions={**stored.versions, "annotations": version},
        counts={**stored.counts, "annotations": len(result.annotations), **dict(sorted(decisions.items()))},
        metrics={"success": sum(episode.is_success for episode in result.episodes) / max(1, len(result.episodes))},
    )


async def _annotate(request: AnnotateRequest, requests: list[EpisodeRequest], context: WorkerContext) -> AnnotationResult:
    progress, done = context.progress(), 0

    def count(_episode: Episode) -> None:
        nonlocal done
        done += 1
        progress.update(done, len(requests), "episodes")

    async with open_annotator(request.acting) as collector:
        return await annotate(
            context.engine(request.checkpoint_id, request.acting.engine),
            requests,
            collector,
            request.acting.agent.builder().grammar,
            request.annotator,
            on_episode=count,
        )
