"""Which advantage every token of a round gets: the critic's, a baseline's (of the task, the group, the batch), or none while value
pretraining holds the policy.

Fits the critic on the way. The formulas are in advantages.py, the critic's own rules in models/rl/value/learner.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.rl.config import PpoConfig
from models.rl.metrics import trajectory_metrics
from models.rl.rollouts.forks import fork_advantages
from models.rl.updates.advantages import (
    Floats,
    baseline_advantages,
    batch_advantages,
    explained_variance,
    group_advantages,
    normalised,
    returns,
    uniform_tasks,
)
from models.rl.updates.buffer import Trajectory, with_token_rewards
from models.rl.value.critic import Level, rewards_per_value
from models.rl.value.learner import ValueLearner
from warehouse.core.errors import ValueGateNotPassed

Weigh = Callable[[Sequence[Trajectory], PpoConfig, NDArray[np.bool_]], list[Floats]]
"""From a round's episodes, and which of them are skipped, to the advantages of their tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """`advantages[i][t]` for response token t of episode i; None where the policy is to stay as it is. `unscaled_E` marks the episodes
    whose advantages are still to be normalised and clipped, minibatch by minibatch; None where there are none."""

    advantages: list[Floats] | None
    metrics: dict[str, float]
    unscaled_E: NDArray[np.bool_] | None = None


def weigh_round(
    items: Sequence[Trajectory],
    config: PpoConfig,
    value_learner: ValueLearner | None,
    round_index: int,
    generator: np.random.Generator,
    *,
    reference: Sequence[Floats] | None = None,
) -> Weighting:
    """Advantages of a round's episodes, scaled and clipped. `round_index` counts from 1; `reference` holds the reference policy's
    log-probabilities of the response tokens, which kl_placement: reward needs (see PolicyLearner.reference_logprobs).

    The critic steers in the rounds whose gate it passes, on these very episodes before it is fitted to them; during pretraining the policy
    waits otherwise (or follows the per-task baseline, see the config); after it a critic that never passed ends the run
    (ValueGateNotPassed), or goes on being fitted and checked while the baseline steers. From a fork on, its siblings steer in any case.
    """
    # Judged before the KL penalty, which makes every reward another one.
    groups_E = _groups(items, config)
    uniform_E = uniform_tasks(np.array([item.reward for item in items]), groups_E)
    skipped_E = uniform_E & config.skip_uniform_tasks
    unscaled_E = None
    zero_std = float(np.mean(list(dict(zip(groups_E, uniform_E, strict=True)).values())))
    metrics = {"uniform_fraction": float(uniform_E.mean()), "group_zero_std": zero_std} | trajectory_metrics(items)
    penalties = None
    if config.kl_placement == "reward" and config.kl_coefficient and reference is not None:
        penalties = [_kl_penalty(item, logprobs_T, config.kl_coefficient) for item, logprobs_T in zip(items, reference, strict=True)]
        items = [with_token_rewards(item, penalty_T.tolist()) for item, penalty_T in zip(items, penalties, strict=True)]
    if config.fork_siblings:
        metrics |= fork_advantages(items, config)[1]
    if value_learner is None:
        advantages: list[Floats] | None = WEIGH[config.algorithm](items, config, skipped_E)
    else:
        advantages = _by_critic(items, config, value_learner, round_index, generator, metrics, skipped_E)
        if metrics["critic_steers"] and config.advantage_scope == "minibatch":
            unscaled_E = ~skipped_E
    if advantages is not None and penalties is not None and config.algorithm != "rejection":
        advantages = [
            _clipped(_still_to_pay(penalty_T, config), config) if is_skipped else values
            for values, penalty_T, is_skipped in zip(advantages, penalties, skipped_E, strict=True)
        ]
    if advantages is not None and config.mode == "replay_only":
        advantages, unscaled_E = [np.zeros_like(values) for values in advantages], None
    return Weighting(advantages=advantages, metrics=metrics, unscaled_E=unscaled_E)


def _by_critic(
    items: Sequence[Trajectory],
    config: PpoConfig,
    value_learner: ValueLearner,
    round_index: int,
    generator: np.random.Generator,
    metrics: dict[str, float],
    skipped_E: NDArray[np.bool_],
) -> list[Floats] | None:
    estimates = value_learner.estimate(items)
    returns = np.concatenate(estimates.returns)
    metrics["explained_variance"] = explained_variance(np.concatenate(estimates.values), returns)
    metrics["explained_shifted"] = explained_variance(np.concatenate(estimates.shifted.values), returns)
    metrics["explained_by_task"] = explained_variance(np.concatenate(estimates.baselines), returns)
    metrics["loss_of_critic"] = float(np.mean((np.concatenate(estimates.values) - returns) ** 2))
    metrics["loss_by_task"] = float(np.mean((np.concatenate(estimates.baselines) - returns) ** 2))
    is_pretraining = round_index <= config.pretraining_rounds
    is_steering = value_learner.gate.has_passed or (config.gate_policy == "open" and not is_pretraining)
    advantages: list[Floats] | None = _by_task(items, config, skipped_E)
    if not is_steering and is_pretraining:
        metrics["value_loss"] = value_learner.pretrain(items, estimates, generator)
        advantages = None if config.pretraining_policy == "frozen" else advantages
    elif not is_steering and config.gate_policy == "block" and not value_learner.gate.has_ever_passed:
        gate = value_learner.gate
        raise ValueGateNotPassed(
            f"after {config.pretraining_rounds} rounds of value pretraining the critic has never passed its gate: it explains "
            f"{gate.explained_variance:.3f} of the variance of returns (value loss {gate.loss}, untrained {gate.initial_loss}), but the "
            f"gate needs more than {config.gate_explained_variance:g} and a lower loss: raise pretraining_rounds or offline_episodes, or "
            "set gate_policy to fallback"
        )
    else:
        results = value_learner.advantages(items, estimates)
        metrics["value_loss"] = value_learner.fit(items, [result.targets_T for result in results], estimates, generator)
        if is_steering:
            advantages = _steered([result.advantages_T for result in results], items, config, skipped_E)
    lambdas = [value_learner.lambda_policy(item) for item in items]
    gate = value_learner.gate
    metrics |= {
        "critic_steers": float(is_steering),
        "baseline_steers": float(not is_steering and advantages is not None),
        "value_gate": float(gate.has_passed),
        "gate_explained_variance": gate.explained_variance,
        "lambda_policy": float(np.mean(lambdas)),
        "lambda_policy_min": min(lambdas),
        "lambda_policy_max": max(lambdas),
    }
    if gate.loss is not None and gate.initial_loss is not None:
        metrics |= {"value_loss_initial": gate.initial_loss, "value_loss_now": gate.loss}
    return advantages


def _steered(advantages: Sequence[Floats], items: Sequence[Trajectory], config: PpoConfig, skipped_E: NDArray[np.bool_]) -> list[Floats]:
    """The critic's advantages, normalised over the batch (here) or each minibatch (update.py), clipped, one a token; 0 for the skipped."""
    kind = config.advantage_normalisation if config.advantage_scope == "batch" else "none"
    if config.fork_siblings:
        advantages = _since_forks(advantages, items, config, config.level)
    scaled = normalised(advantages, kind, skipped_E=skipped_E)
    if config.advantage_scope == "batch":
        scaled = [_clipped(values, config) for values in scaled]
    return [_per_token(values, item, config.level) for values, item in zip(scaled, items, strict=True)]


