"""Intervals and tests against values known from the literature and from other implementations."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warehouse.evaluation.statistics import (
    Difference,
    Interval,
    PairedComparison,
    TaskCount,
    compare_paired,
    difference,
    e_value,
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
    assert wilson(0, 0) == Interval(low=0.0, high=1.0)


def test_macro_average_weighs_tasks_equally_and_stratifies_its_error() -> None:
    easy, hard = TaskCount(task="easy", num_success=90, num_episodes=100), TaskCount(task="hard", num_success=2, num_episodes=10)
    estimate = macro_average([easy, hard])
    assert estimate.mean == pytest.approx(0.55)
    assert estimate.standard_error == pytest.approx(math.sqrt(0.9 * 0.1 / 100 + 0.2 * 0.8 / 10) / 2)
    assert estimate.num_tasks == 2 and estimate.num_episodes == 110
    # Wilson's limits are 0.8256 to 0.9448 and 0.0567 to 0.5098, so half the root of 0.0744² + 0.1433², and of 0.0448² + 0.3098².
    assert (estimate.interval.low, estimate.interval.high) == pytest.approx((0.4693, 0.7065), abs=1e-4)


def test_macro_average_of_one_task_is_its_wilson_interval_and_stays_honest_at_the_edge() -> None:
    perfect = macro_average([TaskCount(task="a", num_success=20, num_episodes=20), TaskCount(task="none", num_success=0, num_episodes=0)])
    assert perfect.interval == wilson(20, 20)
    assert perfect.standard_error == 0.0 and perfect.interval.low < 0.9
    once = macro_average([TaskCount(task="once", num_success=1, num_episodes=1)])
    assert (once.mean, once.num_tasks, once.num_episodes) == (1.0, 1, 1)
    nothing = macro_average([])
    assert math.isnan(nothing.mean) and math.isnan(nothing.standard_error) and nothing.interval == Interval(low=0.0, high=1.0)
    assert (nothing.num_tasks, nothing.num_episodes) == (0, 0)


@given(st.lists(COUNTS, min_size=1, max_size=8), st.lists(COUNTS, min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_limits_are_rates_and_differences_of_rates(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    one, other = (
        macro_average([TaskCount(task=str(place), num_success=solved, num_episodes=num) for place, (solved, num) in enumerate(counts)])
        for counts in (first, second)
    )
    assert 0 <= one.interval.low <= one.mean <= one.interval.high <= 1
    gain = difference(one, other)
    assert -1 <= gain.interval.low <= gain.mean <= gain.interval.high <= 1


def test_another_confidence_gives_other_limits() -> None:
    """0.9, whose normal quantile is 1.6449. Of n solved of n, Wilson's lower limit is n / (n + z²)."""
    squared, num = 1.644854**2, 10
    assert macro_average([TaskCount(task="t", num_success=num, num_episodes=num)], 0.9).interval.low == pytest.approx(num / (num + squared))
    won = {("t", seed): True for seed in range(num)}
    lost = dict.fromkeys(won, False)
    expected = 1 - math.sqrt(2) * squared / (num + squared)
    for found in (paired_difference(won, lost, 0.9), compare_paired(won, lost, confidence=0.9).difference):
        assert (found.interval.low, found.interval.high) == (pytest.approx(expected), 1.0)


def test_difference_is_newcombes_method_10() -> None:
    # Newcombe 1998 (Interval estimation for the difference), table II: 56/70 against 48/80 -> 0.2 [0.0524, 0.3339]
    first = macro_average([TaskCount(task="t", num_success=48, num_episodes=80)])
    second = macro_average([TaskCount(task="t", num_success=56, num_episodes=70)])
    gain = difference(first, second)
    assert gain.mean == pytest.approx(0.2)
    assert gain.interval.low == pytest.approx(0.0524, abs=6e-5) and gain.interval.high == pytest.approx(0.3339, abs=6e-5)
    assert gain.interval.excludes_zero


def test_an_exact_paired_test_looks_both_ways() -> None:
    """1, 9: 2 · 11/1024; 5, 5 is as even as can be."""
    for won, lost, expected in ((1, 9, 22 / 1024), (9, 1, 22 / 1024), (5, 5, 1.0), (0, 0, 1.0)):
        either = Difference(mean=0.0, interval=Interval(low=0.0, high=0.0))
        found = PairedComparison(difference=either, num_pairs=20, candidate_only=won, incumbent_only=lost)
        assert found.p_two_sided == pytest.approx(expected)


def test_mcnemar_exact_against_binomial_values() -> None:
    assert mcnemar_exact(0, 0) == 1 and mcnemar_exact(0, 1) == 0.5 and mcnemar_exact(5, 5) == 638 / 1024
    assert mcnemar_exact(1, 9) == pytest.approx(11 / 1024) and mcnemar_exact(9, 1) == pytest.approx(1023 / 1024)
    assert mcnemar_exact(400, 600) == pytest.approx(1.36e-10, rel=0.01)


