"""Rollouts: the released policy acts on the task pool through the Prefect flow, one task an episode."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing
from functools import partial

from assets.requests import CollectRequest, StageResult
from pipelines.orchestration import prefect_server
from pipelines.stages.context import WorkerContext, requests_for
from pipelines.stages.sandboxes import EpisodeService, num_waiting
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
    asked = time.monotonic()
    with prefect_server.prefect_server(context.home) as url:
        os.environ.update(prefect_server.client_environment(context.home, url))
        from pipelines.orchestration.collection import run_collection

        ready_s = time.monotonic() - asked
        spool = context.home.spool / "screenshots"
        engine = context.engine(request.checkpoint_id, request.acting.engine)
        with closing(engine), EpisodeService(request.acting, engine, spool) as service:
            started = time.monotonic()
            episodes = run_collection(
                service,
                requests,
                num_at_once=num_waiting(request.acting.sandbox),
                max_retries=request.acting.sandbox.max_retries,
                progress=context.progress(),
            )
            flow_s = time.monotonic() - started
    stored = store_episodes(context, map(service.with_screenshots, episodes))
    # Results first: one whose screenshots are gone could not be gone on with.
    for folder in (prefect_server.results_folder(context.home), spool):
        context.when_finished(partial(shutil.rmtree, folder, ignore_errors=True))
    solved = sum(episode.is_success for episode in episodes)
    return StageResult(
        table_versions=stored.versions,
        counts=stored.counts,
        metrics={"success": solved / len(episodes), "prefect_s": ready_s + flow_s - service.busy_s},
    )
