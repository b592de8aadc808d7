"""Advantages of an episode's tokens: GAE across steps, value targets, baselines of tasks, groups and batches. Pure numpy; no model, no
torch.

An episode is a sequence of steps, each a prompt (observation) and a response. Only response tokens exist here: an episode's response
tokens are laid end to end, so that neither the discount nor the trace decays over an observation, however long it is, and nothing
that a critic says about an observation token can matter.

Shape suffixes: T response tokens of one episode, S steps of one episode, E episodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from warehouse.core.errors import TrainingDiverged

Floats = NDArray[np.float64]
Normalisation = Literal["none", "std", "mean_std"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """`advantages_T` weighs the policy's loss, `targets_T` is what the critic regresses on (A under lambda_critic, plus V)."""

    advantages_T: Floats
    targets_T: Floats


def length_adaptive_lambda(num_tokens: int, *, alpha: float, floor: float) -> float:
    """lambda_policy = 1 - 1 / (alpha * l), at least `floor`, which is in [0, 1].

    Source: VAPO (arXiv 2504.05118, "length-adaptive GAE"), taken over by UI-TARS-2 (arXiv 2509.02544, section on PPO) with alpha = 0.05.
    As published it is negative below 1/alpha tokens (l = 10 gives -1.0), which is every short GUI episode: hence the floor. `l` counts
    response tokens. Raises ValueError for an episode without any.
    """
    if num_tokens < 1:
        raise ValueError(f"lambda of an episode of {num_tokens} response tokens: it needs at least 1")
    return max(floor, 1.0 - 1.0 / (alpha * num_tokens))


def gae(rewards_T: Floats, values_T: Floats, *, gamma: float, lambda_: float, bootstrap_value: float = 0.0) -> Floats:
    """Generalised advantage estimation (Schulman et al., arXiv 1506.02438, equation 16) over one episode.

    delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma lambda A_{t+1}. After the last entry comes `bootstrap_value`: 0 where the
    environment ended the episode, an estimate of what was still to come where a limit cut it off. Raises ValueError where rewards and
    values are not vectors of one length.
    """
    if rewards_T.shape != values_T.shape or rewards_T.ndim != 1:
        raise ValueError(f"rewards {rewards_T.shape} and values {values_T.shape} of one episode must be vectors of one length")
    next_values_T = np.append(values_T[1:], bootstrap_value)
    deltas_T = rewards_T + gamma * next_values_T - values_T
    advantages_T = np.empty_like(deltas_T)
    running = 0.0
    for t in range(len(deltas_T) - 1, -1, -1):
        running = deltas_T[t] + gamma * lambda_ * running
        advantages_T[t] = running
    return advantages_T


def decoupled_gae(
    rewards_T: Floats, values_T: Floats, *, gamma: float, lambda_policy: float, lambda_critic: float, bootstrap_value: float = 0.0
) -> Advantages:
    """GAE with one lambda for the policy and another for the critic's targets (VC-PPO, arXiv 2503.01491; lambda_critic = 1 is the
    Monte-Carlo return). Raises TrainingDiverged where a value or a reward is not a number."""
    if not (np.isfinite(rewards_T).all() and np.isfinite(values_T).all() and np.isfinite(bootstrap_value)):
        raise TrainingDiverged("a reward or a value estimate is not a finite number: the critic has diverged; lower critic_learning_rate")
    advantages_T = gae(rewards_T, values_T, gamma=gamma, lambda_=lambda_policy, bootstrap_value=bootstrap_value)
    traces_T = gae(rewards_T, values_T, gamma=gamma, lambda_=lambda_critic, bootstrap_value=bootstrap_value)
    return Advantages(advantages_T=advantages_T, targets_T=traces_T + values_T)


def rewards_at_last_tokens(step_rewards_S: Sequence[float], tokens_per_step_S: Sequence[int]) -> Floats:
    """Rewards per response token: each step's reward on the last token of its response, where the action was complete. Raises ValueError
    for a step without tokens, or where steps and rewards are not as many."""
    if len(step_rewards_S) != len(tokens_per_step_S) or min(tokens_per_step_S, default=0) < 1:
        raise ValueError(
            f"{len(step_rewards_S)} step rewards for steps of {list(tokens_per_step_S)} tokens: one reward per step, one token or more"
        )
    rewards_T = np.zeros(sum(tokens_per_step_S))
    rewards_T[np.cumsum(tokens_per_step_S) - 1] = step_rewards_S
    return rewards_T


