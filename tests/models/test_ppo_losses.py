"""Token weights, and what a policy loss is put together from, by hand. What peers say of the same is in test_rl_conformance.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from models.rl.config import PpoConfig
from models.rl.updates.losses import entropy, log_ratio, policy_loss, token_weights, value_loss
from models.rl.updates.update import loss_settings


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
        torch.tensor([0, 0, 1, 2]),
        aggregation="episode_mean",
        num_episodes=2,
        num_steps=3,
        num_tokens=4,
        episode_scale=6.0,
        episode_tokens_N=torch.tensor([3.0, 3.0, 3.0, 1.0]),
    )
    assert found.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_entropy_of_a_uniform_distribution() -> None:
    assert entropy(torch.full((2, 8), -math.log(8.0))).tolist() == pytest.approx([math.log(8)] * 2)
    assert entropy(torch.tensor([[0.0, -math.inf]])).tolist() == [0.0], "what is never sampled adds nothing"


def test_log_ratios_are_bounded_on_both_sides() -> None:
    assert log_ratio(torch.tensor([50.0, -50.0, 1.0]), torch.zeros(3)).tolist() == [20.0, -20.0, 1.0]


def test_policy_loss_measures_what_it_clips_and_pulls_towards_the_reference() -> None:
    distribution = torch.log_softmax(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), -1).requires_grad_()
    tokens, old = torch.tensor([0, 1]), torch.tensor([-1.0, math.log(0.5)])
    plain = policy_loss(distribution, tokens, old, torch.ones(2), torch.full((2,), 0.5), loss_settings(PpoConfig()))
    assert (plain.num_clipped_low, plain.num_clipped_high) == (0, 1)  # the first ratio is exp(-.127 + 1), far above 1.28, with A > 0
    assert plain.loss.item() == pytest.approx(-0.5 * (1.28 + 1.0), rel=1e-5)
    held = policy_loss(
        distribution,
        tokens,
        old,
        torch.zeros(2),
        torch.ones(2),
        loss_settings(PpoConfig(kl_coefficient=1.0)),
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


@pytest.mark.parametrize(
    ("value", "target", "old", "clip", "expected"),
    [
        (-1.0, -2.0, 0.0, 0.2, 1.8**2),  # held at -0.2
        (1.1, 0.0, 1.0, 0.2, 1.1**2),  # within the bounds
        (3.0, 0.0, 0.0, None, 9.0),
        (3.0, 0.0, None, 0.2, 9.0),
    ],
)
def test_value_clipping(value: float, target: float, old: float | None, clip: float | None, expected: float) -> None:
    before = None if old is None else torch.tensor([old])
    assert value_loss(torch.tensor([value]), torch.tensor([target]), old_values_N=before, clip=clip).item() == pytest.approx(expected)


def one_token(ratio: float, advantage: float, **settings: Any) -> tuple[float, float]:
    """Loss and its slope by the token's log-probability."""
    logits = torch.tensor([[math.log(ratio * 0.1), math.log(1 - ratio * 0.1)]], requires_grad=True)
    more = {name: settings.pop(name) for name in ("correction_N", "positive_weights_N", "reference_logprobs_N") if name in settings}
    old, weight = torch.tensor([math.log(0.1)]), torch.ones(1)
    made_of = replace(loss_settings(PpoConfig()), **settings)
    result = policy_loss(logits, torch.tensor([0]), old, torch.tensor([advantage]), weight, made_of, **more)
    result.loss.backward()
    assert logits.grad is not None
    return result.loss.item(), logits.grad[0, 0].item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "loss", "slope"),
    [
        (0.5, 1.0, None, -0.5, -0.5),  # the unclipped one is less
        (0.5, -1.0, None, 0.8, 0.0),  # far enough down
        (2.0, 1.0, None, -1.28, 0.0),  # far enough up
        (2.0, -1.0, None, 2.0, 2.0),
        (5.0, -2.0, 3.0, 6.0, 0.0),  # at most three times the advantage
        (2.0, -2.0, 3.0, 4.0, 4.0),
        (5.0, 2.0, 3.0, -2.56, 0.0),  # of negative advantages only
        (5.0, 0.5, 3.0, -0.64, 0.0),
    ],
)
def test_the_clipped_objective_by_hand(ratio: float, advantage: float, dual_clip: float | None, loss: float, slope: float) -> None:
    """-min(r A, clip(r, .8, 1.28) A); the slope by the log-probability is -r A where it is not clipped."""
    assert one_token(ratio, advantage, dual_clip=dual_clip) == pytest.approx((loss, slope), rel=1e-4, abs=1e-6)


def test_what_is_clipped_is_counted_on_the_side_where_it_is_held() -> None:
    ratios, advantages = [0.5, 0.5, 1.1, 1.5, 1.5, 0.5, 0.5, 1.5, 1.0], [-1.0, 0.5, -1.0, -1.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    spread = torch.tensor([[math.log(0.4 * ratio), math.log(1 - 0.4 * ratio)] for ratio in ratios])
    found = policy_loss(
        spread,
        torch.zeros(9, dtype=torch.long),
        torch.full((9,), math.log(0.4)),
        torch.tensor(advantages),
        torch.ones(9),
        loss_settings(PpoConfig()),
    )
    assert (found.num_clipped_low, found.num_clipped_high) == (1, 1)
    assert found.kl_sum == pytest.approx(sum(ratio - 1 - math.log(ratio) for ratio in ratios), rel=1e-4)
    chances = [0.4 * ratio for ratio in ratios]
    assert found.entropy_sum == pytest.approx(-sum(p * math.log(p) + (1 - p) * math.log(1 - p) for p in chances), rel=1e-5)


def test_likelihood_knows_no_ratio() -> None:
    assert one_token(8.0, 1.0, objective="likelihood") == pytest.approx((-math.log(0.8), -1.0), rel=1e-4)


def test_a_correction_weighs_a_token_and_zero_leaves_it_out() -> None:
    plain = one_token(1.1, -1.0)
    assert one_token(1.1, -1.0, correction_N=torch.tensor([0.5])) == pytest.approx([x / 2 for x in plain], rel=1e-4)
    assert one_token(1.1, float("nan"), correction_N=torch.zeros(1)) == (0.0, 0.0)
    assert one_token(1.1, -1.0, correction_N=torch.zeros(1), positive_weights_N=torch.ones(1)) == (0.0, 0.0)


def test_entropy_bonus_and_positive_likelihood_are_added() -> None:
    spread = -(0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    assert one_token(1.0, 0.0, entropy_coefficient=0.5)[0] == pytest.approx(-0.5 * spread, rel=1e-4)
    assert one_token(1.0, 0.0, positive_weights_N=torch.tensor([0.25])) == pytest.approx((-0.25 * math.log(0.1), -0.25), rel=1e-4)


def test_the_penalty_is_the_divergence_from_the_policy_to_the_reference_and_not_the_other_way_round() -> None:
    """The policy gives its token 0.4, the reference 0.1: k3 of reference against policy is 1/4 - 1 + log 4, the other way 4 - 1 - log 4."""
    reference = torch.tensor([math.log(0.1)])
    loss, slope = one_token(4.0, 0.0, kl_coefficient=1.0, reference_logprobs_N=reference)
    assert loss == pytest.approx(0.25 - 1 + math.log(4), rel=1e-4)
    assert one_token(4.0, 1.0, kl_coefficient=1.0) == one_token(4.0, 1.0), "without a reference there is nothing to leave"
    assert slope == pytest.approx(1 - 0.25, rel=1e-4), "d/dlogp of r - 1 - log r is 1 - r, r = reference / policy"
