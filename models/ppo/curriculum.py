"""Which episodes a round asks for: how many of each task, on which seeds. Pure functions of the settings and of what earlier rounds met.

A task that the policy always solves, or never, says nothing about which action was better (its advantages are all zero), so rounds spend
their episodes where the outcome is open. Source of the idea: dynamic sampling (DAPO, arXiv 2503.14476), here before acting, not after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.episode import Episode, EpisodeRequest, Outcome
from models.ppo.config import PpoConfig
from sandbox.task import Split, Task

LOWEST_SHARE = 0.25
"""A settled task still gets this much of what an open one gets: it may be forgotten, or come within reach."""
HIGHEST_QUOTA = 2
"""No task gets more than so many times its even part, so that a run's demand for seeds is bounded."""
MEMORY = 0.5
"""Weight of what was known against what the latest round showed."""


def quotas(tasks: Sequence[Task], config: PpoConfig, rates: Mapping[str, float]) -> dict[str, int]:
    """Episodes of each task (by id) in a round. `rates` are success rates by task id; without any, all tasks get the same.

    Shares go with the variance of a coin of that rate, 4 p (1 - p), between LOWEST_SHARE and 1; at least two episodes each, so that a
    baseline exists. The total never exceeds the even one by more than rounding."""
    even = config.episodes_per_task
    if not config.adaptive_episodes or not rates:
        return {task.task_id: even for task in tasks}
    shares = {task.task_id: max(LOWEST_SHARE, 4 * p * (1 - p)) for task in tasks for p in [rates.get(task.task_id, 0.5)]}
    scale = even * len(tasks) / sum(shares.values())
    return {task_id: max(2, min(HIGHEST_QUOTA * even, round(scale * share))) for task_id, share in shares.items()}


def round_requests(
    tasks: Sequence[Task], counts: Mapping[str, int], met: Mapping[str, int], config: PpoConfig, policy_id: str
) -> list[EpisodeRequest]:
    """One request a task and seed: `counts` by task id, on the train seeds after the `met` ones that earlier rounds used."""
    return [
        EpisodeRequest(
            purpose="rl", task=task, seed=seed, policy_id=policy_id, temperature=config.temperature, screenshots=config.screenshots
        )
        for task in tasks
        for seed in task.seeds(Split.TRAIN, counts[task.task_id], skip=config.seed_offset + met.get(task.task_id, 0))
    ]


def updated_rates(rates: Mapping[str, float], episodes: Sequence[Episode]) -> dict[str, float]:
    """Success rates by task id after one more round; crashed episodes say nothing."""
    outcomes: dict[str, list[bool]] = {}
    for episode in episodes:
        if episode.outcome is not Outcome.CRASHED:
            outcomes.setdefault(episode.request.task.task_id, []).append(episode.is_success)
    fresh = {task_id: sum(values) / len(values) for task_id, values in outcomes.items()}
    return dict(rates) | {
        task_id: MEMORY * rates[task_id] + (1 - MEMORY) * rate if task_id in rates else rate for task_id, rate in fresh.items()
    }