def baseline_advantages(
    rewards_E: Floats, tasks_E: Sequence[str], *, std_floor: float, counted_E: NDArray[np.bool_] | None = None
) -> tuple[Floats, Floats]:
    """(R - mean_task) / (std_task + std_floor) for each episode, and that divisor: REINFORCE with a per-task baseline.

    A task whose episodes all got the same reward gives exactly 0. The floor keeps a task with one odd episode from shouting. Where some
    episodes of a task are `counted_E`, mean and spread are theirs."""
    advantages_E, scales_E = np.zeros(len(rewards_E)), np.ones(len(rewards_E))
    for members in _groups(tasks_E):
        counted = members if counted_E is None or not (members & counted_E).any() else members & counted_E
        group = rewards_E[counted]
        scales_E[members] = group.std() + std_floor
        advantages_E[members] = (rewards_E[members] - group.mean()) / scales_E[members]
    return np.where(uniform_tasks(rewards_E, tasks_E), 0.0, advantages_E), scales_E


def group_advantages(rewards_E: Floats, groups_E: Sequence[str], *, normalise_std: bool) -> Floats:
    """GRPO: (R - mean_group) / std_group for each episode (arXiv 2402.03300, section 4.1.2); without the division Dr. GRPO (arXiv
    2503.20783). The standard deviation is the sample's (n - 1), as in TRL and verl.

    A group rewarded alike, one of a single episode too, gives exactly 0: it says nothing."""
    advantages_E = np.zeros(len(rewards_E))
    for members in _groups(groups_E):
        group = rewards_E[members]
        if np.ptp(group) > 0:
            advantages_E[members] = (group - group.mean()) / (group.std(ddof=1) if normalise_std else 1.0)
    return advantages_E


def mean_of_others(values_E: Floats, tasks_E: Sequence[str], counted_E: NDArray[np.bool_] | None = None) -> Floats:
    """For each episode the mean over the other episodes of its task (leave-one-out), of those that are `counted_E`; NaN where there is no
    other."""
    means_E, counts_E = np.full(len(values_E), np.nan), np.ones(len(values_E)) if counted_E is None else counted_E.astype(float)
    for members in _groups(tasks_E):
        weights, values = counts_E[members], values_E[members] * counts_E[members]
        others = weights.sum() - weights
        means_E[members] = np.divide(values.sum() - values, others, out=np.full(len(values), np.nan), where=others > 0)
    return means_E


def returns(rewards_T: Floats, *, gamma: float) -> Floats:
    """G_t = r_t + gamma G_{t+1}."""
    return gae(rewards_T, np.zeros_like(rewards_T), gamma=gamma, lambda_=1.0)


def batch_advantages(rewards: Sequence[Floats], *, gamma: float, skipped_E: NDArray[np.bool_] | None = None) -> list[Floats]:
    """REINFORCE++: the return from each token on, G_t = r_t + gamma G_{t+1}, less the mean and divided by the standard deviation over all
    tokens of the batch (arXiv 2501.03262). `rewards[i][t]` are those of episode i's response tokens, with the token-wise KL penalty in
    them where there is one. All 0 where every return is the same; skipped episodes give 0 and do not count."""
    return normalised([returns(rewards_T, gamma=gamma) for rewards_T in rewards], "mean_std", skipped_E=skipped_E)


def normalised(advantages: Sequence[Floats], kind: Normalisation, *, skipped_E: NDArray[np.bool_] | None = None) -> list[Floats]:
    """Scaled by the mean and the spread of all entries together. std keeps the mean, so that the sign stays; skipped episodes give 0 and do
    not count. Where nothing varies: 0, since no action is then better than another (`none` leaves even that as it is)."""
    skipped = np.zeros(len(advantages), dtype=bool) if skipped_E is None else skipped_E
    kept = [values for values, is_skipped in zip(advantages, skipped, strict=True) if not is_skipped]
    centre, spread = 0.0, 1.0
    if kind != "none":
        everything = np.concatenate(kept) if kept else np.zeros(1)
        centre = float(everything.mean()) if kind == "mean_std" else 0.0
        spread = float(everything.std())
    if spread < 1e-8:
        return [np.zeros_like(values) for values in advantages]
    return [
        np.zeros_like(values) if is_skipped else (values - centre) / spread for values, is_skipped in zip(advantages, skipped, strict=True)
    ]


def uniform_tasks(rewards_E: Floats, tasks_E: Sequence[str]) -> NDArray[np.bool_]:
    """True for the episodes of a task (or group) all of whose episodes were rewarded alike: they say nothing about which action was
    better."""
    uniform_E = np.zeros(len(rewards_E), dtype=bool)
    for members in _groups(tasks_E):
        uniform_E[members] = np.ptp(rewards_E[members]) == 0
    return uniform_E


def _groups(names_E: Sequence[str]) -> Iterator[NDArray[np.bool_]]:
    names = np.asarray(names_E)
    for name in np.unique(names):
        yield names == name


def explained_variance(values: Floats, returns: Floats) -> float:
    """1 - Var(return - value) / Var(return): 1 is perfect, 0 no better than a constant, negative worse. 0 where all returns are equal."""
    variance = float(np.var(returns))
    return 0.0 if variance < 1e-12 else float(1.0 - np.var(returns - values) / variance)
