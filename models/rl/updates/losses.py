"""Losses of PPO and its kin as pure torch functions: clipped objective, token weights, value loss, KL estimate, entropy. No model and no
optimizer; weights of off-policy tokens come from off_policy.py.

Shape suffixes: N response tokens of a batch, laid end to end; V vocabulary. Logarithms are natural.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token", "episode", "episode_mean", "step"]
Objective = Literal["clip", "likelihood"]
LOG_RATIO_BOUND = 20.0
"""Log-ratios are held inside +-this, so that no exponential overflows (verl and SkyRL use the same bound). No gradient beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """`loss` is differentiable; the rest are detached measurements, sums over the N tokens, so that micro-batches add up."""

    loss: Tensor
    kl_sum: float
    num_clipped_low: int
    num_clipped_high: int
    entropy_sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """What the loss of one run is made of (update.loss_settings); PpoConfig describes each field and has its default."""

    clip_low: float
    clip_high: float
    dual_clip: float | None
    objective: Objective
    kl_coefficient: float
    entropy_coefficient: float


def log_ratio(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """log(new / old) of each token, bounded."""
    return (logprobs_N - old_logprobs_N).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def clipped_objective(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) for each token, r = exp(logprob - old logprob).

    Source: PPO (arXiv 1707.06347, equation 7) with the decoupled bounds of DAPO (arXiv 2503.14476, "clip-higher"), as UI-TARS-2 uses it.
    With `dual_clip` c a token of negative advantage contributes at most -c A (dual-clip PPO, arXiv 1912.09729)."""
    ratios_N = torch.exp(log_ratio(logprobs_N, old_logprobs_N))
    clipped_N = ratios_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    losses_N = -torch.minimum(ratios_N * advantages_N, clipped_N * advantages_N)
    if dual_clip is None:
        return losses_N
    return torch.where(advantages_N < 0, torch.minimum(losses_N, -dual_clip * advantages_N), losses_N)


def token_weights(
    step_N: Tensor,
    *,
    aggregation: Aggregation,
    num_episodes: int,
    num_steps: int,
    num_tokens: int,
    episode_scale: float,
    episode_tokens_N: Tensor | None = None,
) -> Tensor:
    """The weight of each token in its minibatch's loss; the loss is the weighted sum, whatever the split into micro-batches.

    token: mean over the minibatch's tokens (DAPO, VAPO). step: mean over steps of the mean over a step's tokens. episode: sum over an
    episode's tokens, mean over episodes, divided by `episode_scale`: each decision weighs the same, and the scale sets the loss beside the
    auxiliary one (Dr. GRPO, arXiv 2503.20783, with the scale as its constant length). episode_mean: mean over an episode's tokens, mean
    over episodes (GRPO, arXiv 2402.03300, equation 3); it alone needs `episode_tokens_N`, the response tokens of each token's episode.
    `step_N` numbers the steps of the micro-batch from 0; all tokens of a step are in one micro-batch. Raises ValueError for episode_mean
    without `episode_tokens_N`.
    """
    if aggregation == "token":
        return torch.full(step_N.shape, 1.0 / num_tokens, device=step_N.device)
    if aggregation == "episode":
        return torch.full(step_N.shape, 1.0 / (num_episodes * episode_scale), device=step_N.device)
    if aggregation == "episode_mean":
        if episode_tokens_N is None:
            raise ValueError("aggregation episode_mean needs the number of tokens of each token's episode")
        return 1.0 / (episode_tokens_N * num_episodes)
    return 1.0 / (torch.bincount(step_N)[step_N] * num_steps)


def kl_k3(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """Per-token estimate of KL(old || new) from samples of old: (r - 1) - log r, never negative, unbiased (Schulman, "Approximating KL
    divergence", 2020, estimator k3; GRPO, arXiv 2402.03300, equation 4)."""
    log_ratio_N = log_ratio(logprobs_N, old_logprobs_N)
    return torch.expm1(log_ratio_N) - log_ratio_N


def entropy(log_distribution_NV: Tensor) -> Tensor:
    """Entropy of each token's distribution, in nats, from its log-probabilities over the vocabulary. A token of probability 0 adds 0."""
    probabilities_NV = log_distribution_NV.exp()
    return -torch.where(probabilities_NV > 0, probabilities_NV * log_distribution_NV, 0.0).sum(-1)


def policy_loss(
    log_distribution_NV: Tensor,
    tokens_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    weights_N: Tensor,
    settings: LossSettings,
    *,
    correction_N: Tensor | None = None,
    reference_logprobs_N: Tensor | None = None,
    positive_weights_N: Tensor | None = None,
) -> PolicyLoss:
    """The weighted loss of one micro-batch, and what the trainer watches.

    Per token: the clipped objective (or -A log p, objective likelihood) times `correction_N`, plus the penalty for leaving a reference
    policy (k3), minus the entropy bonus; all under `weights_N`. A token whose correction is 0 is out of the policy loss: nothing of it,
    not even a number that is none, reaches loss or gradient through the objective. `positive_weights_N` weigh the log-likelihood of
    successful episodes' tokens (VAPO, arXiv 2504.05118, "positive example LM loss": L + mu NLL), of those tokens alone that are in the
    policy loss. The approximate KL is against `old_logprobs_N`.
    """
    logprobs_N = log_distribution_NV.gather(1, tokens_N[:, None])[:, 0]
    kept_N = torch.ones_like(tokens_N, dtype=torch.bool) if correction_N is None else correction_N > 0
    old_N = torch.where(kept_N, old_logprobs_N, logprobs_N.detach())
    given_N = torch.where(kept_N, advantages_N, 0.0)
    if settings.objective == "likelihood":
        losses_N = -given_N * logprobs_N
    else:
        losses_N = clipped_objective(
            logprobs_N, old_N, given_N, clip_low=settings.clip_low, clip_high=settings.clip_high, dual_clip=settings.dual_clip
        )
    if correction_N is not None:
        losses_N = losses_N * correction_N
    if settings.kl_coefficient and reference_logprobs_N is not None:
        # Sampled from the policy (nearly), so k3 of reference against policy estimates KL(policy || reference).
        losses_N = losses_N + settings.kl_coefficient * kl_k3(reference_logprobs_N, logprobs_N)
    if settings.entropy_coefficient:
        losses_N = losses_N - settings.entropy_coefficient * entropy(log_distribution_NV)
    loss = (weights_N * losses_N).sum()
    if positive_weights_N is not None:
        loss = loss - (positive_weights_N * torch.where(kept_N, logprobs_N, 0.0)).sum()
    with torch.no_grad():
        ratios_N = torch.exp(log_ratio(logprobs_N, old_N))
        clipped_low_N = (ratios_N < 1.0 - settings.clip_low) & (given_N < 0)
        clipped_high_N = (ratios_N > 1.0 + settings.clip_high) & (given_N > 0)
        kl_sum = float(kl_k3(logprobs_N, old_N).sum())
        entropy_sum = float(entropy(log_distribution_NV).sum())
    return PolicyLoss(
        loss=loss,
        kl_sum=kl_sum,
        num_clipped_low=int(clipped_low_N.sum()),
        num_clipped_high=int(clipped_high_N.sum()),
        entropy_sum=entropy_sum,
    )


def value_loss(values_N: Tensor, targets_N: Tensor, *, old_values_N: Tensor | None = None, clip: float | None = None) -> Tensor:
    """Mean squared error of value estimates against their targets. With `clip`, the greater of that and the error of the estimate held
    within `clip` of `old_values_N` (the value clipping of the PPO2 baseline; VAPO and most language-model recipes do without)."""
    errors_N = (values_N - targets_N).square()
    if clip is None or old_values_N is None:
        return errors_N.mean()
    held_N = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
    return torch.maximum(errors_N, (held_N - targets_N).square()).mean()
