"""GAE and baselines against a slow independent implementation, and against the known traps of multi-turn reinforcement learning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.rl.updates.advantages import (
    baseline_advantages,
    batch_advantages,
    decoupled_gae,
    explained_variance,
    gae,
    group_advantages,
    length_adaptive_lambda,
    normalised,
    rewards_at_last_tokens,
    uniform_tasks,
)
from warehouse.core.errors import TrainingDiverged

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
    assert length_adaptive_lambda(1, alpha=2.0, floor=0.0) == 0.5
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
    advantages, _ = baseline_advantages(rewards, tasks, std_floor=0.1)
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


def test_the_policy_and_the_critic_have_a_lambda_each() -> None:
    """Rewards 1, 2 and values .5, 1, then 3: the deltas are 1 + .5 - .5 = 1 and 2 + 1.5 - 1 = 2.5, gamma lambda .25 and .5."""
    found = decoupled_gae(np.array([1.0, 2.0]), np.array([0.5, 1.0]), gamma=0.5, lambda_policy=0.5, lambda_critic=1.0, bootstrap_value=3.0)
    assert found.advantages_T.tolist() == [1.0 + 0.25 * 2.5, 2.5]
    assert found.targets_T.tolist() == [1.0 + 0.5 * 2.0 + 0.25 * 3.0, 2.0 + 0.5 * 3.0], "lambda 1: the discounted return"
    ended = decoupled_gae(np.array([2.0]), np.array([1.0]), gamma=0.5, lambda_policy=0.5, lambda_critic=1.0)
    assert (ended.advantages_T.tolist(), ended.targets_T.tolist()) == ([1.0], [2.0]), "nothing comes after the end"


@pytest.mark.parametrize(("reward", "value", "bootstrap"), [(np.inf, 0.0, 0.0), (0.0, np.nan, 0.0), (0.0, 0.0, np.nan)])
def test_each_number_that_is_not_finite_is_divergence(reward: float, value: float, bootstrap: float) -> None:
    with pytest.raises(TrainingDiverged):
        decoupled_gae(np.array([reward]), np.array([value]), gamma=0.5, lambda_policy=0.5, lambda_critic=1.0, bootstrap_value=bootstrap)


def test_what_does_not_fit_together_is_refused() -> None:
    for rewards, values in [(np.zeros(2), np.zeros(3)), (np.zeros((2, 2)), np.zeros((2, 2)))]:
        with pytest.raises(ValueError, match="vectors of one length"):
            gae(rewards, values, gamma=0.5, lambda_=0.5)
    for rewards_S, tokens_S in [([1.0], [2, 2]), ([], [])]:
        with pytest.raises(ValueError, match="one token or more"):
            rewards_at_last_tokens(rewards_S, tokens_S)


def test_groups_are_apart_and_spread_is_divided_by_only_where_asked() -> None:
    rewards, groups = np.array([0.0, 0.5, 3.0, 7.0]), ["a", "a", "b", "b"]
    assert group_advantages(rewards, groups, normalise_std=False).tolist() == [-0.25, 0.25, -2.0, 2.0]
    assert group_advantages(np.array([0.0, 1.0, 9.0, 5.0]), ["a", "a", "b", "c"], normalise_std=False).tolist() == [-0.5, 0.5, 0.0, 0.0]
    assert group_advantages(rewards, groups, normalise_std=True) == pytest.approx([-(0.5**0.5), 0.5**0.5] * 2)
    assert uniform_tasks(rewards, groups).dtype == bool


def test_skipped_episodes_do_not_count_in_a_batch() -> None:
    rewards, skipped = [np.array([1.0]), np.array([9.0]), np.array([3.0])], np.array([False, True, False])
    assert [v.tolist() for v in batch_advantages(rewards, gamma=0.5, skipped_E=skipped)] == [[-1.0], [0.0], [1.0]]
    assert [v.tolist() for v in batch_advantages(rewards, gamma=0.5, skipped_E=np.ones(3, dtype=bool))] == [[0.0]] * 3


def test_explained_variance_is_the_share_of_the_variance_that_goes() -> None:
    """Returns 0 and 2 have variance 1. Residuals -.25 and .25: .0625 of it is left. The values' own distance from zero does not matter."""
    returns = np.array([0.0, 2.0])
    assert explained_variance(np.array([0.25, 1.75]), returns) == pytest.approx(1 - 0.0625)
    assert explained_variance(np.array([5.0, 5.0]), returns) == 0.0
    assert explained_variance(np.array([0.0, 8.0]), 2 * returns) == pytest.approx(0.0), "a residual of -4: variance 4 of 4"
    assert explained_variance(np.array([0.0, 1.0]), np.ones(2)) == 0.0
