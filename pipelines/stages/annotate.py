"""Annotation by the scripted annotator: the released policy acts on training tasks, each task's oracle approves and corrects.

Episodes are kept as they finish (kept_episodes.py), with the notes on their steps.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.log import EpisodeLog
from annotation.scripted import AnnotationResult, Note, NotesOf, annotate
from assets.stages.requests import AnnotateRequest, StageResult
from pipelines.stages.context import WorkerContext, requests_for
from pipelines.stages.kept_episodes import KeptEpisodes
from pipelines.stages.sandboxes import open_local_collector
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
    kept = AnnotatedEpisodes(context, num_requests=len(requests))
    result = asyncio.run(_annotate(request, requests, context, kept))
    stored = store_episodes(context, kept.episodes())
    version = context.warehouse.replace_partition("annotations", result.rows, iteration=request.iteration, stage=request.stage)
    context.when_finished(kept.remove)
    decisions = Counter(f"decision/{annotation.decision}" for annotation in result.annotations)
    return StageResult(
        table_versions={**stored.versions, "annotations": version},
        counts={**stored.counts, **kept.resumed.counts, "annotations": len(result.annotations), **dict(sorted(decisions.items()))},
        metrics={"success": sum(episode.is_success for episode in result.episodes) / max(1, len(result.episodes))},
    )


async def _annotate(
    request: AnnotateRequest, requests: list[EpisodeRequest], context: WorkerContext, kept: AnnotatedEpisodes
) -> AnnotationResult:
    async with open_local_collector(request.acting, to_choose=True) as collector:
        return await annotate(
            context.engine(request.checkpoint_id, request.acting.engine),
            requests,
            collector,
            request.acting.agent.builder().grammar,
            request.annotator,
            kept,
        )


class _Notes(BaseModel):
    """A line: what the annotator saw in one episode."""

    episode_id: str
    notes: tuple[Note, ...]


class AnnotatedEpisodes(KeptEpisodes):
    """Episodes with the notes on their steps, which are on disk before their episode is. Satisfies Keeper."""

    def __init__(self, context: WorkerContext, *, num_requests: int) -> None:
        super().__init__(context, whole=True)
        self._notes = {line.episode_id: line.notes for line in self.lines(NOTES_FILE, _Notes)}
        self._notes_of: NotesOf = lambda _: ()
        self._progress, self._num_requests, self._num_done = context.progress(), num_requests, len(self._outcomes)
        self._counting = threading.Lock()

    def log(self, notes_of: NotesOf) -> EpisodeLog:
        self._notes_of = notes_of
        return self

    def append(self, episode: Episode) -> None:
        notes = tuple(self._notes_of(episode))
        self.write_line(NOTES_FILE, _Notes(episode_id=episode.episode_id, notes=notes))
        self._notes[episode.episode_id] = notes
        super().append(episode)
        with self._counting:
            self._num_done += 1
            self._progress.update(self._num_done, self._num_requests, "episodes")

    def kept(self, episode_id: str) -> tuple[Episode, Sequence[Note]] | None:
        episode, notes = self.outcome(episode_id), self._notes.get(episode_id)
        return None if episode is None or notes is None else (episode, notes)  # a power cut may lose the one and not the other
