"""Rollouts: the released policy acts on the task pool through the Prefect flow, one task an episode; by this project's agent, or by the
harness that the profile names.

Episodes are kept as they finish (kept_episodes.py).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

from assets.stages.requests import CollectRequest, StageResult
from pipelines.orchestration.services import prefect_server
from pipelines.stages.context import WorkerContext, requests_for
from pipelines.stages.kept_episodes import KeptEpisodes
from pipelines.stages.sandboxes import EpisodeService, PolicyService
from pipelines.stages.storing import store_episodes
from sandbox.tasks.task import Split
from warehouse.core.errors import ModelError
from warehouse.core.home import atomic_write
from warehouse.lineage import registry


def run(request: CollectRequest, context: WorkerContext) -> StageResult:
    harness = request.collection.harness
    requests = requests_for(
        request.acting.tasks,
        purpose="rollout" if harness is None else "gateway",
        policy_id=policy_of(request, context),
        split=Split.TRAIN,
        num=request.collection.instances_per_task,
        skip=request.first_instance,
        task_pool=request.task_pool,
        attempts=request.collection.attempts,
        temperature=request.collection.temperature,
    )
    kept = KeptEpisodes(context, whole=True)
    before = kept.outcomes(requests)
    asked = time.monotonic()
    with prefect_server.prefect_server(context.home) as url:
        os.environ.update(prefect_server.client_environment(context.home, url))
        from pipelines.orchestration.work.collection import run_collection

        ready_s = time.monotonic() - asked
        with opened_service(request, context, kept) as service:
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


def policy_of(request: CollectRequest, context: WorkerContext) -> str:
    """Whose answers are collected: the released policy's, or those of the server that the harness asks in its place. Raises ModelError
    where that server has another model than when this stage began: its episodes would be of two."""
    harness = request.collection.harness
    if harness is None or harness.upstream is None:
        return request.checkpoint_id
    from pipelines.stages.harness import upstream_policy

    found, kept = asyncio.run(upstream_policy(harness)), context.folder / "upstream.txt"
    if not kept.exists():
        atomic_write(kept, found.encode())
        context.when_finished(partial(kept.unlink, missing_ok=True))
    if (began := kept.read_text()) != found:
        raise ModelError(
            f"{harness.upstream} answers with {found}, and this stage began with {began}: serve that again, or delete {context.folder} to "
            "collect from the beginning"
        )
    return found


@contextmanager
def opened_service(request: CollectRequest, context: WorkerContext, kept: KeptEpisodes) -> Iterator[EpisodeService]:
    """What plays the episodes, for as long as the block lasts."""
    harness, acting = request.collection.harness, request.acting
    if harness is None:
        engine = context.engine(request.checkpoint_id, acting.engine)
        with closing(engine), PolicyService(acting, engine, kept) as service:
            yield service
        return
    from pipelines.stages.harness import HarnessService

    policy = registry.find(context.warehouse, request.checkpoint_id).folder
    with HarnessService(acting, harness, policy, kept, context.harness_folder) as service:
        yield service
    context.when_finished(partial(shutil.rmtree, context.harness_folder, ignore_errors=True))