def _by_task(items: Sequence[Trajectory], config: PpoConfig, _: NDArray[np.bool_]) -> list[Floats]:
    """REINFORCE with a per-task baseline: the same advantage on all tokens of an episode, up to where it was forked. Forks, which did not
    begin where the others did, are not part of the baseline. Both kinds are divided by the greater of two spreads, of what the task's whole
    episodes got and of what its forks say: where only forks of a task were solved, they do not shout."""
    rewards_E, whole_E = np.array([item.reward for item in items]), np.array([item.fork is None for item in items])
    tasks_E = [item.task_name for item in items]
    advantages_E, scales_E = baseline_advantages(rewards_E, tasks_E, std_floor=config.baseline_std_floor, counted_E=whole_E)
    if not config.fork_siblings:
        return _spread(advantages_E, items, config)
    unscaled = [np.full(item.num_response_tokens, value * scale) for item, value, scale in zip(items, advantages_E, scales_E, strict=True)]
    found = fork_advantages(items, config)[0]
    for task in set(tasks_E):
        members_E = np.array([each == task for each in tasks_E])
        said = np.concatenate([found_S for found_S, is_one in zip(found, members_E, strict=True) if is_one])
        if not np.isnan(said).all():
            scales_E[members_E] = np.maximum(scales_E[members_E], np.nanstd(said) + config.baseline_std_floor)
    replaced = _since_forks(unscaled, items, config, "token")
    return [_clipped(values / scale, config) for values, scale in zip(replaced, scales_E, strict=True)]


def _since_forks(advantages: Sequence[Floats], items: Sequence[Trajectory], config: PpoConfig, level: Level) -> list[Floats]:
    """Advantages in units of reward, those from an episode's first fork on replaced by what its siblings say."""
    replaced = []
    for values, item, found_S in zip(advantages, items, fork_advantages(items, config)[0], strict=True):
        found = found_S if level == "step" else np.repeat(found_S, item.tokens_per_step)
        replaced.append(np.where(np.isnan(found), values, found))
    return replaced


