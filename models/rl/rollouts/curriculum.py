"""Which episodes are asked for: how many of each task, on which seeds, in which order. Pure functions of the settings and of what was
asked and met before.

A task that the policy always solves, or never, says nothing about which action was better (its advantages are all zero), so episodes go
where the outcome is open. Source of the idea: dynamic sampling (DAPO, arXiv 2503.14476), here before acting, not after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from models.rl.config import PpoConfig
from sandbox.tasks.task import Split, Task

LOWEST_SHARE = 0.25
"""A settled task still gets this much of what an open one gets: it may be forgotten, or come within reach."""
HIGHEST_QUOTA = 2
"""No task gets more than so many times its even part, so that a run's demand for seeds is bounded."""
MEMORY = 0.5
"""Weight of what was known against what the latest batch showed."""


def quotas(tasks: Sequence[Task], config: PpoConfig, rates: Mapping[str, float]) -> dict[str, int]:
    """Episodes of each task (by id) in a round. `rates` are success rates by task id; without any, all tasks get the same.

    Shares go with the variance of a coin of that rate, 4 p (1 - p), between LOWEST_SHARE and 1; at least two episodes each, so that a
    baseline exists. The total never exceeds the even one by more than rounding."""
    even = config.episodes_per_task
    if not config.adaptive_episodes or not rates:
        return {task.task_id: even for task in tasks}
    shares = _shares(tasks, config, rates)
    scale = even * len(tasks) / sum(shares.values())
    return {task_id: max(2, min(HIGHEST_QUOTA * even, round(scale * share))) for task_id, share in shares.items()}


def round_requests(
    tasks: Sequence[Task], counts: Mapping[str, int], met: Mapping[str, int], config: PpoConfig, policy_id: str
) -> list[EpisodeRequest]:
    """A round's requests, task by task: `counts` episodes by task id, rounded up to whole groups of attempts at one instance, on the train
    seeds after the `met` ones that were used before."""
    groups = [task for task in tasks for _ in range(-(-counts[task.task_id] // config.group_size))]
    return _requests(groups, met, config, policy_id)


def stream_requests(
    tasks: Sequence[Task],
    num_episodes: int,
    passes: Mapping[str, float],
    rates: Mapping[str, float],
    met: Mapping[str, int],
    config: PpoConfig,
    policy_id: str,
) -> tuple[list[EpisodeRequest], dict[str, float]]:
    """The next `num_episodes` (in whole groups) of an endless stream in which tasks take turns by their shares, and the new passes.

    Stride scheduling: a task's pass grows by 1 / share with each group, and the task with the lowest pass is next. What counts is what was
    *started*: however soon a task's episodes end, it gets no more of them than its share, and never more than HIGHEST_QUOTA times its even
    part of all that the run has started. `passes` and `met` (instances used by the run so far) by task id.
    """
    shares = _shares(tasks, config, rates)
    due = {task.task_id: passes.get(task.task_id, 0.0) for task in tasks}
    num_groups = -(-num_episodes // config.group_size)
    groups: list[Task] = []
    taken = Counter({task.task_id: met.get(task.task_id, 0) for task in tasks})
    for num_started in range(taken.total() + 1, taken.total() + num_groups + 1):
        most = max(1, HIGHEST_QUOTA * num_started // len(tasks))
        task = min((task for task in tasks if taken[task.task_id] < most), key=lambda task: due[task.task_id])
        groups.append(task)
        taken[task.task_id] += 1
        due[task.task_id] += 1 / shares[task.task_id]
    return _requests(groups, met, config, policy_id), due


def batch_episodes(config: PpoConfig, num_tasks: int) -> int:
    """Episodes of a streaming batch, in whole groups, and never more than the whole run has."""
    wanted = config.min_batch_episodes or config.episodes_per_task * num_tasks
    num_groups = config.rounds * config.episodes_per_task * num_tasks // config.group_size
    return max(1, min(-(-wanted // config.group_size), num_groups)) * config.group_size


def num_rounds(config: PpoConfig, num_tasks: int) -> int:
    """Batches that a run learns from. A streaming run starts as many episodes as one in rounds, up to the last whole batch, so it meets no
    more train seeds."""
    if not config.streaming:
        return config.rounds
    return max(1, config.rounds * config.episodes_per_task * num_tasks // batch_episodes(config, num_tasks))


def num_to_admit(num_admitted: int, num_learned: int, *, batch_size: int, batches_ahead: int, num_batches: int) -> int:
    """How many more episodes a streaming run may start when it has learned from `num_learned` batches.

    AReaL (arXiv 2505.24298, section 5.1): the n-th episode of a run is admitted as soon as floor((n - 1) / B) <= i + eta, with B the batch
    size, i the version learned and eta = `batches_ahead`. No more are started than all `num_batches` need, so each is learned from."""
    return max(0, batch_size * min(num_batches, num_learned + batches_ahead + 1) - num_admitted)


def instances_met(requests: Iterable[EpisodeRequest]) -> dict[str, int]:
    """How many instances of each task (by id) were asked for."""
    return dict(Counter(task_id for task_id, _ in {(request.task.task_id, request.seed) for request in requests}))


def updated_rates(rates: Mapping[str, float], episodes: Sequence[Episode]) -> dict[str, float]:
    """Success rates by task id after one more batch; crashed episodes say nothing, and forks of what they did not do from the start."""
    outcomes: dict[str, list[bool]] = {}
    for episode in episodes:
        if episode.outcome is not Outcome.CRASHED and episode.fork is None:
            outcomes.setdefault(episode.request.task.task_id, []).append(episode.is_success)
    fresh = {task_id: sum(values) / len(values) for task_id, values in outcomes.items()}
    return dict(rates) | {
        task_id: MEMORY * rates[task_id] + (1 - MEMORY) * rate if task_id in rates else rate for task_id, rate in fresh.items()
    }


def _shares(tasks: Sequence[Task], config: PpoConfig, rates: Mapping[str, float]) -> dict[str, float]:
    if not config.adaptive_episodes:
        return {task.task_id: 1.0 for task in tasks}
    return {task.task_id: max(LOWEST_SHARE, 4 * p * (1 - p)) for task in tasks for p in [rates.get(task.task_id, 0.5)]}


def _requests(groups: Sequence[Task], met: Mapping[str, int], config: PpoConfig, policy_id: str) -> list[EpisodeRequest]:
    """The attempts of each group, in order; a group is the next unused train instance of its task."""
    wanted = Counter(task.task_id for task in groups)
    seeds = {
        task.task_id: iter(task.seeds(Split.TRAIN, wanted[task.task_id], skip=config.seed_offset + met.get(task.task_id, 0)))
        for task in {task.task_id: task for task in groups}.values()
    }
    return [
        EpisodeRequest(
            purpose="rl",
            task=task,
            seed=seed,
            attempt=attempt,
            policy_id=policy_id,
            temperature=config.temperature,
            screenshots=config.keeps_screens,
        )
        for task in groups
        for seed in [next(seeds[task.task_id])]
        for attempt in range(config.group_size)
    ]
