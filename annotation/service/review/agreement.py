"""How far people agree beyond chance, from ratings alone. Which ratings there are is review.py's and quality.py's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import krippendorff
import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """One person's answer about one thing; a field is the question, e.g. `verdict`."""

    field: str
    unit: str
    rater: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Of the units of a field that several people rated. `alpha` and `kappa` are null where nothing varies, so that chance explains all."""

    field: str
    num_units: int
    num_raters: int
    observed: float
    """Share of pairs of ratings of one unit that are equal."""
    alpha: float | None
    """Krippendorff's, for nominal values, any number of raters and missing ratings."""
    kappa: float | None
    """Cohen's, the mean over pairs of raters, weighted by the units that both rated."""


def agreements(ratings: Iterable[Rating]) -> list[Agreement]:
    """By field, in the order of their names. A person's last rating of a unit counts; fields that nobody rated twice are left out."""
    by_field: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for rating in ratings:
        by_field[rating.field][rating.unit][rating.rater] = rating.value
    found = []
    for field, units in sorted(by_field.items()):
        shared = [said for _, said in sorted(units.items()) if len(said) > 1]
        if shared:
            found.append(_agreement(field, shared))
    return found


def _agreement(field: str, units: list[dict[str, str]]) -> Agreement:
    pairs = [(said[a], said[b]) for said in units for a, b in combinations(sorted(said), 2)]
    return Agreement(
        field=field,
        num_units=len(units),
        num_raters=len({rater for said in units for rater in said}),
        observed=sum(one == other for one, other in pairs) / len(pairs),
        alpha=_alpha(units),
        kappa=_mean_kappa(units),
    )


def _alpha(units: list[dict[str, str]]) -> float | None:
    """Krippendorff, Content Analysis (2004), chapter 11: 1 - observed / expected disagreement."""
    values = sorted({value for said in units for value in said.values()})
    if len(values) < 2:
        return None
    counts = np.array([[sum(said == value for said in unit.values()) for value in values] for unit in units])
    return float(krippendorff.alpha(value_counts=counts, level_of_measurement="nominal"))


def _mean_kappa(units: list[dict[str, str]]) -> float | None:
    pairs: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for said in units:
        for one, other in combinations(sorted(said), 2):
            pairs[one, other].append((said[one], said[other]))
    kappas = [(kappa, len(both)) for both in pairs.values() if (kappa := cohen_kappa(both)) is not None]
    return sum(kappa * num for kappa, num in kappas) / sum(num for _, num in kappas) if kappas else None


def cohen_kappa(pairs: list[tuple[str, str]]) -> float | None:
    """Cohen (1960): (p_o - p_e) / (1 - p_e), where p_e comes of each rater's own shares. None where both only ever said one and the same
    thing, so that p_e is 1."""
    values = {value for pair in pairs for value in pair}
    num = len(pairs)
    expected = sum(sum(a == value for a, _ in pairs) * sum(b == value for _, b in pairs) for value in values) / num**2
    if expected == 1:
        return None
    return (sum(a == b for a, b in pairs) / num - expected) / (1 - expected)
