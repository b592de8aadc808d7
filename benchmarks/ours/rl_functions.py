"""Our own functions under the invariants of reinforcement learning (benchmarks/invariants/library.py).

Each function gets what an invariant hands in, in its own form, and nothing is taken out on the way. GAE, returns and the value loss take an
episode's response tokens end to end, a vector an episode: to them a batch with observations or padding cannot be handed, so what asks for
one is Missing. The policy loss takes every position, the masked ones with correction 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.invariants.library import Library, LossCase, Missing, Spans
from models.rl.config import PpoConfig
from models.rl.updates.advantages import batch_advantages, decoupled_gae, explained_variance, group_advantages, length_adaptive_lambda
from models.rl.updates.losses import Aggregation, LossSettings, kl_k3, policy_loss, token_weights, value_loss
from models.rl.updates.off_policy import sequence_kept, token_correction

Floats = NDArray[np.float64]
NO_MASK = "the functions take response tokens end to end: there is no argument for masked positions"


def lengths(spans: Spans) -> list[int]:
    """Tokens of each episode. Raises Missing unless every row is response tokens from its start on and then nothing but zeros, which are
    only the rest of a matrix whose longest row is another."""
    counts = [int(mask.sum()) for mask in spans.mask_BT]
    for row, count in enumerate(counts):
        if not spans.mask_BT[row, :count].all() or spans.values_BT[row, count:].any() or spans.rewards_BT[row, count:].any():
            raise Missing(NO_MASK)
    return counts


class Ours(Library):
    name = "Flywheel"
    functions = {  # noqa: RUF012
        "gae": "models.rl.updates.advantages.decoupled_gae",
        "decoupled_gae": "models.rl.updates.advantages.decoupled_gae",
        "length_lambda": "models.rl.updates.advantages.length_adaptive_lambda",
        "returns": "models.rl.updates.advantages.batch_advantages",
        "group": "models.rl.updates.advantages.group_advantages",
        "policy_loss": "models.rl.updates.losses.policy_loss (correction_N)",
        "kl_k3": "models.rl.updates.losses.kl_k3",
        "correction": "models.rl.updates.off_policy.token_correction, sequence_kept",
        "value_loss": "models.rl.updates.losses.value_loss",
        "explained_variance": "models.rl.updates.advantages.explained_variance",
    }

    def gae(self, spans: Spans, *, gamma: float, lambda_: float) -> tuple[Floats, Floats]:
        return self.decoupled_gae(spans, gamma=gamma, lambda_policy=lambda_, lambda_critic=lambda_)

    def decoupled_gae(self, spans: Spans, *, gamma: float, lambda_policy: float, lambda_critic: float) -> tuple[Floats, Floats]:
        advantages_BT, targets_BT = np.zeros(spans.mask_BT.shape), np.zeros(spans.mask_BT.shape)
        for row, count in enumerate(lengths(spans)):
            result = decoupled_gae(
                spans.rewards_BT[row, :count],
                spans.values_BT[row, :count],
                gamma=gamma,
                lambda_policy=lambda_policy,
                lambda_critic=lambda_critic,
                bootstrap_value=spans.after(row) or 0.0,
            )
            advantages_BT[row, :count], targets_BT[row, :count] = result.advantages_T, result.targets_T
        return advantages_BT, targets_BT

    def length_lambda(self, num_tokens: int, *, alpha: float) -> float:
        return length_adaptive_lambda(num_tokens, alpha=alpha, floor=0.0)

    def returns(self, spans: Spans, *, gamma: float) -> tuple[Floats, Floats]:
        """Of our own the advantages alone: the returns behind them are not a function's result."""
        rewards = [spans.rewards_BT[row, :count] for row, count in enumerate(lengths(spans))]
        advantages_BT = np.zeros(spans.mask_BT.shape)
        for row, values in enumerate(batch_advantages(rewards, gamma=gamma)):
            advantages_BT[row, : len(values)] = values
        return advantages_BT, np.full(spans.mask_BT.shape, np.nan)

    def group(self, rewards_E: Floats, groups_E: Sequence[str], *, normalise_std: bool) -> Floats:
        return group_advantages(rewards_E, groups_E, normalise_std=normalise_std)

    def policy_loss(self, case: LossCase, *, aggregation: Aggregation, parts: Sequence[Sequence[int]] | None = None) -> Any:  # type: ignore[override]
        num_tokens, num_rows = int(case.mask.sum()), len(case.mask)
        total: Any = 0.0
        for rows in parts or [list(range(num_rows))]:
            chosen = [matrix[list(rows)] for matrix in (case.logprobs, case.old_logprobs, case.advantages, case.mask)]
            logprobs_N, old_N, advantages_N, mask_N = (matrix.flatten() for matrix in chosen)
            step_N = torch.arange(len(rows)).repeat_interleave(case.mask.shape[1])
            weights_N = token_weights(
                step_N,
                aggregation=aggregation,
                num_episodes=num_rows,
                num_steps=num_rows,
                num_tokens=num_tokens,
                episode_scale=1.0,
                episode_tokens_N=chosen[3].sum(1)[step_N].to(logprobs_N.dtype),
            )
            # The vocabulary is the token of the row and one that takes the rest of the probability.
            rest_N = torch.log1p(-logprobs_N.exp().clamp(max=1 - 1e-6))
            total = (
                total
                + policy_loss(
                    torch.stack([logprobs_N, rest_N], dim=1),
                    torch.zeros_like(step_N),
                    old_N,
                    advantages_N,
                    weights_N,
                    LossSettings(
                        clip_low=case.clip_low,
                        clip_high=case.clip_high,
                        dual_clip=case.dual_clip,
                        objective="clip",
                        kl_coefficient=0.0,
                        entropy_coefficient=0.0,
                    ),
                    correction_N=mask_N.to(logprobs_N.dtype),
                ).loss
            )
        return total

    def kl_k3(self, logprobs: Any, reference: Any) -> Any:
        return kl_k3(reference, logprobs)

    def correction(self, proximal: Any, behaviour: Any, mask: Any, *, kind: str) -> Any:
        if not mask.all():
            raise Missing(NO_MASK)
        config = PpoConfig(off_policy=kind)  # type: ignore[arg-type]
        if kind != "sequence_mask":
            return token_correction(proximal.detach(), behaviour, config)
        kept = [sequence_kept(mine.numpy(), theirs.numpy(), config) for mine, theirs in zip(proximal, behaviour, strict=True)]
        return torch.tensor(kept, dtype=torch.float64)[:, None].expand(mask.shape)

    def value_loss(self, values: Any, old_values: Any, targets: Any, mask: Any, *, clip: float) -> Any:
        if not mask.all():
            raise Missing(NO_MASK)
        return value_loss(values.flatten(), targets.flatten(), old_values_N=old_values.flatten(), clip=clip)

    def explained_variance(self, values: Floats, returns: Floats) -> float:
        return explained_variance(values, returns)


LIBRARY = Ours()