def test_paired_comparison_is_deterministic_and_antisymmetric() -> None:
    candidate = {("a", i): i % 4 != 0 for i in range(40)} | {("b", i): True for i in range(10)}
    incumbent = {("a", i): i % 2 == 0 for i in range(40)} | {("b", i): i > 2 for i in range(10)} | {("b", 99): True}
    forward, backward = compare_paired(candidate, incumbent), compare_paired(incumbent, candidate)
    assert forward == compare_paired(candidate, incumbent)
    assert forward.num_pairs == 50 and forward.candidate_only == 23 and forward.incumbent_only == 10
    assert forward.difference.mean == pytest.approx((10 / 40 + 3 / 10) / 2) and backward.difference.mean == -forward.difference.mean
    assert forward.difference.interval.low <= forward.difference.mean <= forward.difference.interval.high
    assert forward.p_worse == 1 and backward.p_worse == pytest.approx(0.1394, abs=1e-4)


def test_a_bootstrap_takes_its_limits_from_resampled_means_over_tasks() -> None:
    """Of 41 resamples 2.5 % are one: each limit is one of their means over two tasks, a multiple of 1/2000, not a value between two."""
    won = {(task, seed): seed < solved for task, solved in (("a", 500), ("b", 100)) for seed in range(1000)}
    lost = dict.fromkeys(won, False)
    few, many = (compare_paired(won, lost, num_resamples=num).difference.interval for num in (41, 2000))
    for limit in (few.low, few.high):
        assert limit * 2000 == pytest.approx(round(limit * 2000), abs=1e-6)
    error = math.sqrt(0.5 * 0.5 / 1000 + 0.1 * 0.9 / 1000) / 2
    assert (many.low, many.high) == pytest.approx((0.3 - 1.96 * error, 0.3 + 1.96 * error), abs=0.1 * error)
    assert compare_paired(won, lost) == compare_paired(won, lost, confidence=0.95, num_resamples=2000, seed=0)
    assert compare_paired(won, lost, num_resamples=41, seed=1).difference.interval != few


def test_a_bootstrap_draws_every_instance() -> None:
    """Of ten with one that is won, a resample has one in eight times more than two of it: P(X <= 2) = 0.93, P(X <= 3) = 0.987."""
    for place in (0, 9):
        won = {("t", seed): seed == place for seed in range(10)}
        interval = compare_paired(won, dict.fromkeys(won, False)).difference.interval
        assert (interval.low, interval.high) == (0.0, pytest.approx(0.3))


def test_a_comparison_does_not_depend_on_the_order_of_instances_whatever_names_them() -> None:
    won = {(task, name): name in (1, 2, "x", "seven") for task in ("b", "a") for name in (*range(60), "x", "y", "seven")}
    lost = {key: key[1] in (2, 3) for key in won}
    turned = [dict(reversed(outcomes.items())) for outcomes in (won, lost)]
    assert compare_paired(won, lost, num_resamples=41) == compare_paired(*turned, num_resamples=41)


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


def test_paired_differences_of_two_tasks_are_averaged_and_their_margins_add_up_in_squares() -> None:
    """The two published cases above: 0.122 [0.011, 0.226] and -0.286 [-0.507, -0.026]."""
    pairs = {
        "a": [(True, True)] * 14 + [(True, False)] * 5 + [(False, False)] * 22,
        "b": [(True, True)] + [(True, False)] + [(False, True)] * 7 + [(False, False)] * 12,
    }
    sides = [{(task, place): pair[side] for task, of in pairs.items() for place, pair in enumerate(of)} for side in (0, 1)]
    found = paired_difference(*sides)
    assert found.mean == pytest.approx((5 / 41 - 6 / 21) / 2)
    assert (found.interval.low, found.interval.high) == pytest.approx((-0.2056, 0.0580), abs=6e-4)


def test_two_pairs_that_agree_are_no_correlation() -> None:
    """φ is taken to be 0 where its corrected product is negative: each side is √2 times as far as Wilson's limits of 1 of 2, 0.0945
    and 0.9055."""
    agreeing = {("t", 0): True, ("t", 1): False}
    interval = paired_difference(agreeing, agreeing).interval
    assert (interval.low, interval.high) == pytest.approx((-0.5734, 0.5734), abs=1e-4)


def test_pairs_that_never_agree_move_apart_with_both_margins() -> None:
    """φ is -1: each side is the sum of both of Wilson's (5 of 10: 0.2366 to 0.7634). What one side alone has counts nothing."""
    one = {("t", seed): seed < 5 for seed in range(10)}
    other = {key: not won for key, won in one.items()}
    interval = paired_difference(one | {("t", 10): True, ("u", 0): True}, other | {("t", 11): True}).interval
    assert (interval.low, interval.high) == pytest.approx((-0.5268, 0.5268), abs=1e-4)


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
    assert refused.released is False and "below 0.05" in refused.reason and "10 lost" in refused.reason
    assert gate(compare_paired(slightly, {("t", i): True for i in range(50)})).released, "one instance of fifty proves nothing"
    few = gate(compare_paired({("t", 0): False, ("t", 1): True}, {("t", 0): True, ("t", 1): True}))
    assert few.released is False and "worse by more than" in few.reason
    with pytest.raises(ValueError, match="no instance in common"):
        compare_paired({("t", 1): True}, {("t", 2): True})


