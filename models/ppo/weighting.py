"""Which advantage every token of a round gets: the critic's, the per-task baseline's, or none while value pretraining holds the policy.

Fits the critic on the way. The formulas are in advantages.py, the critic's own rules in value_learner.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.ppo.advantages import baseline_advantages, explained_variance, uniform_tasks
from models.ppo.buffer import Trajectory
from models.ppo.config import PpoConfig
from models.ppo.critic import Level
from models.ppo.value_learner import ValueLearner

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """`advantages[i][t]` for response token t of episode i; None where the policy is to stay as it is."""

    advantages: list[Floats] | None
    metrics: dict[str, float]


def weigh_round(
    items: Sequence[Trajectory], config: PpoConfig, value_learner: ValueLearner | None, round_index: int, generator: np.random.Generator
) -> Weighting:
    """Advantages of a round's episodes, scaled and clipped. `round_index` counts from 1.

    The critic steers once it has passed its gate; during pretraining the policy waits (or follows the baseline, see the config); after
    pretraining a critic that failed goes on being fitted and checked while the per-task baseline steers.
    """
    rewards_E, tasks_E = np.array([item.reward for item in items]), [item.task_name for item in items]
    uniform_E = uniform_tasks(rewards_E, tasks_E)
    metrics = {"uniform_fraction": float(uniform_E.mean())}
    baseline_E = baseline_advantages(rewards_E, tasks_E, std_floor=config.baseline_std_floor)
    by_baseline = [
        np.full(item.num_response_tokens, np.clip(a, -config.advantage_clip, config.advantage_clip))
        for item, a in zip(items, baseline_E, strict=True)
    ]
    advantages: list[Floats] | None = by_baseline
    if value_learner is not None:
        estimates = value_learner.estimate(items)
        metrics["explained_variance"] = explained_variance(np.concatenate(estimates.values), np.concatenate(estimates.returns))
        is_steering = value_learner.gate.has_passed
        if not is_steering and round_index <= config.pretraining_rounds:
            metrics["value_loss"] = value_learner.pretrain(items, estimates, generator)
            advantages = None if config.pretraining_policy == "frozen" else by_baseline
        else:
            results = value_learner.advantages(items, estimates)
            metrics["value_loss"] = value_learner.fit(items, [result.targets_T for result in results], generator)
            if is_steering:
                skipped_E = uniform_E if config.skip_uniform_tasks else np.zeros_like(uniform_E)
                advantages = _scaled([result.advantages_T for result in results], skipped_E, config.advantage_clip)
                advantages = [_per_token(values, item, config.level) for values, item in zip(advantages, items, strict=True)]
        metrics |= {
            "critic_steers": float(is_steering),
            "value_gate": float(value_learner.gate.has_passed),
            "gate_explained_variance": value_learner.gate.explained_variance,
        }
    if advantages is not None and config.mode == "replay_only":
        advantages = [np.zeros_like(values) for values in advantages]
    return Weighting(advantages=advantages, metrics=metrics)


def _scaled(advantages: Sequence[Floats], skipped_E: NDArray[np.bool_], clip: float) -> list[Floats]:
    """Divided by their common spread and clipped; 0 for skipped episodes. The mean stays: an advantage's sign is the critic's verdict."""
    kept = [values for values, skipped in zip(advantages, skipped_E, strict=True) if not skipped]
    spread = float(np.std(np.concatenate(kept))) if kept else 0.0
    if spread < 1e-8:
        return [np.zeros_like(values) for values in advantages]
    return [
        np.zeros_like(values) if skipped else np.clip(values / spread, -clip, clip)
        for values, skipped in zip(advantages, skipped_E, strict=True)
    ]


def _per_token(values: Floats, item: Trajectory, level: Level) -> Floats:
    return values if level == "token" else np.repeat(values, item.tokens_per_turn)
