"""Annotation by the scripted annotator: the released policy acts on training tasks, each task's oracle approves and corrects.

Episodes are kept as they finish (kept_episodes.py), with the notes on their steps.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel

from agent.episode.episode import Episode, EpisodeRequest
from annotation.scripted import AnnotationResult, Keeper, Note, annotate
from assets.requests import AnnotateRequest, StageResult
from pipelines.stages.context import WorkerContext, requests_for
from pipelines.stages.kept_episodes import KeptEpisodes
from pipelines.stages.sandboxes import open_annotator
from pipelines.stages.storing import store_episodes
from sandbox.tasks.task import Split

NOTES_FILE = "notes.jsonl"


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
    keeper = _Keeper(context, num_requests=len(requests))
    result = asyncio.run(_annotate(request, requests, context, keeper))
    stored = store_episodes(context, keeper.played.episodes())
    version = context.warehouse.replace_partition("annotations", result.rows, iteration=request.iteration, stage=request.stage)
    context.when_finished(keeper.played.remove)
    decisions = Counter(f"decision/{annotation.decision}" for annotation in result.annotations)
    return StageResult(
        table_versions={**stored.versions, "annotations": version},
        counts={**stored.counts, "annotations": len(result.annotations), **dict(sorted(decisions.items()))},
        metrics={"success": sum(episode.is_success for episode in result.episodes) / max(1, len(result.episodes))},
    )


async def _annotate(request: AnnotateRequest, requests: list[EpisodeRequest], context: WorkerContext, keeper: Keeper) -> AnnotationResult:
    async with open_annotator(request.acting) as collector:
        return await annotate(
            context.engine(request.checkpoint_id, request.acting.engine),
            requests,
            collector,
            request.acting.agent.builder().grammar,
            request.annotator,
            keeper,
        )


class _Notes(BaseModel):
    """A line: what the annotator saw in one episode."""

    episode_id: str
    notes: tuple[Note, ...]


class _Keeper:
    """Notes are on disk before their episode is."""

    def __init__(self, context: WorkerContext, *, num_requests: int) -> None:
        self.played = KeptEpisodes(context, whole=True)
        self._notes = {line.episode_id: line.notes for line in self.played.lines(NOTES_FILE, _Notes)}
        self._progress, self._num_requests, self._done = context.progress(), num_requests, 0

    def kept(self, episode_id: str) -> tuple[Episode, Sequence[Note]] | None:
        episode, notes = self.played.outcome(episode_id), self._notes.get(episode_id)
        if episode is None or notes is None:  # a power cut may lose the one and not the other
            return None
        self._done += 1
        return episode, notes

    def keep(self, episode: Episode, notes: Sequence[Note]) -> Episode:
        self.played.write_line(NOTES_FILE, _Notes(episode_id=episode.episode_id, notes=tuple(notes)))
        self._done += 1
        self._progress.update(self._done, self._num_requests, "episodes")
        return self.played.keep(episode)
