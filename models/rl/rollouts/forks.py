"""Where a run's episodes are forked (agent/episode/fork.py), and the advantage of each sibling over the others from the same state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from agent.episode.episode import Episode, EpisodeRequest, Outcome, Step
from agent.episode.fork import siblings
from models.rl.config import PpoConfig
from models.rl.updates.advantages import Floats, mean_of_others, returns
from models.rl.updates.buffer import Trajectory
from models.rl.value.critic import rewards_per_value, slots
from warehouse.core.identity import stable_fraction

ForkEpisode = Callable[[Episode], list[EpisodeRequest]]
"""From an episode that has ended to the requests of its forks."""


def fork_requests(episode: Episode, config: PpoConfig) -> list[EpisodeRequest]:
    """The siblings of an episode, at each of the points chosen. The same for the same episode; none of a fork, and none of an episode that
    crashed or has nothing to learn from."""
    if episode.request.fork is not None or episode.outcome is Outcome.CRASHED:
        return []
    points = _points(episode, config)
    return [request for step_index in points for request in siblings(episode, step_index, config.fork_siblings)]


def _points(episode: Episode, config: PpoConfig) -> list[int]:
    def last_chosen(step: Step) -> float:
        if config.fork_choice == "entropy":
            return sum(step.response_logprobs)
        return stable_fraction("fork", episode.episode_id, step.step_index)

    steps = sorted((step for step in episode.steps if step.response_token_ids), key=last_chosen)
    return sorted(step.step_index for step in steps[: config.fork_points])


def fork_advantages(items: Sequence[Trajectory], config: PpoConfig) -> tuple[list[Floats], dict[str, float]]:
    """Of each step of each episode (S) its return less the mean of the others' at the last fork before it, and NaN where there is none.
    Metrics: `fork_groups`, how many states episodes met at, and `fork_zero_std`, the share of them behind which all were rewarded alike.

    That is REINFORCE with a leave-one-out baseline (RLOO, arXiv 2402.14740), of episodes that were brought to one state instead of answers
    to one prompt. From a fork on a parent's steps count among its siblings'; where the others crashed nothing can be said.
    """
    place = {item.episode_id: index for index, item in enumerate(items)}
    met: dict[tuple[int, str], list[tuple[int, int]]] = {}
    """By step and parent: index of an episode and of its step there."""
    for index, item in enumerate(items):
        if item.fork is not None:
            met.setdefault((item.fork.step, item.fork.parent_id), []).append((index, 0))
    found = [np.full(len(item.steps), np.nan) for item in items]
    num_groups = num_alike = 0
    for (step_index, parent_id), members in sorted(met.items()):
        if parent_id in place:
            parent = items[place[parent_id]]
            first = next((i for i, step in enumerate(parent.steps) if step.step_index >= step_index), None)
            members += [(place[parent_id], first)] if first is not None else []
        if len(members) < 2:
            continue
        earned_N = np.array([_return_from(items[index], first, config) for index, first in members])
        advantages_N = earned_N - mean_of_others(earned_N, [parent_id] * len(members))
        for (index, first), advantage in zip(members, advantages_N, strict=True):
            found[index][first:] = advantage
        num_groups += 1
        num_alike += int(np.ptp(earned_N) == 0)
    return found, {"fork_groups": float(num_groups), "fork_zero_std": num_alike / num_groups if num_groups else 0.0}


def _return_from(item: Trajectory, step: int, config: PpoConfig) -> float:
    return float(returns(rewards_per_value(item, config.level), gamma=config.gamma)[slots(item, step, config.level).start])
