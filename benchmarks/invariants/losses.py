"""What must hold of any implementation of the losses of multi-turn reinforcement learning.

As in advantages.py: functions of a library and a random generator. torch and numpy only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.invariants.library import Invariant, Library, LossCase


def random_case(rng: np.random.Generator, *, spread: float = 0.3, **settings: Any) -> LossCase:
    """Three episodes of up to seven tokens, the first of them full, some masked."""
    shape = (3, 7)
    logprobs = torch.tensor(-rng.uniform(0.1, 2.0, size=shape))
    old = logprobs - torch.tensor(rng.normal(scale=spread, size=shape))
    mask = torch.tensor(rng.random(shape) < 0.7)
    mask[0], mask[:, 0] = True, True
    return LossCase(logprobs=logprobs, old_logprobs=old, advantages=torch.tensor(rng.normal(size=shape)), mask=mask, **settings)


def gradient(library: Library, case: LossCase, **options: Any) -> tuple[float, torch.Tensor]:
    logprobs = case.logprobs.clone().requires_grad_()
    loss = library.policy_loss(replace(case, logprobs=logprobs), **options)
    loss.backward()
    return float(loss.detach()), logprobs.grad


def close(found: Any, expected: Any, what: str) -> None:
    if not torch.allclose(torch.as_tensor(found).double(), torch.as_tensor(expected).double(), atol=1e-5, rtol=1e-4):
        raise AssertionError(f"{what}: {found} for {expected}")


def naive_loss(case: LossCase, aggregation: str) -> float:
    """The clipped objective token by token, with plain floats (PPO equation 7, DAPO's two bounds)."""
    rows = []
    for row in range(len(case.mask)):
        losses = []
        for t in range(case.mask.shape[1]):
            if case.mask[row, t]:
                ratio = float(torch.exp(case.logprobs[row, t] - case.old_logprobs[row, t]))
                advantage = float(case.advantages[row, t])
                held = min(max(ratio, 1 - case.clip_low), 1 + case.clip_high)
                losses.append(-min(ratio * advantage, held * advantage))
        rows.append(losses)
    if aggregation == "token":
        return float(np.mean([loss for losses in rows for loss in losses]))
    return float(np.mean([np.mean(losses) for losses in rows]))


def loss_is_its_definition(library: Library, rng: np.random.Generator) -> None:
    case = random_case(rng)
    close(gradient(library, case, aggregation="token")[0], naive_loss(case, "token"), "mean over tokens of the clipped objective")


def episode_mean_is_its_definition(library: Library, rng: np.random.Generator) -> None:
    case = random_case(rng)
    close(gradient(library, case, aggregation="episode_mean")[0], naive_loss(case, "episode_mean"), "mean over episodes of token means")


def clipping_stops_only_what_would_go_further(library: Library, rng: np.random.Generator) -> None:
    ratios = [(1.2, 1.0, True), (1.27, 1.0, True), (1.5, 1.0, False), (0.5, 1.0, True), (0.7, -1.0, False), (1.5, -1.0, True)]
    for ratio, advantage, has_gradient in ratios:
        case = LossCase(
            logprobs=torch.tensor([[float(np.log(ratio))]], dtype=torch.float64),
            old_logprobs=torch.zeros(1, 1, dtype=torch.float64),
            advantages=torch.tensor([[advantage]], dtype=torch.float64),
            mask=torch.ones(1, 1, dtype=torch.bool),
        )
        _, slope = gradient(library, case, aggregation="token")
        if (abs(float(slope)) > 1e-6) is not has_gradient:
            raise AssertionError(f"gradient {float(slope):.3f} at ratio {ratio} and advantage {advantage}")


def on_policy_gradient_is_the_policy_gradient(library: Library, rng: np.random.Generator) -> None:
    case = random_case(rng, spread=0.0)
    _, slope = gradient(library, case, aggregation="token")
    close(slope, torch.where(case.mask, -case.advantages / case.mask.sum(), 0.0), "gradient where nothing has moved yet")


def masked_tokens_have_no_gradient(library: Library, rng: np.random.Generator) -> None:
    case = random_case(rng)
    _, slope = gradient(library, case, aggregation="token")
    close(slope[~case.mask], torch.zeros_like(slope[~case.mask]), "gradient of masked tokens")


def nan_at_a_masked_token_reaches_no_loss(library: Library, rng: np.random.Generator) -> None:
    case = random_case(rng)
    broken = replace(case, old_logprobs=torch.where(case.mask, case.old_logprobs, torch.nan))
    plain, wanted = gradient(library, case, aggregation="token")
    loss, slope = gradient(library, broken, aggregation="token")
    close(loss, plain, "loss beside NaN at masked tokens")
    close(slope[case.mask], wanted[case.mask], "gradient beside NaN at masked tokens")


def _padded(case: LossCase) -> LossCase:
    def pad(tensor: Any, value: float) -> Any:
        return torch.nn.functional.pad(tensor, (0, 4), value=value)

    return replace(
        case,
        logprobs=pad(case.logprobs, -3.0),
        old_logprobs=pad(case.old_logprobs, -1.0),
        advantages=pad(case.advantages, 5.0),
        mask=pad(case.mask, 0),
    )


def padding_changes_no_loss(library: Library, rng: np.random.Generator) -> None:
    case = random_case(rng)
    for aggregation in ("token", "episode_mean"):
        close(
            gradient(library, _padded(case), aggregation=aggregation)[0],
            gradient(library, case, aggregation=aggregation)[0],
            f"loss of padded episodes, aggregation {aggregation}",
        )


def _split_changes_nothing(library: Library, rng: np.random.Generator, aggregation: str) -> None:
    case = random_case(rng)
    whole, slope = gradient(library, case, aggregation=aggregation)
    split, split_slope = gradient(library, case, aggregation=aggregation, parts=[[0], [1, 2]])
    close(split, whole, "loss of a minibatch in two micro-batches of unequal size")
    close(split_slope, slope, "gradient accumulated over two micro-batches of unequal size")


def micro_batches_change_no_token_mean(library: Library, rng: np.random.Generator) -> None:
    _split_changes_nothing(library, rng, "token")


def micro_batches_change_no_episode_mean(library: Library, rng: np.random.Generator) -> None:
    _split_changes_nothing(library, rng, "episode_mean")


def no_ratio_overflows(library: Library, rng: np.random.Generator) -> None:
    """float32, as in training: exp(100) is not a float32."""
    for distance in (100.0, -100.0):
        case = random_case(rng, spread=0.0)
        far = replace(
            case, logprobs=case.logprobs.float(), old_logprobs=(case.logprobs - distance).float(), advantages=case.advantages.float()
        )
        loss, slope = gradient(library, far, aggregation="token")
        if not (np.isfinite(loss) and torch.isfinite(slope).all()):
            raise AssertionError(f"loss {loss} at a log-ratio of {distance:g}")


def dual_clip_bounds_bad_tokens(library: Library, rng: np.random.Generator) -> None:
    case = random_case(rng, spread=0.0, dual_clip=3.0)
    far = replace(case, old_logprobs=case.logprobs - 5.0, advantages=-case.advantages.abs())
    loss, _ = gradient(library, far, aggregation="token")
    close(loss, float((3.0 * case.advantages.abs())[case.mask].mean()), "loss bounded at three times the advantage")


def k3_is_never_negative(library: Library, rng: np.random.Generator) -> None:
    logprobs, reference = (torch.tensor(-rng.uniform(0.1, 2.0, size=(2, 9))) for _ in range(2))
    found = library.kl_k3(logprobs, reference)
    ratio = torch.exp(reference - logprobs)
    close(found, ratio - 1 - torch.log(ratio), "k3 estimate")
    close(library.kl_k3(logprobs, logprobs), torch.zeros_like(logprobs), "k3 of a policy and itself")
    if float(found.min()) < 0:
        raise AssertionError(f"a k3 estimate of {float(found.min())}")


def k3_does_not_overflow(library: Library, rng: np.random.Generator) -> None:
    found = library.kl_k3(torch.tensor([[-200.0]]), torch.tensor([[-0.1]]))
    if not torch.isfinite(torch.as_tensor(found)).all():
        raise AssertionError(f"k3 estimate {found} at a log-ratio of 200")


def _policies(rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    proximal = torch.tensor(-rng.uniform(0.1, 2.0, size=(2, 6)))
    behaviour = proximal - torch.tensor(rng.normal(scale=1.2, size=(2, 6)))
    return proximal, behaviour, torch.ones(2, 6, dtype=torch.bool)


def truncated_weights_are_capped(library: Library, rng: np.random.Generator) -> None:
    proximal, behaviour, mask = _policies(rng)
    found = library.correction(proximal, behaviour, mask, kind="tis")
    close(found, torch.exp(proximal - behaviour).clamp(max=2.0), "truncated importance weights")
    close(library.correction(proximal, proximal, mask, kind="tis"), torch.ones(2, 6), "weights of fresh tokens")


def off_policy_weights_carry_no_gradient(library: Library, rng: np.random.Generator) -> None:
    proximal, behaviour, mask = _policies(rng)
    found = library.correction(proximal.requires_grad_(), behaviour, mask, kind="tis")
    if torch.as_tensor(found).requires_grad:
        raise AssertionError("the weight of a token is differentiable: it would change the objective, not only its measure")


def tokens_outside_the_band_are_dropped(library: Library, rng: np.random.Generator) -> None:
    proximal, behaviour, mask = _policies(rng)
    weights = torch.exp(proximal - behaviour)
    found = library.correction(proximal, behaviour, mask, kind="icepop")
    close(found, torch.where((weights < 0.5) | (weights > 5.0), 0.0, weights), "weights inside the band")


def a_drifted_episode_is_dropped_whole(library: Library, rng: np.random.Generator) -> None:
    proximal = torch.full((2, 6), -1.0, dtype=torch.float64)
    behaviour = proximal.clone()
    behaviour[1] -= 0.05
    found = library.correction(proximal, behaviour, torch.ones(2, 6, dtype=torch.bool), kind="sequence_mask")
    close(torch.as_tensor(found) > 0, torch.tensor([[True] * 6, [False] * 6]), "episodes kept by the mean of their weights")


def value_clipping_never_lowers_the_loss(library: Library, rng: np.random.Generator) -> None:
    values, old, targets = (torch.tensor(rng.normal(size=(2, 5))) for _ in range(3))
    mask = torch.ones(2, 5, dtype=torch.bool)
    free = float(library.value_loss(values, old, targets, mask, clip=1e9))
    held = float(library.value_loss(values, old, targets, mask, clip=0.2))
    if held < free - 1e-9:
        raise AssertionError(f"clipped value loss {held:.4f} below the unclipped {free:.4f}")


def masked_values_are_not_fitted(library: Library, rng: np.random.Generator) -> None:
    values, targets = (torch.tensor(rng.normal(size=(2, 5))) for _ in range(2))
    mask = torch.tensor([[True, True, False, True, False]] * 2)
    loud = torch.where(mask, values, 100.0)
    close(
        library.value_loss(loud, loud, targets, mask, clip=1e9),
        library.value_loss(values, values, targets, mask, clip=1e9),
        "value loss beside values of 100 at observations",
    )


def explained_variance_ranks_critics(library: Library, rng: np.random.Generator) -> None:
    returns = np.array([0.0, 1.0, 0.0, 1.0])
    found = [library.explained_variance(values, returns) for values in (returns, np.full(4, 0.7), 1 - returns)]
    if not (abs(found[0] - 1) < 1e-6 and abs(found[1]) < 1e-6 and found[2] < 0):
        raise AssertionError(f"explained variance of a perfect, a constant and an inverted critic: {found}")
    if not np.isfinite(library.explained_variance(returns, np.ones(4))):
        raise AssertionError("explained variance of equal returns is not a number")


LOSS_INVARIANTS = (
    Invariant(check=loss_is_its_definition, operation="policy_loss", source="arXiv 1707.06347, equation 7; DAPO"),
    Invariant(check=episode_mean_is_its_definition, operation="policy_loss", source="GRPO, arXiv 2402.03300, equation 3"),
    Invariant(check=clipping_stops_only_what_would_go_further, operation="policy_loss", source="arXiv 1707.06347; DAPO, clip-higher"),
    Invariant(check=on_policy_gradient_is_the_policy_gradient, operation="policy_loss", source="arXiv 1707.06347, equation 6"),
    Invariant(check=masked_tokens_have_no_gradient, operation="policy_loss", source="verl #2337"),
    Invariant(check=nan_at_a_masked_token_reaches_no_loss, operation="policy_loss", source="TRL: tokens that vLLM could not score are NaN"),
    Invariant(check=padding_changes_no_loss, operation="policy_loss", source="AReaL #1346"),
    Invariant(check=micro_batches_change_no_token_mean, operation="policy_loss", source="transformers #34191, gradient accumulation"),
    Invariant(check=micro_batches_change_no_episode_mean, operation="policy_loss", source="transformers #34191, gradient accumulation"),
    Invariant(check=no_ratio_overflows, operation="policy_loss", source="verl and SkyRL bound the log-ratio at 20"),
    Invariant(check=dual_clip_bounds_bad_tokens, operation="policy_loss", source="dual-clip PPO, arXiv 1912.09729"),
    Invariant(check=k3_is_never_negative, operation="kl_k3", source="Schulman 2020, k3"),
    Invariant(check=k3_does_not_overflow, operation="kl_k3", source="verl bounds the log-ratio at 20"),
    Invariant(check=truncated_weights_are_capped, operation="correction", source="verl, SkyRL: token weights capped at 2"),
    Invariant(check=off_policy_weights_carry_no_gradient, operation="correction", source="verl, rollout correction"),
    Invariant(check=tokens_outside_the_band_are_dropped, operation="correction", source="IcePop, arXiv 2510.18855"),
    Invariant(check=a_drifted_episode_is_dropped_whole, operation="correction", source="SkyRL, geometric sequence mask"),
    Invariant(check=value_clipping_never_lowers_the_loss, operation="value_loss", source="PPO2"),
    Invariant(check=masked_values_are_not_fitted, operation="value_loss", source="ROLL #447"),
    Invariant(check=explained_variance_ranks_critics, operation="explained_variance", source="the gate of value pretraining"),
)
