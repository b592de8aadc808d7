"""The Prefect flow of one collection: one task an episode. Prefect schedules, bounds how many run at once, and shows each on its page.

What an episode is, its retries and where it is kept are the episode runner's (agent/episode/runner.py); which sessions and policy serve it
is the EpisodeService that the worker puts here. So a task fails only where the collection cannot go on, and that ends the flow.

Set Prefect's environment (pipelines/orchestration/services/prefect_server.py: client_environment) before this module is imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from prefect import flow, task
from prefect.futures import as_completed
from prefect.task_runners import ThreadPoolTaskRunner

from agent.episode.episode import EpisodeRequest, Outcome
from pipelines.orchestration.work.progress import Progress
from pipelines.stages.sandboxes import EpisodeService

_SERVICE: list[EpisodeService] = []
"""The one service of this process. Tasks run in threads of their own and cannot be handed an open browser as an argument."""


@task(name="episode", task_run_name="{task_name} · {episode_id}", persist_result=False)
async def run_episode_task(episode_id: str, task_name: str, request: str) -> str:
    """One episode; returns its outcome. The episode itself is in the service's log by then."""
    episode = await asyncio.wrap_future(_SERVICE[0].submit(EpisodeRequest.model_validate_json(request)))
    return episode.outcome.value


@flow(name="collection", validate_parameters=False, persist_result=False, log_prints=False)
def collect_episodes(requests: Sequence[EpisodeRequest], num_done: int, num_solved: int, progress: Progress) -> None:
    """Run every request; `num_done` and `num_solved` are of earlier starts, for the progress. Raises what the runner raises, e.g. for a
    policy server that is gone: where that is retryable, the worker is restarted and goes on."""
    futures = [run_episode_task.submit(request.episode_id, request.task.name, request.model_dump_json()) for request in requests]
    total = num_done + len(futures)
    for future in as_completed(futures):
        outcome: Any = future.result()
        num_done += 1
        num_solved += outcome == Outcome.SUCCESS
        progress.update(num_done, total, "episodes", {"success": num_solved / num_done})


def run_collection(
    service: EpisodeService,
    requests: Sequence[EpisodeRequest],
    *,
    num_at_once: int,
    progress: Progress,
    num_done: int = 0,
    num_solved: int = 0,
) -> None:
    """The flow, on this process's service."""
    _SERVICE[:] = [service]
    try:
        runner: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=num_at_once)
        collect_episodes.with_options(task_runner=runner)(requests, num_done, num_solved, progress)  # type: ignore[arg-type]
    finally:
        _SERVICE.clear()
