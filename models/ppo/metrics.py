"""What a round's episodes looked like, as numbers for curves. What the learner did with them is measured where it happens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent.episode import Episode, Outcome


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Means over the episodes that have a reward; `success` is the mean over tasks of each task's rate (`success/<task>`), so that a task
    with crashed episodes weighs no less. Crashed episodes are only counted."""
    scored = [episode for episode in episodes if episode.outcome is not Outcome.CRASHED and episode.reward is not None]
    metrics: dict[str, float] = {"episodes": len(scored), "crashed": len(episodes) - len(scored)}
    if not scored:
        return metrics
    by_task: dict[str, list[bool]] = {}
    for episode in scored:
        by_task.setdefault(episode.request.task.name, []).append(episode.is_success)
    rates = {name: float(np.mean(values)) for name, values in sorted(by_task.items())}
    steps = [step for episode in scored for step in episode.steps]
    return metrics | {
        "reward": float(np.mean([episode.reward for episode in scored])),
        "success": float(np.mean(list(rates.values()))),
        "truncated": float(np.mean([episode.outcome is Outcome.TRUNCATED for episode in scored])),
        "steps_per_episode": len(steps) / len(scored),
        "tokens_per_step": float(np.mean([len(step.response_token_ids) for step in steps])) if steps else 0.0,
        "invalid_actions": float(np.mean([step.action.kind == "invalid" for step in steps])) if steps else 0.0,
        **{f"success/{name}": rate for name, rate in rates.items()},
    }
