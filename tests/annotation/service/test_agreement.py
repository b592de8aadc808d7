"""Agreement beyond chance, against published examples and a straightforward reckoning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotation.service.review.agreement import Rating, agreements, cohen_kappa

CANONICAL = {
    "a": [None, None, None, None, None, 3, 4, 1, 2, 1, 1, 3, 3, None, 3],
    "b": [1, None, 2, 1, 3, 3, 4, 3, None, None, None, None, None, None, None],
    "c": [None, None, 2, 1, 3, 4, 4, None, 2, 1, 1, 3, 3, None, 4],
}
"""The example of the article on Krippendorff's alpha in Wikipedia: .691 for nominal values."""


def rated(by_rater: dict[str, list[int | None]], field: str = "f") -> list[Rating]:
    return [
        Rating(field=field, unit=str(unit), rater=rater, value=str(value))
        for rater, values in by_rater.items()
        for unit, value in enumerate(values)
        if value is not None
    ]


def test_alpha_of_the_published_example() -> None:
    (found,) = agreements(rated(CANONICAL))
    assert found.alpha == pytest.approx(0.691358, abs=1e-6)
    assert (found.num_units, found.num_raters) == (12, 3)


def test_kappa_of_the_published_example() -> None:
    """Two readers and 50 proposals: 20 times both yes, 15 times both no, 5 and 10 times apart (Wikipedia, Cohen's kappa): .4."""
    pairs = [("yes", "yes")] * 20 + [("no", "no")] * 15 + [("yes", "no")] * 5 + [("no", "yes")] * 10
    assert cohen_kappa(pairs) == pytest.approx(0.4)
    (found,) = agreements(
        Rating(field="f", unit=str(number), rater=rater, value=said)
        for number, pair in enumerate(pairs)
        for rater, said in zip("ab", pair, strict=True)
    )
    assert found.kappa == pytest.approx(0.4) and found.observed == pytest.approx(0.7)


def test_where_nothing_varies_chance_explains_all() -> None:
    (found,) = agreements(rated({"a": [1, 1, 1], "b": [1, 1, 1]}))
    assert (found.observed, found.alpha, found.kappa) == (1.0, None, None)


def test_what_one_person_said_alone_is_no_agreement() -> None:
    assert agreements([]) == []
    assert agreements(rated({"a": [1, None], "b": [None, 1]})) == []


def test_the_last_word_of_a_person_counts() -> None:
    said = [*rated({"a": [1, 2], "b": [1, 3]}), Rating(field="f", unit="1", rater="b", value="2")]
    assert agreements(said)[0].observed == 1.0


def test_fields_are_apart() -> None:
    found = agreements([*rated({"a": [1, 2], "b": [1, 2]}, "action"), *rated({"a": [1, 2], "b": [2, 1]}, "verdict")])
    assert [(one.field, one.kappa) for one in found] == [("action", 1.0), ("verdict", -1.0)]


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("xyz")), min_size=1, max_size=30))
def test_kappa_is_symmetric_and_at_most_one(pairs: list[tuple[str, str]]) -> None:
    kappa = cohen_kappa(pairs)
    assert kappa == pytest.approx(cohen_kappa([(b, a) for a, b in pairs]))
    assert kappa is None or kappa <= 1 + 1e-9