def test_the_gates_bounds_are_not_crossed_by_what_is_exactly_on_them() -> None:
    """Four of eight lost: worse by a half, and the capital of who bets on that is (7/4)⁵ - 1 over 15/4."""
    then = {("t", seed): True for seed in range(8)}
    worse = compare_paired({key: key[1] >= 4 for key in then}, then)
    assert worse.p_worse == pytest.approx(3.75 / (1.75**5 - 1), rel=1e-5) and worse.difference.mean == -0.5
    assert release_gate(worse, significance=worse.p_worse, tolerance=0.5).released
    assert not release_gate(worse, significance=0.25, tolerance=0.5).released
    assert not release_gate(worse, significance=worse.p_worse, tolerance=0.49).released


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (0, 1), (3, 0), (1, 10), (10, 1), (40, 60), (450, 600)])
def test_the_capital_of_the_discordant_pairs_is_that_of_the_mixture_over_their_share(won: int, lost: int) -> None:
    """The mean of (1-λ)^won (1+λ)^lost over λ in (0, 3/4), in whole numbers: with λ = 1 - 2p it is an incomplete beta function, which is a
    sum of binomial probabilities. Ties change nothing."""
    num = won + lost

    def at_least(chance: Fraction) -> Fraction:
        return sum((math.comb(num + 1, k) * chance**k * (1 - chance) ** (num + 1 - k) for k in range(won + 1, num + 2)), Fraction(0))

    inside = at_least(Fraction(1, 2)) - at_least(Fraction(1, 8))
    exact = Fraction(4, 3) * 2 ** (num + 1) * inside / ((num + 1) * math.comb(num, won))
    assert e_value(lost, won, 0) == pytest.approx(float(exact), rel=1e-4)
    assert e_value(lost, won, 1000) == e_value(lost, won, 0)


@settings(deadline=None, max_examples=60)
@given(st.floats(0, 0.3), st.floats(0, 1), st.integers(0, 30), st.integers(0, 30), st.integers(0, 300))
def test_a_bet_is_fair_at_most_where_the_mean_gain_is_at_most_the_margin_below_zero(
    margin: float, share: float, wins: int, losses: int, ties: int
) -> None:
    """From wherever the game stands the next pair multiplies the capital by 1 on average, when pairs gain -margin: so no number of looks
    helps who bets. With what more pairs lose, it shrinks."""
    discordant = margin + share * (1 - margin)
    chances = (discordant - margin) / 2, (discordant + margin) / 2, 1 - discordant
    now = e_value(wins, losses, ties, margin)
    then = [e_value(wins + 1, losses, ties, margin), e_value(wins, losses + 1, ties, margin), e_value(wins, losses, ties + 1, margin)]
    assert sum(chance * value for chance, value in zip(chances, then, strict=True)) == pytest.approx(now, rel=1e-6)
    assert then[0] > now > then[1]


def test_evidence_beyond_every_float_is_certainty() -> None:
    assert e_value(5000, 0, 0) == math.inf
    won, lost = ({("t", seed): solved for seed in range(5000)} for solved in (True, False))
    assert compare_paired(lost, won, num_resamples=1).p_worse == 0 and compare_paired(won, lost, num_resamples=1).p_worse == 1


def test_who_was_refused_is_released_by_proof_alone() -> None:
    """Even is good enough at a first look. After a refusal, to be no worse than the tolerance must be proved, which takes many pairs."""
    gate = partial(release_gate, significance=0.05, tolerance=0.03)

    def of(won: int, lost: int, ties: int) -> PairedComparison:
        gains = [1] * won + [-1] * lost + [0] * ties
        return compare_paired(
            {("t", seed): gain >= 0 for seed, gain in enumerate(gains)}, {("t", seed): gain <= 0 for seed, gain in enumerate(gains)}
        )

    few, many = of(5, 5, 90), of(50, 50, 2400)
    assert gate(few).released and gate(many).released
    again = gate(few, was_refused=True)
    assert not again.released and "an earlier look refused the candidate" in again.reason and "needed: below 0.05" in again.reason
    assert many.p_within(0.03) < 0.05 and gate(many, was_refused=True).released
    assert not gate(of(0, 10, 90), was_refused=True).released


def test_who_is_no_worse_on_average_is_released_whatever_the_pairs_say() -> None:
    """One task of one instance won, one of ten lost: the mean over tasks is 0, while the pairs alone are significant."""
    candidate = {("a", 0): True} | {("b", seed): False for seed in range(10)}
    even = compare_paired(candidate, {key: not won for key, won in candidate.items()})
    assert even.difference.mean == 0 and even.p_worse < 0.05
    decision = release_gate(even, significance=0.05, tolerance=0.03)
    assert decision.released and decision.reason.startswith("the candidate does not lose: +0.000 [")
