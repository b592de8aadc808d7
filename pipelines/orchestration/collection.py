"""The Prefect flow of one collection: one task an episode, its result persisted under the episode's id, so a killed collection resumes.

Prefect owns what runs: retries, concurrency, results, and a page where each episode is seen. What an episode does is agent/episode/loop.py;
which sessions and policy serve it is the EpisodeService that the worker puts here. An infrastructure failure raises inside the task, so
that Prefect retries it, and nobody else does; after the last retry it is recorded as `crashed` and never cached. A policy's failure is a
result. Any other error, also a sandbox's that a person must fix first, ends the flow at once.

Set Prefect's environment (pipelines/orchestration/prefect_server.py: client_environment) before this module is imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from prefect import flow, task
from prefect.client.schemas.objects import State
from prefect.futures import as_completed
from prefect.runtime import task_run
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.annotations import opaque

from agent.episode.episode import Episode, EpisodeRequest
from agent.episode.pool_collector import crashed_episode
from pipelines.orchestration.progress import Progress
from pipelines.stages.sandboxes import EpisodeService
from warehouse.core.errors import SandboxError
from warehouse.core.identity import content_id

RESULT_VERSION = "1"
"""Part of every cache key; goes up when what an episode's result holds changes."""

_SERVICE: list[EpisodeService] = []
"""The one service of this process. Tasks run in threads of their own and cannot be handed an open browser as an argument."""


def _cache_key(_context: Any, parameters: dict[str, Any]) -> str:
    """The whole request counts: an episode asked for at another temperature has the same id and is another result."""
    return f"{RESULT_VERSION}-{parameters['episode_id']}-{content_id('request', parameters['request'])}"


def _is_for_prefect(_task: Any, _run: Any, state: State[Any]) -> bool:
    """Whether a failed try of an episode is Prefect's to repeat."""
    error = state.data
    return isinstance(error, SandboxError) and error.is_retryable


@task(name="episode", task_run_name="{task_name} · {episode_id}", cache_key_fn=_cache_key, persist_result=True, result_serializer="json")
async def run_episode_task(episode_id: str, task_name: str, request: str) -> dict[str, Any]:
    """One episode, as JSON without its image bytes (those are in the spool by the time this returns). A run of the task that is not its
    first is a retry."""
    service, num_retries = _SERVICE[0], task_run.run_count - 1
    episode = await asyncio.wrap_future(service.submit(EpisodeRequest.model_validate_json(request)))
    service.spool_screenshots(episode)
    return episode.model_copy(update={"num_retries": num_retries}).model_dump(mode="json")


@flow(name="collection", validate_parameters=False, log_prints=False)
def collect_episodes(requests: Sequence[EpisodeRequest], max_retries: int, progress: Progress) -> opaque:
    """Run every request; one episode each, in the order of the requests. Opaque, because Prefect would walk through every field of what a
    flow returns, and takes an action's field `keys` for a mapping's method.

    Raises what is not for Prefect to repeat, e.g. a server that is gone: where that is retryable, the worker is started again and goes on.
    """
    attempt = run_episode_task.with_options(retries=max_retries, retry_delay_seconds=0.5, retry_condition_fn=_is_for_prefect)
    futures = {attempt.submit(request.episode_id, request.task.name, request.model_dump_json()): request for request in requests}
    episodes: dict[str, Episode] = {}
    for future in as_completed(list(futures)):
        request = futures[future]
        result = future.result(raise_on_failure=False)
        if isinstance(result, SandboxError) and result.is_retryable:
            episodes[request.episode_id] = crashed_episode(request, result, num_retries=max_retries, duration_ms=0.0)
        elif isinstance(result, BaseException):
            raise result
        else:
            episodes[request.episode_id] = Episode.model_validate(result)
        solved = sum(episode.is_success for episode in episodes.values())
        progress.update(len(episodes), len(requests), "episodes", {"success": solved / len(episodes)})
    return opaque([episodes[request.episode_id] for request in requests])


def run_collection(
    service: EpisodeService, requests: Sequence[EpisodeRequest], *, num_at_once: int, max_retries: int, progress: Progress
) -> list[Episode]:
    """The flow, on this process's service."""
    _SERVICE[:] = [service]
    try:
        runner: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=num_at_once)
        return collect_episodes.with_options(task_runner=runner)(requests, max_retries, progress).unwrap()  # type: ignore[arg-type]
    finally:
        _SERVICE.clear()
