"""Which weightings a merge allows, tries and takes, and the mean that it makes of arrays. Whole folders are merged in test_merge.py."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from models.merging.dtype_codec import Scratch
from models.merging.linear import fused_mean, weight_sum, weighted_mean
from models.merging.weights import SIMPLEX_TOLERANCE, best_weights, check_weights, neighbours, simplex_grid
from warehouse.core.errors import MergeError


def test_weights_on_the_simplex_are_given_back_as_floats() -> None:
    found = check_weights([1, 0], 2)
    assert found == (1.0, 0.0) and [type(value) for value in found] == [float, float]
    assert check_weights([1.0], 1) == (1.0,) and check_weights([0.5, 0.5 + 5e-7], 2) == (0.5, 0.5 + 5e-7)
    for weights in ([0.5, 0.5 + 2e-6], [0.5, 0.5 - 2e-6], [1.5, -0.5], [0.0, 0.0], [float("nan"), 1.0], [float("inf"), 0.0]):
        with pytest.raises(MergeError, match="not on the simplex"):
            check_weights(weights, 2)


def test_off_the_simplex_any_finite_weights_go_but_all_zeros() -> None:
    assert check_weights([-0.5, 3.0, 0.0], 3, on_simplex=False) == (-0.5, 3.0, 0.0)
    for weights in ([0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]):
        with pytest.raises(MergeError, match="a finite number, and at least one not 0"):
            check_weights(weights, 2, on_simplex=False)


@pytest.mark.parametrize(("weights", "num_parents"), [((1.0,), 2), ((0.5, 0.25, 0.25), 2), ((), 0)])
def test_each_parent_has_a_weight(weights: tuple[float, ...], num_parents: int) -> None:
    with pytest.raises(MergeError, match="give one weight per parent"):
        check_weights(weights, num_parents)


@pytest.mark.parametrize(("k", "steps", "count"), [(1, 4, 1), (2, 4, 5), (3, 4, 15), (4, 2, 10)])
def test_the_grid_covers_the_simplex(k: int, steps: int, count: int) -> None:
    grid = list(simplex_grid(k, steps))
    assert len(grid) == len(set(grid)) == count
    assert all(sum(weights) == pytest.approx(1) and min(weights) >= 0 for weights in grid)


def test_a_small_grid_by_hand() -> None:
    assert list(simplex_grid(2, 2)) == [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)] and list(simplex_grid(1, 1)) == [(1.0,)]
    corners, edges = [(0, 0, 1), (0, 1, 0), (1, 0, 0)], [(0, 0.5, 0.5), (0.5, 0, 0.5), (0.5, 0.5, 0)]
    assert sorted(simplex_grid(3, 2)) == sorted([*corners, *edges])
    for k, steps in ((0, 1), (1, 0)):
        with pytest.raises(MergeError, match="both must be at least 1"):
            list(simplex_grid(k, steps))


def test_among_equals_the_most_even_weighting_is_best() -> None:
    assert best_weights(dict.fromkeys(simplex_grid(2, 4), 1.0)) == (0.5, 0.5)
    assert best_weights({weights: weights[1] for weights in simplex_grid(3, 2)}) == (0.0, 1.0, 0.0)
    # No even weighting on the grid: the first of the most even ones.
    assert best_weights(dict.fromkeys(simplex_grid(2, 3), 1.0)) == (1 / 3, 2 / 3)


def test_neighbours_move_a_share_and_stay_on_the_simplex() -> None:
    assert neighbours((0.5, 0.5), 0.25) == [(0.25, 0.75), (0.75, 0.25)]
    assert neighbours((1.0, 0.0, 0.0), 0.5) == [(0.5, 0.5, 0.0), (0.5, 0.0, 0.5)]
    assert neighbours((0.25, 0.75), 0.5) == [(0.75, 0.25)], "who has less than a step gives none"


def test_a_share_that_is_a_step_but_for_rounding_is_given_whole() -> None:
    assert neighbours((0.2499995, 0.7500005), 0.25)[0] == (0.0, 1.0000005)
    least = 0.25 - SIMPLEX_TOLERANCE
    assert len(neighbours((least, 1 - least), 0.25)) == 2 and len(neighbours((math.nextafter(least, 0), 1 - least), 0.25)) == 1
    assert neighbours((0.5, 0.5), 0.5) == [(0.0, 1.0), (1.0, 0.0)]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_mean_is_divided_by_the_sum_of_its_weights(kind: type[np.floating]) -> None:
    def values() -> list[np.ndarray]:
        return [np.array(row, dtype=kind) for row in ([1, 2], [3, 6], [-1, 0])]

    for weights, expected in (((1, 3, 0), [2.5, 5]), ((1, 1, 2), [0.5, 2]), ((0.5, 0.25, 0.25), [1, 2.5]), ((1, 1, 0), [2, 4])):
        for found in (weighted_mean(values(), weights), fused_mean(values(), weights, Scratch())):
            assert found.dtype == kind and found.tolist() == expected
    for found in (weighted_mean(values()[:1], (0.5,)), fused_mean(values()[:1], (0.5,), Scratch())):
        assert found.dtype == kind and found.tolist() == [1, 2], "of one parent that parent"


def test_weights_are_added_up_in_the_precision_of_the_values() -> None:
    single = weight_sum((0.1, 0.2, 0.3), np.float32)
    assert single.dtype == np.float32 and single == np.float32(0.1) + np.float32(0.2) + np.float32(0.3)
    assert weight_sum((0.1, 0.2, 0.3), np.float64) == 0.6000000000000001


def test_a_fused_mean_rounds_once_for_each_parent_and_a_plain_one_twice() -> None:
    """Against exact fractions. The values have 8 bits, as those of BF16, so that no sum of float64 is rounded itself."""
    generator, weights = np.random.default_rng(0), (0.3, 0.45, 0.25)
    columns = generator.integers(-255, 256, (3, 500)).astype(np.float32) / 64
    exact = [Fraction(float(np.float32(weight))) for weight in weights]
    expected = []
    for values in columns.T:
        total = np.float32(float(exact[0] * Fraction(float(values[0]))))
        for value, weight in zip(values[1:], exact[1:], strict=True):
            total = np.float32(float(weight * Fraction(float(value)) + Fraction(float(total))))
        expected.append(float(total))
    assert float(weight_sum(weights, np.float32)) == 1
    assert fused_mean(list(columns.copy()), weights, Scratch()).tolist() == expected
    assert weighted_mean(list(columns.copy()), weights).tolist() != expected
