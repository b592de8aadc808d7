"""Seed demonstrations: the oracle plays each task of the profile on training instances; what it solves becomes D_SFT.

Episodes are kept as they finish (kept_episodes.py).
"""

from __future__ import annotations

import asyncio

from agent.episode.episode import EpisodeRequest
from agent.episode.rows import rows
from agent.policy.action_source import ORACLE_POLICY_ID, OracleActionSource
from assets.stages.requests import DemonstrateRequest, StageResult
from assets.tasks.instances import first_instance
from pipelines.stages.context import WorkerContext, requests_for
from pipelines.stages.kept_episodes import KeptEpisodes
from pipelines.stages.sandboxes import open_collector
from pipelines.stages.storing import store_episodes
from sandbox.tasks.task import Split
from warehouse.routing.samples import demonstration_rows


def run(request: DemonstrateRequest, context: WorkerContext) -> StageResult:
    requests = requests_for(
        request.acting.tasks,
        purpose="seed",
        policy_id=ORACLE_POLICY_ID,
        split=Split.TRAIN,
        num=request.seed_data.demonstrations_per_task,
        skip=first_instance("demonstration", request.iteration, request.seed),
    )
    played = KeptEpisodes(context, whole=True)
    asyncio.run(_demonstrate(request, requests, context, played))
    stored = store_episodes(context, played.episodes())
    made = rows(played.without_screenshots())
    samples = demonstration_rows(made["episodes"], made["steps"])
    versions = {
        **stored.versions,
        "sft_samples": context.warehouse.replace_partition("sft_samples", samples, iteration=request.iteration, stage=request.stage),
    }
    context.when_finished(played.remove)
    return StageResult(table_versions=versions, counts={**stored.counts, **played.resumed.counts, "samples": len(samples)})


async def _demonstrate(request: DemonstrateRequest, requests: list[EpisodeRequest], context: WorkerContext, played: KeptEpisodes) -> None:
    progress, missing = context.progress(), played.missing(requests)
    source = OracleActionSource(request.acting.agent.builder().grammar)
    async with open_collector(request.acting, to_choose=True) as collector:
        done = len(requests) - len(missing)
        async for _ in collector.play(source, missing, log=played):
            done += 1
            progress.update(done, len(requests), "episodes")
