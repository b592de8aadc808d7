"""The clipped objective, token weights and KL estimate, each against its definition written out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from models.ppo.losses import LossSettings, clipped_objective, entropy, kl_k3, policy_loss, token_weights, value_loss


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "has_gradient"),
    [
        (1.0, 2.0, -2.0, True),
        (1.2, 1.0, -1.2, True),
        (1.5, 1.0, -1.28, False),
        (0.5, 1.0, -0.5, True),
        (0.5, -1.0, 0.8, False),
        (1.5, -1.0, 1.5, True),
    ],
)
def test_clipping_stops_only_what_would_go_further(ratio: float, advantage: float, expected: float, has_gradient: bool) -> None:
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)
    loss = clipped_objective(logprobs, torch.zeros(1), torch.tensor([advantage]), clip_low=0.2, clip_high=0.28)
    loss.sum().backward()
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert logprobs.grad is not None
    assert bool(logprobs.grad.abs() > 1e-6) is has_gradient


def weights(steps: list[int], aggregation: str, **totals: int) -> list[float]:
    return token_weights(torch.tensor(steps), aggregation=aggregation, episode_scale=6.0, **totals).tolist()  # type: ignore[arg-type]


def test_token_weights_say_what_is_averaged() -> None:
    steps = [0, 0, 0, 1]
    totals = {"num_episodes": 2, "num_steps": 4, "num_tokens": 10}
    assert weights(steps, "token", **totals) == pytest.approx([0.1] * 4)
    assert weights(steps, "episode", **totals) == pytest.approx([1 / 12] * 4)
    assert weights(steps, "step", **totals) == pytest.approx([1 / 12, 1 / 12, 1 / 12, 1 / 4])


def test_a_token_of_an_episode_mean_weighs_by_its_episode() -> None:
    """Steps 0 and 1 belong to an episode of three tokens, step 2 to one of a single token."""
    found = token_weights(
        torch.tensor([0, 0, 1, 2]), aggregation="episode_mean", num_episodes=2, num_steps=3, num_tokens=4, episode_scale=6.0,
        episode_tokens_N=torch.tensor([3.0, 3.0, 3.0, 1.0]),
    )  # fmt: skip
    assert found.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_k3_is_never_negative_and_estimates_the_divergence() -> None:
    generator = torch.Generator().manual_seed(0)
    old = torch.log_softmax(torch.randn(7, generator=generator), -1)
    new = torch.log_softmax(old + 0.3 * torch.randn(7, generator=generator), -1)
    samples = torch.multinomial(old.exp(), 200_000, replacement=True, generator=generator)
    estimates = kl_k3(new[samples], old[samples])
    exact = (old.exp() * (old - new)).sum()
    assert estimates.min() >= -1e-6  # float32 rounding at ratios next to 1
    assert estimates.mean().item() == pytest.approx(exact.item(), rel=0.05)


def test_entropy_of_a_uniform_distribution() -> None:
    assert entropy(torch.full((2, 8), -math.log(8.0))).tolist() == pytest.approx([math.log(8)] * 2)


def test_policy_loss_measures_what_it_clips_and_pulls_towards_the_reference() -> None:
    distribution = torch.log_softmax(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), -1).requires_grad_()
    tokens, old = torch.tensor([0, 1]), torch.tensor([-1.0, math.log(0.5)])
    plain = policy_loss(distribution, tokens, old, torch.ones(2), torch.full((2,), 0.5), LossSettings())
    assert (plain.num_clipped_low, plain.num_clipped_high) == (0, 1)  # the first ratio is exp(-.127 + 1), far above 1.28, with A > 0
    assert plain.loss.item() == pytest.approx(-0.5 * (1.28 + 1.0), rel=1e-5)
    held = policy_loss(
        distribution,
        tokens,
        old,
        torch.zeros(2),
        torch.ones(2),
        LossSettings(kl_coefficient=1.0),
        reference_logprobs_N=torch.tensor([-3.0, math.log(0.5)]),
    )
    held.loss.backward()
    assert distribution.grad is not None
    assert distribution.grad[0, 0] > 0  # a step down the gradient makes the over-likely token less likely
    assert distribution.grad[1, 1].item() == pytest.approx(0.0, abs=1e-6)


def test_value_loss_is_the_mean_square() -> None:
    assert value_loss(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0])).item() == pytest.approx(2.5)
    clipped = value_loss(torch.tensor([1.0]), torch.tensor([2.0]), old_values_N=torch.tensor([0.0]), clip=0.2)
    assert clipped.item() == pytest.approx((0.2 - 2.0) ** 2)  # the held estimate is worse, so it counts


def one_token(ratio: float, advantage: float, **settings: Any) -> tuple[float, float]:
    """Loss and its slope by the token's log-probability."""
    logits = torch.tensor([[math.log(ratio * 0.1), math.log(1 - ratio * 0.1)]], requires_grad=True)
    more = {name: settings.pop(name) for name in ("correction_N", "positive_weights_N") if name in settings}
    old, weight = torch.tensor([math.log(0.1)]), torch.ones(1)
    result = policy_loss(logits, torch.tensor([0]), old, torch.tensor([advantage]), weight, LossSettings(**settings), **more)
    result.loss.backward()
    assert logits.grad is not None
    return result.loss.item(), logits.grad[0, 0].item()


def test_dual_clip_bounds_what_a_bad_token_can_cost() -> None:
    assert one_token(8.0, -1.0) == pytest.approx((8.0, 8.0), rel=1e-4)
    assert one_token(8.0, -1.0, dual_clip=3.0) == pytest.approx((3.0, 0.0), rel=1e-4)
    assert one_token(1.1, -1.0, dual_clip=3.0) == one_token(1.1, -1.0)


def test_likelihood_knows_no_ratio() -> None:
    assert one_token(8.0, 1.0, objective="likelihood") == pytest.approx((-math.log(0.8), -1.0), rel=1e-4)


def test_a_correction_weighs_a_token_and_zero_leaves_it_out() -> None:
    plain = one_token(1.1, -1.0)
    assert one_token(1.1, -1.0, correction_N=torch.tensor([0.5])) == pytest.approx([x / 2 for x in plain], rel=1e-4)
    assert one_token(1.1, float("nan"), correction_N=torch.zeros(1)) == (0.0, 0.0)


def test_entropy_bonus_and_positive_likelihood_are_added() -> None:
    spread = -(0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    assert one_token(1.0, 0.0, entropy_coefficient=0.5)[0] == pytest.approx(-0.5 * spread, rel=1e-4)
    assert one_token(1.0, 0.0, positive_weights_N=torch.tensor([0.25])) == pytest.approx((-0.25 * math.log(0.1), -0.25), rel=1e-4)
