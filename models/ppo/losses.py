"""Losses of PPO as pure torch functions: clipped objective, token weights, value loss, KL estimate, entropy. No model and no optimizer.

Shape suffixes: N response tokens of a batch, laid end to end; V vocabulary. Logarithms are natural.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token", "episode", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """`loss` is differentiable; the rest are detached measurements, sums over the N tokens, so that micro-batches add up."""

    loss: Tensor
    kl_sum: float
    num_clipped: int
    entropy_sum: float


def clipped_objective(logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) for each token, r = exp(logprob - old logprob).

    Source: PPO (arXiv 1707.06347, equation 7) with the decoupled bounds of DAPO (arXiv 2503.14476, "clip-higher"), as UI-TARS-2 uses it."""
    ratios_N = torch.exp(logprobs_N - old_logprobs_N)
    clipped_N = ratios_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratios_N * advantages_N, clipped_N * advantages_N)


def token_weights(
    step_N: Tensor, *, aggregation: Aggregation, num_episodes: int, num_steps: int, num_tokens: int, episode_scale: float
) -> Tensor:
    """The weight of each token in its minibatch's loss; the loss is the weighted sum, whatever the split into micro-batches.

    token: mean over the minibatch's tokens (DAPO, VAPO). step: mean over steps of the mean over a step's tokens. episode: sum over an
    episode's tokens, mean over episodes, divided by `episode_scale`: each decision weighs the same, and the scale sets the loss beside the
    auxiliary one. `step_N` numbers the steps of the micro-batch from 0; all tokens of a step are in one micro-batch.
    """
    if aggregation == "token":
        return torch.full(step_N.shape, 1.0 / num_tokens, device=step_N.device)
    if aggregation == "episode":
        return torch.full(step_N.shape, 1.0 / (num_episodes * episode_scale), device=step_N.device)
    return 1.0 / (torch.bincount(step_N)[step_N] * num_steps)


def kl_k3(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """Per-token estimate of KL(old || new) from samples of old: (r - 1) - log r, never negative, unbiased (Schulman, "Approximating KL
    divergence", 2020, estimator k3)."""
    log_ratio_N = logprobs_N - old_logprobs_N
    return torch.expm1(log_ratio_N) - log_ratio_N


def entropy(log_distribution_NV: Tensor) -> Tensor:
    """Entropy of each token's distribution, in nats, from its log-probabilities over the vocabulary."""
    return -(log_distribution_NV.exp() * log_distribution_NV).sum(-1)


def policy_loss(
    log_distribution_NV: Tensor,
    tokens_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    weights_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    kl_coefficient: float = 0.0,
    reference_logprobs_N: Tensor | None = None,
) -> PolicyLoss:
    """The weighted clipped loss of one micro-batch, with an optional penalty for leaving a reference policy (k3, same weights), and what
    the trainer watches. The approximate KL is against the policy that sampled."""
    logprobs_N = log_distribution_NV.gather(1, tokens_N[:, None])[:, 0]
    losses_N = clipped_objective(logprobs_N, old_logprobs_N, advantages_N, clip_low=clip_low, clip_high=clip_high)
    if kl_coefficient and reference_logprobs_N is not None:
        # Sampled from the policy (nearly), so k3 of reference against policy estimates KL(policy || reference).
        losses_N = losses_N + kl_coefficient * kl_k3(reference_logprobs_N, logprobs_N)
    loss = (weights_N * losses_N).sum()
    with torch.no_grad():
        ratios_N = torch.exp(logprobs_N - old_logprobs_N)
        is_clipped_N = ((ratios_N < 1.0 - clip_low) & (advantages_N < 0)) | ((ratios_N > 1.0 + clip_high) & (advantages_N > 0))
        kl_sum = float(kl_k3(logprobs_N, old_logprobs_N).sum())
        entropy_sum = float(entropy(log_distribution_NV).sum())
    return PolicyLoss(loss=loss, kl_sum=kl_sum, num_clipped=int(is_clipped_N.sum()), entropy_sum=entropy_sum)


def value_loss(values_N: Tensor, targets_N: Tensor) -> Tensor:
    """Mean squared error of value estimates against their targets."""
    return (values_N - targets_N).square().mean()
