"""Intervals and tests against values known from the literature and from other implementations."""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warehouse.statistics import (
    TaskCount,
    compare_paired,
    difference,
    macro_average,
    mcnemar_exact,
    paired_difference,
    release_gate,
    wilson,
    z_value,
)

COUNTS = st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_wilson_gives_published_limits(successes: int, episodes: int, low: float, high: float) -> None:
    interval = wilson(successes, episodes)
    assert interval.low == pytest.approx(low, abs=6e-5)
    assert interval.high == pytest.approx(high, abs=6e-5)


@settings(deadline=None, max_examples=50)
@given(COUNTS)
def test_wilson_holds_the_rate_and_mirrors(count: tuple[int, int]) -> None:
    successes, episodes = count
    interval, mirrored = wilson(successes, episodes), wilson(episodes - successes, episodes)
    assert 0 <= interval.low <= successes / episodes <= interval.high <= 1
    assert mirrored.low == pytest.approx(1 - interval.high) and mirrored.high == pytest.approx(1 - interval.low)


def test_impossible_counts_and_confidences_are_refused() -> None:
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)
    with pytest.raises(ValueError, match="strictly between"):
        z_value(1.0)
    assert z_value(0.95) == pytest.approx(1.959964, abs=1e-6)
    assert wilson(0, 0).high == 1.0


def test_macro_average_weighs_tasks_equally_and_stratifies_its_error() -> None:
    easy, hard = TaskCount(task="easy", num_success=90, num_episodes=100), TaskCount(task="hard", num_success=2, num_episodes=10)
    estimate = macro_average([easy, hard])
    assert estimate.mean == pytest.approx(0.55)
    assert estimate.standard_error == pytest.approx(math.sqrt(0.9 * 0.1 / 100 + 0.2 * 0.8 / 10) / 2)
    assert estimate.num_tasks == 2 and estimate.num_episodes == 110
    assert estimate.interval.low < 0.55 < estimate.interval.high


def test_macro_average_of_one_task_is_its_wilson_interval_and_stays_honest_at_the_edge() -> None:
    perfect = macro_average([TaskCount(task="a", num_success=20, num_episodes=20), TaskCount(task="none", num_success=0, num_episodes=0)])
    assert perfect.interval == wilson(20, 20)
    assert perfect.standard_error == 0.0 and perfect.interval.low < 0.9
    assert math.isnan(macro_average([]).mean)


def test_difference_is_newcombes_method_10() -> None:
    # Newcombe 1998 (Interval estimation for the difference), table II: 56/70 against 48/80 -> 0.2 [0.0524, 0.3339]
    first = macro_average([TaskCount(task="t", num_success=48, num_episodes=80)])
    second = macro_average([TaskCount(task="t", num_success=56, num_episodes=70)])
    gain = difference(first, second)
    assert gain.mean == pytest.approx(0.2)
    assert gain.interval.low == pytest.approx(0.0524, abs=6e-5) and gain.interval.high == pytest.approx(0.3339, abs=6e-5)
    assert gain.interval.excludes_zero


def test_mcnemar_exact_against_binomial_values() -> None:
    assert mcnemar_exact(0, 0) == (1.0, 1.0)
    assert mcnemar_exact(1, 9) == (pytest.approx(11 / 1024), pytest.approx(22 / 1024))
    assert mcnemar_exact(5, 5)[1] == 1.0
    assert mcnemar_exact(600, 400)[1] == pytest.approx(2.7e-10, rel=0.1)


def test_paired_comparison_is_deterministic_and_antisymmetric() -> None:
    candidate = {("a", i): i % 4 != 0 for i in range(40)} | {("b", i): True for i in range(10)}
    incumbent = {("a", i): i % 2 == 0 for i in range(40)} | {("b", i): i > 2 for i in range(10)} | {("b", 99): True}
    forward, backward = compare_paired(candidate, incumbent), compare_paired(incumbent, candidate)
    assert forward == compare_paired(candidate, incumbent)
    assert forward.num_pairs == 50 and forward.candidate_only == 23 and forward.incumbent_only == 10
    assert forward.difference.mean == pytest.approx((10 / 40 + 3 / 10) / 2) and backward.difference.mean == -forward.difference.mean
    assert forward.difference.interval.low <= forward.difference.mean <= forward.difference.interval.high
    assert forward.p_worse > 0.9 and backward.p_worse < 0.05


@pytest.mark.parametrize(
    ("both", "first", "second", "neither", "low", "high"),
    [
        (14, 5, 0, 22, 0.011, 0.226),  # data of Altman et al. 2000, Statistics with Confidence, table 6.2
        (1, 1, 7, 12, -0.507, -0.026),  # data of Fagerland, Lydersen & Laake 2014, airway hyper-responsiveness
    ],
)
def test_a_paired_difference_is_newcombes_method_10(both: int, first: int, second: int, neither: int, low: float, high: float) -> None:
    pairs = [(True, True)] * both + [(True, False)] * first + [(False, True)] * second + [(False, False)] * neither
    sides = ({("t", place): pair[side] for place, pair in enumerate(pairs)} for side in (0, 1))
    interval = paired_difference(*sides).interval
    assert interval.low == pytest.approx(low, abs=6e-4) and interval.high == pytest.approx(high, abs=6e-4)


def test_pairs_that_are_all_alike_prove_little_when_they_are_few() -> None:
    """A bootstrap of them has no width at all."""
    few, many = ({(task, i): True for task in "ab" for i in range(num)} for num in (2, 50))
    for won, margin in ((few, 0.45), (many, 0.04)):
        lost = dict.fromkeys(won, False)
        same, gain = compare_paired(won, won).difference, compare_paired(won, lost).difference
        assert same.mean == 0 and same.interval.low < -margin and same.interval.high > margin
        assert gain.mean == 1 and gain.interval.high == 1 and 0 < gain.interval.low < 1 - margin


def test_gate_releases_what_does_not_lose() -> None:
    won = {("t", i): True for i in range(30)}
    lost = {("t", i): i >= 10 for i in range(30)}
    slightly = {("t", i): i > 0 for i in range(50)}
    gate = partial(release_gate, significance=0.05, tolerance=0.03)
    assert gate(compare_paired(won, lost)).released
    assert gate(compare_paired(won, won)).released
    refused = gate(compare_paired(lost, won))
    assert not refused.released and "below 0.05" in refused.reason and "10 lost" in refused.reason
    assert gate(compare_paired(slightly, {("t", i): True for i in range(50)})).released, "one instance of fifty proves nothing"
    few = gate(compare_paired({("t", 0): False, ("t", 1): True}, {("t", 0): True, ("t", 1): True}))
    assert not few.released and "worse by more than" in few.reason
    with pytest.raises(ValueError, match="no common instance"):
        compare_paired({("t", 1): True}, {("t", 2): True})