def _by_group(items: Sequence[Trajectory], config: PpoConfig, _: NDArray[np.bool_]) -> list[Floats]:
    """GRPO: the same advantage on all tokens of an episode, from the rewards of its group."""
    rewards_E = np.array([item.reward for item in items])
    return _spread(group_advantages(rewards_E, _groups(items, config), normalise_std=config.group_normalise_std), items, config)


def _by_group_in_group(items: Sequence[Trajectory], config: PpoConfig, skipped_E: NDArray[np.bool_]) -> list[Floats]:
    """GiGPO (arXiv 2505.10978, joint advantage): an episode's advantage in its group, plus w times each step's among the steps of the
    group at the same state, by the returns from there on."""
    groups_E = _groups(items, config)
    rewards_E = np.array([item.reward for item in items])
    episodes_E = group_advantages(rewards_E, groups_E, normalise_std=config.group_normalise_std)
    states = [step.state and f"{group} {step.state}" for group, item in zip(groups_E, items, strict=True) for step in item.steps]
    earned = np.concatenate([returns(rewards_per_value(item, "step"), gamma=config.gamma) for item in items])
    alone = [state or f"step {index}" for index, state in enumerate(states)]
    steps = group_advantages(earned, alone, normalise_std=config.group_normalise_std)
    found, start = [], 0
    for item, of_episode, is_skipped in zip(items, episodes_E, skipped_E, strict=True):
        own_S = of_episode + config.step_group_weight * steps[start : start + len(item.steps)]
        start += len(item.steps)
        found.append(np.repeat(_clipped(np.zeros_like(own_S) if is_skipped else own_S, config), item.tokens_per_step))
    return found


def _by_batch(items: Sequence[Trajectory], config: PpoConfig, skipped_E: NDArray[np.bool_]) -> list[Floats]:
    """REINFORCE++: returns of the tokens, normalised over the batch without the skipped; its Baseline variant takes the group's mean off
    first."""
    rewards = [rewards_per_value(item, "token") for item in items]
    if config.group_baseline:
        totals_E = np.array([item.reward for item in items])
        centred_E = group_advantages(totals_E, _groups(items, config), normalise_std=False)
        for rewards_T, total, centred in zip(rewards, totals_E, centred_E, strict=True):
            rewards_T[-1] += centred - total
    return [_clipped(values, config) for values in batch_advantages(rewards, gamma=config.gamma, skipped_E=skipped_E)]


def _by_rejection(items: Sequence[Trajectory], config: PpoConfig, _: NDArray[np.bool_]) -> list[Floats]:
    """Rejection sampling: the tokens of successful episodes count 1, all others nothing (RAFT, arXiv 2304.06767, with a verdict for the
    reward model)."""
    return [np.full(item.num_response_tokens, float(item.is_success)) for item in items]


WEIGH: dict[str, Weigh] = {
    "ppo": _by_task,
    "reinforce": _by_task,
    "reinforce++": _by_batch,
    "grpo": _by_group,
    "gigpo": _by_group_in_group,
    "rejection": _by_rejection,
}
"""What weighs an episode's tokens where no critic steers."""


def _groups(items: Sequence[Trajectory], config: PpoConfig) -> list[str]:
    """What each episode is compared with: attempts at its instance, or all of its task."""
    return [item.instance or item.episode_id if config.compares_attempts else item.task_name for item in items]


def _kl_penalty(item: Trajectory, reference_T: Floats, coefficient: float) -> Floats:
    """-beta log(sampler / reference), each token's reward beside its own: estimator k1 (REINFORCE++, arXiv 2501.03262, its token-level
    penalty)."""
    sampled_T = np.array([x for step in item.steps for x in step.logprobs])
    return -coefficient * (sampled_T - reference_T)


def _still_to_pay(penalty_T: Floats, config: PpoConfig) -> Floats:
    """The advantages of an episode that is skipped for its outcome: the return of its penalties from each token on, in units of reward."""
    return returns(penalty_T, gamma=config.gamma)


def _spread(advantages_E: Floats, items: Sequence[Trajectory], config: PpoConfig) -> list[Floats]:
    clipped_E = _clipped(advantages_E, config)
    return [np.full(item.num_response_tokens, advantage) for item, advantage in zip(items, clipped_E, strict=True)]


def _clipped(values: Floats, config: PpoConfig) -> Floats:
    return np.clip(values, -config.highest_advantage, config.highest_advantage)


def _per_token(values: Floats, item: Trajectory, level: Level) -> Floats:
    return values if level == "token" else np.repeat(values, item.tokens_per_step)
