"""Rollouts: the released policy acts on the task pool through the Prefect flow, one task an episode.

Episodes are kept as they finish (kept_episodes.py).
"""

from __future__ import annotations

import os
import time
from contextlib import closing

from assets.requests import CollectRequest, StageResult
from pipelines.orchestration import prefect_server
from pipelines.stages.context import WorkerContext, requests_for
from pipelines.stages.kept_episodes import KeptEpisodes
from pipelines.stages.sandboxes import EpisodeService
from pipelines.stages.storing import store_episodes
from sandbox.tasks.task import Split


def run(request: CollectRequest, context: WorkerContext) -> StageResult:
    requests = requests_for(
        request.acting.tasks,
        purpose="rollout",
        policy_id=request.checkpoint_id,
        split=Split.TRAIN,
        num=request.collection.instances_per_task,
        skip=request.first_instance,
        pool=request.pool,
        attempts=request.collection.attempts,
        temperature=request.collection.temperature,
    )
    kept = KeptEpisodes(context, whole=True)
    before = kept.outcomes(requests)
    asked = time.monotonic()
    with prefect_server.prefect_server(context.home) as url:
        os.environ.update(prefect_server.client_environment(context.home, url))
        from pipelines.orchestration.collection import run_collection

        ready_s = time.monotonic() - asked
        engine = context.engine(request.checkpoint_id, request.acting.engine)
        with closing(engine), EpisodeService(request.acting, engine, kept) as service:
            started = time.monotonic()
            run_collection(
                service,
                kept.missing(requests),
                num_at_once=service.num_at_once,
                progress=context.progress(),
                num_done=len(before),
                num_solved=sum(episode.is_success for episode in before),
            )
            flow_s = time.monotonic() - started
    stored = store_episodes(context, kept.episodes())
    context.when_finished(kept.remove)
    solved = sum(episode.is_success for episode in kept.outcomes(requests))
    return StageResult(
        table_versions=stored.versions,
        counts={**stored.counts, **kept.resumed.counts},
        metrics={"success": solved / len(requests), "prefect_s": ready_s + flow_s - service.busy_s},
    )
