"""Weightings of parents: what is allowed, which ones a search tries, and which it takes. How well one does is for the caller to measure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from warehouse.core.errors import MergeError

Weights = tuple[float, ...]
SIMPLEX_TOLERANCE = 1e-6


def check_weights(weights: Sequence[float], num_parents: int, *, on_simplex: bool = True) -> Weights:
    """The weights as floats if they are `num_parents` finite numbers, not all 0 and, if asked, on the simplex; else MergeError."""
    values = tuple(float(weight) for weight in weights)
    if len(values) != num_parents or num_parents < 1:
        raise MergeError(f"{len(values)} weights for {num_parents} parents: give one weight per parent, and at least one parent")
    if on_simplex and not (min(values) >= 0 and abs(sum(values) - 1) <= SIMPLEX_TOLERANCE):  # NaN fails every comparison
        raise MergeError(f"weights {list(values)} are not on the simplex: each must be at least 0, and their sum 1 (is {sum(values):.6g})")
    if not all(math.isfinite(value) for value in values) or not any(values):
        raise MergeError(f"weights {list(values)}: each must be a finite number, and at least one not 0")
    return values


def simplex_grid(k: int, steps: int) -> Iterator[Weights]:
    """Every weighting of k parents in units of 1/steps: C(steps + k - 1, k - 1) of them, each summing to 1. Raises
    MergeError where k or steps is below 1."""
    if k < 1 or steps < 1:
        raise MergeError(f"no grid over {k} parents in {steps} steps: both must be at least 1")

    def compositions(parts: int, total: int) -> Iterator[tuple[int, ...]]:
        if parts == 1:
            yield (total,)
            return
        for first in range(total + 1):
            for rest in compositions(parts - 1, total - first):
                yield (first, *rest)

    for counts in compositions(k, steps):
        yield tuple(count / steps for count in counts)


def neighbours(weights: Weights, step: float) -> list[Weights]:
    """The weightings around one, a `step` of share moved from one parent to another; those that stay on the simplex."""
    found = []
    for giver, share in enumerate(weights):
        for taker in range(len(weights)):
            if taker != giver and share >= step - SIMPLEX_TOLERANCE:
                moved = list(weights)
                moved[giver], moved[taker] = max(0.0, share - step), weights[taker] + step
                found.append(tuple(moved))
    return found


def best_weights(scores: Mapping[Weights, float], kept: Mapping[Weights, float] | None = None, *, min_kept: float = 0.0) -> Weights:
    """The weighting with the highest score among those that keep at least `min_kept`; where none does, the one that keeps most. Among
    equals the most even one, which leans least on one specialist."""

    def rank(weights: Weights) -> tuple[float, float, float]:
        return min(kept[weights], min_kept) if kept is not None else 0.0, scores[weights], -max(weights)

    return max(scores, key=rank)
