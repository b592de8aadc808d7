"""Forks of an episode: siblings that start from its state before one of its steps, and go on independently.

A session cannot be copied, so a fork is an episode that is resumed (resume.py) where it never was: on a session of its own the parent's
steps are carried out again and compared, up to the screen and the elements that the parent saw next. Where they are not the same the
environment does not repeat: the fork is refused, its record says why, and it is played from its first step on, as another attempt.
"""

from __future__ import annotations

from agent.episode.episode import Episode, EpisodeRequest, Fork, Outcome
from agent.episode.log import EpisodeLog
from warehouse.core.errors import ConfigError


def fork(parent: Episode, step: int, num_siblings: int, log: EpisodeLog) -> list[EpisodeRequest]:
    """Requests of `num_siblings` episodes that begin where `parent` was before its step `step`; played with `log`, where they begin. The
    same again is the same siblings. Raises ConfigError for what has no such step."""
    requests = siblings(parent, step, num_siblings)
    for request in requests:
        begin(request, parent, log)
    return requests


def siblings(parent: Episode, step: int, num_siblings: int) -> list[EpisodeRequest]:
    """The requests alone. Raises ConfigError as `fork`."""
    if parent.outcome is Outcome.CRASHED:
        raise ConfigError(f"{parent.episode_id} cannot be forked: it crashed, so it has no steps")
    if not 0 <= step < len(parent.steps):
        last = len(parent.steps) - 1
        raise ConfigError(f"{parent.episode_id} cannot be forked at step {step}: its steps are 0 to {last}; name the one to make otherwise")
    if num_siblings < 1:
        raise ConfigError(f"{num_siblings} siblings of {parent.episode_id}: ask for at least 1")
    left = Fork(parent_id=parent.episode_id, step=step)
    return [parent.request.model_copy(update={"fork": left, "attempt": number}) for number in range(1, num_siblings + 1)]


def begin(request: EpisodeRequest, parent: Episode, log: EpisodeLog) -> None:
    """Write what a fork begins with, unless it has begun or was refused."""
    if request.fork is None or request.fork.parent_id != parent.episode_id:
        raise ConfigError(f"{request.episode_id} is not a fork of {parent.episode_id}")
    log.begin_fork(request, parent.steps[: request.fork.step + 1])
