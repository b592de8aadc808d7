"""GAE and baselines against a slow independent implementation, and against the known traps of multi-turn reinforcement learning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.ppo.advantages import (
    baseline_advantages,
    batch_advantages,
    decoupled_gae,
    gae,
    group_advantages,
    length_adaptive_lambda,
    normalised,
    rewards_at_last_tokens,
    uniform_tasks,
)
from warehouse.errors import TrainingDiverged

numbers = st.floats(-3, 3, allow_nan=False, width=32)
shares = st.floats(0, 1)


def slow_gae(rewards: list[float], values: list[float], gamma: float, lambda_: float, bootstrap: float) -> list[float]:
    """The definition as a double sum: A_t = sum_k (gamma lambda)^k delta_{t+k} (Schulman et al. 2016, equation 16)."""
    following = [*values[1:], bootstrap]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    return [sum((gamma * lambda_) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12), shares, shares, numbers)
@settings(max_examples=200, deadline=None)
def test_gae_is_the_double_sum_of_its_definition(pairs: list[tuple[float, float]], gamma: float, lambda_: float, bootstrap: float) -> None:
    rewards, values = [r for r, _ in pairs], [v for _, v in pairs]
    fast = gae(np.array(rewards), np.array(values), gamma=gamma, lambda_=lambda_, bootstrap_value=bootstrap)
    assert fast == pytest.approx(slow_gae(rewards, values, gamma, lambda_, bootstrap), abs=1e-9)


@pytest.mark.parametrize(("num_tokens", "expected"), [(5, 0.0), (10, 0.0), (20, 0.0), (40, 0.5), (200, 0.9), (20_000, 0.999)])
def test_length_adaptive_lambda_is_clamped_where_the_published_formula_turns_negative(num_tokens: int, expected: float) -> None:
    assert length_adaptive_lambda(num_tokens, alpha=0.05, floor=0.0) == pytest.approx(expected)
    assert length_adaptive_lambda(num_tokens, alpha=0.05, floor=0.95) == pytest.approx(max(expected, 0.95))
    with pytest.raises(ValueError, match="at least 1"):
        length_adaptive_lambda(0, alpha=0.05, floor=0.0)


def test_an_estimate_that_is_no_number_is_divergence() -> None:
    with pytest.raises(TrainingDiverged):
        decoupled_gae(np.zeros(2), np.array([0.1, np.nan]), gamma=0.97, lambda_policy=0.9, lambda_critic=1.0)


def test_rewards_stand_on_the_last_token_of_their_step() -> None:
    assert rewards_at_last_tokens([0.25, 0.0, 1.0], [3, 1, 2]).tolist() == [0, 0, 0.25, 0, 0, 1]
    with pytest.raises(ValueError, match="one token or more"):
        rewards_at_last_tokens([1.0, 1.0], [2, 0])


def test_tasks_rewarded_alike_give_exactly_nothing() -> None:
    rewards = np.array([0.1, 0.1, 0.1, 1.0, 0.0])
    tasks = ["even", "even", "even", "mixed", "mixed"]
    advantages = baseline_advantages(rewards, tasks, std_floor=0.1)
    assert advantages[:3].tolist() == [0.0, 0.0, 0.0]
    assert advantages[3:] == pytest.approx([0.5 / 0.6, -0.5 / 0.6])
    assert uniform_tasks(rewards, tasks).tolist() == [True, True, True, False, False]


def test_group_advantages_against_plain_loops() -> None:
    rewards, groups = [1.0, 0.0, 0.5, 0.0, 2.0], ["a", "b", "a", "b", "a"]
    expected = []
    for reward, group in zip(rewards, groups, strict=True):
        mine = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        mean = sum(mine) / len(mine)
        spread = (sum((r - mean) ** 2 for r in mine) / (len(mine) - 1)) ** 0.5
        expected.append((reward - mean) / spread if spread else 0.0)
    assert group_advantages(np.array(rewards), groups, normalise_std=True) == pytest.approx(expected)
    assert group_advantages(np.array(rewards), groups, normalise_std=False)[1] == 0.0


def test_batch_advantages_against_plain_loops() -> None:
    rewards = [np.array([0.0, 1.0]), np.array([0.5, 0.0, -1.0])]
    returns = [sum(0.9 ** (k - t) * r[k] for k in range(t, len(r))) for r in rewards for t in range(len(r))]
    mean = sum(returns) / len(returns)
    spread = (sum((g - mean) ** 2 for g in returns) / len(returns)) ** 0.5
    assert np.concatenate(batch_advantages(rewards, gamma=0.9)) == pytest.approx([(g - mean) / spread for g in returns])


def test_normalisation_scales_what_counts_and_keeps_signs_unless_asked() -> None:
    values, skipped = [np.array([1.0, 3.0]), np.array([50.0]), np.array([2.0])], np.array([False, True, False])
    assert [v.tolist() for v in normalised(values, "none", skipped_E=skipped)] == [[1.0, 3.0], [0.0], [2.0]]
    spread = np.std([1.0, 3.0, 2.0])
    assert np.concatenate(normalised(values, "std", skipped_E=skipped)) == pytest.approx(np.array([1, 3, 0, 2]) / spread)
    assert np.concatenate(normalised(values, "mean_std", skipped_E=skipped)) == pytest.approx(np.array([-1, 1, 0, 0]) / spread)
    assert [v.tolist() for v in normalised([np.ones(2), np.ones(1)], "mean_std")] == [[0.0, 0.0], [0.0]]
