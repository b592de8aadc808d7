"""What a round's episodes looked like, as numbers for curves. What the learner did with them is measured where it happens.

Names are stable: reports and checks read them by name. docs/rl.md lists them; those of time and queues (clocks.py,
models/rl/rollouts/pool.py) are in docs/streaming.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from agent.episode.episode import Episode, Outcome, Step
from models.rl.updates.buffer import Trajectory, is_left_out

FAR = 8
"""Updates behind the learner from which on tokens are counted together."""


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Means over the episodes that have a reward; `success` is the mean over tasks of each task's rate (`success/<task>`), so that a task
    with crashed episodes weighs no less. Crashed episodes and forks are only counted. `reward` is the verified one, without any shaping."""
    whole = [episode for episode in episodes if episode.fork is None]
    scored = [episode for episode in whole if episode.outcome is not Outcome.CRASHED and episode.reward is not None]
    metrics: dict[str, float] = {"episodes": len(scored), "crashed": len(whole) - len(scored)} | fork_metrics(episodes)
    if not scored:
        return metrics
    rates = _by_task(scored, [float(episode.is_success) for episode in scored])
    rewards = _by_task(scored, [episode.reward or 0.0 for episode in scored])
    steps = [step for episode in scored for step in episode.steps]
    return metrics | {
        "reward": float(np.mean([episode.reward for episode in scored])),
        "success": float(np.mean(list(rates.values()))),
        "truncated": float(np.mean([episode.outcome is Outcome.TRUNCATED for episode in scored])),
        "timed_out": float(np.mean([episode.outcome is Outcome.TIMEOUT for episode in scored])),
        "steps_per_episode": len(steps) / len(scored),
        "tokens_per_step": _mean([len(step.response_token_ids) for step in steps]),
        "think_tokens_per_step": _mean([think_tokens(step) for step in steps]),
        "invalid_actions": _mean([float(step.action.kind == "invalid") for step in steps]),
        "unanswered": _mean([float(not step.response_token_ids and step.action.kind == "invalid") for step in steps]),
        **{f"success/{name}": rate for name, rate in rates.items()},
        **{f"reward/{name}": reward for name, reward in rewards.items()},
    }


def fork_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """`forks`: episodes that began at a state of another; `forks_refused`: those that could not, and were played whole; `fork_steps`: steps
    of the first, and `replayed_steps` their parents', carried out again. Nothing where none was asked for."""
    forks = [episode for episode in episodes if episode.fork is not None]
    if not any(episode.request.fork for episode in episodes):
        return {}
    return {
        "forks": float(sum(episode.outcome is not Outcome.CRASHED for episode in forks)),
        "forks_refused": float(sum(episode.fork_refused is not None for episode in episodes)),
        "fork_steps": float(sum(len(episode.own_steps) for episode in forks)),
        "replayed_steps": float(sum(len(episode.steps) - len(episode.own_steps) for episode in forks)),
    }


def num_left_out(episodes: Sequence[Episode], never: Collection[int]) -> float:
    """Steps that are not learned from, because their answer holds an id that is never sampled."""
    return float(sum(is_left_out(step, never) for episode in episodes for step in episode.steps))


def think_tokens(step: Step) -> float:
    """Tokens of a step's thought, by its share of the response's characters: the text is not tokenised a second time."""
    if not step.thought or not step.response:
        return 0.0
    return len(step.response_token_ids) * min(1.0, len(step.thought) / len(step.response))


def trajectory_metrics(items: Sequence[Trajectory]) -> dict[str, float]:
    """`shaping/<component>`: what each component added to an episode's reward, on average; nothing without shaping."""
    names = sorted({name for item in items for name in item.shaping})
    return {f"shaping/{name}": float(np.mean([item.shaping.get(name, 0.0) for item in items])) for name in names}


def staleness_metrics(episodes: Sequence[Episode], version: int) -> dict[str, float]:
    """How many updates the weights behind the tokens of a batch lag behind `version`: `staleness_mean`, `staleness_max`, and the share of
    tokens at each lag, `staleness/0`, `staleness/1`, …; lags from FAR on are one, `staleness/8+`."""
    lags = Counter(version - made_by for episode in episodes for step in episode.steps for made_by in step.response_versions)
    num_tokens = lags.total()
    if not num_tokens:
        return {}
    shares: Counter[str] = Counter()
    for lag, count in sorted(lags.items()):
        shares[f"staleness/{lag}" if lag < FAR else f"staleness/{FAR}+"] += count
    return {
        "staleness_mean": sum(lag * count for lag, count in lags.items()) / num_tokens,
        "staleness_max": float(max(lags)),
        **{name: count / num_tokens for name, count in shares.items()},
    }


def _by_task(episodes: Sequence[Episode], values: Sequence[float]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for episode, value in zip(episodes, values, strict=True):
        found.setdefault(episode.request.task.name, []).append(value)
    return {name: float(np.mean(values)) for name, values in sorted(found.items())}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
