"""The largest magnitudes of a task vector, found by counting: against a sort, in how many passes, and with how little memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.merging.dtype_codec import Scratch
from models.merging.selection import MAX_HELD, Magnitudes, TopK, magnitudes

KINDS = {31: np.uint32, 63: np.uint64}


def find(top: TopK, values: Magnitudes, num_chunks: int = 7) -> int:
    """Passes over the values until the threshold is found."""
    passes, scratch = 0, Scratch()
    while not top.is_found:
        assert passes < 9
        for chunk in np.array_split(values, num_chunks):
            top.count(chunk.copy(), scratch)
        top.end_pass()
        passes += 1
    return passes


def is_kept(top: TopK, values: Magnitudes) -> list[bool]:
    """As TIES trims by it."""
    equal = values == top.threshold
    return ((values > top.threshold) | equal & (np.cumsum(equal) <= top.num_equal)).tolist()


def is_among_the_first(values: Magnitudes, num_kept: int) -> list[bool]:
    order = sorted(range(len(values)), key=lambda place: (-int(values[place]), place))[:num_kept]
    return np.isin(np.arange(len(values)), order).tolist()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_magnitudes_are_all_bits_but_the_sign_in_the_memory_that_is_given(kind: type[np.floating]) -> None:
    drawn = np.array([-1.1, 0.3, -0.0, np.nextafter(kind(1), kind(2)), -np.inf], dtype=kind)
    expected = np.abs(drawn).view(f"<u{drawn.itemsize}").tolist()
    other = np.empty_like(drawn)
    found = magnitudes(drawn, other)
    assert found.tolist() == expected and np.shares_memory(found, other) and np.signbit(drawn[0])
    found = magnitudes(drawn)
    assert found.tolist() == expected and np.shares_memory(found, drawn)


@given(
    st.lists(st.floats(-4, 4, width=16), min_size=1, max_size=300),
    st.floats(0.001, 1),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=60, deadline=None)
def test_the_counted_threshold_is_the_sorted_one(values: list[float], share: float, with_sample: bool, kind: type) -> None:
    sizes = magnitudes(np.array(values, dtype=kind))
    num_kept = max(1, int(share * len(sizes)))
    top = TopK(num_kept, 63 if kind is np.float64 else 31, sizes[::7] if with_sample else None, len(sizes))
    find(top, sizes, 3)
    ordered = np.sort(sizes)[::-1]
    assert top.threshold == ordered[num_kept - 1]
    assert top.num_equal == num_kept - np.count_nonzero(ordered > top.threshold)


WHOLE_RANGE = {
    31: [0, 1, 2, 700, 700, 700, 32766, 32767, 32767, 32767, 32767, 90_000, 2**31 - 1, 2**31 - 1],
    63: [0, 5, 2**62, 2**62 + 1, *[2**62 + 900] * 3, 2**62 + 32766, *[2**62 + 32767] * 3, 2**62 + 2**40, 2**63 - 1, 2**63 - 1],
}
"""Some of which share their upper bits, and the first and the last of a bin."""


@pytest.mark.parametrize("num_bits", [63, 31])
@pytest.mark.parametrize("num_kept", range(1, 57))
def test_in_bins_every_rank_is_found_exactly_and_in_no_more_passes_than_there_are_halves(
    monkeypatch: pytest.MonkeyPatch, num_bits: int, num_kept: int
) -> None:
    """As if no more than two values could be held at once."""
    monkeypatch.setattr("models.merging.selection.MAX_HELD", 2)
    values = np.random.default_rng(0).permuted(np.array(WHOLE_RANGE[num_bits] * 4, dtype=KINDS[num_bits]))
    top = TopK(num_kept, num_bits)
    passes = find(top, values, 8)
    assert is_kept(top, values) == is_among_the_first(values, num_kept)
    assert passes <= (num_bits + 1) // 16


def test_more_than_may_be_held_is_counted_in_bins_though_it_comes_little_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.merging.selection.MAX_HELD", 100)
    for num_copies, passes in ((50, 1), (51, 2)):
        values = np.array([3, 4] * num_copies, dtype=np.uint32)
        for num_chunks in (1, 20):
            top = TopK(num_copies + 1, 31)
            assert find(top, values, num_chunks) == passes and (top.threshold, top.num_equal) == (3, 1)


@pytest.mark.parametrize("num_bits", [31, 63])
def test_the_threshold_is_found_in_bins_when_too_much_lies_inside(monkeypatch: pytest.MonkeyPatch, num_bits: int) -> None:
    monkeypatch.setattr("models.merging.selection.MAX_HELD", 100)
    drawn = np.random.default_rng(0).normal(size=5000).round(3).astype(np.float64 if num_bits == 63 else np.float32)
    values, top = magnitudes(drawn), TopK(1234, num_bits)
    assert find(top, values) <= (num_bits + 1) // 16
    assert is_kept(top, values) == is_among_the_first(values, 1234)


def test_zeros_may_be_among_the_largest() -> None:
    values = np.array([0, 7, 0, 0, 9, 0], dtype=np.uint32)
    assert len(values) < MAX_HELD
    top = TopK(4, 31)
    assert find(top, values) == 1 and (top.threshold, top.num_equal) == (0, 2)


def test_a_guess_is_four_standard_deviations_of_the_samples_share_wide_and_a_thousandth() -> None:
    """0.8 ± (4 √(0.2 · 0.8 / 1001) + 0.001) of 0 … 1000."""
    top = TopK(2_000, 31, np.arange(1001, dtype=np.uint32)[::-1], 10_000)
    assert (top._low, top._high) == (748, 853)
    everything = TopK(9_999, 31, np.arange(1001, dtype=np.uint32), 10_000)
    assert (everything._low, everything._high) == (0, 4), "no further than the sample goes"


@pytest.mark.parametrize("num_bits", [31, 63])
def test_with_a_good_guess_one_pass_is_enough_and_little_is_held(num_bits: int) -> None:
    drawn = np.random.default_rng(1).normal(size=20_000).astype(np.float64 if num_bits == 63 else np.float32)
    values = magnitudes(drawn)
    top = TopK(8_000, num_bits, values[::10], len(values))
    assert find(top, values) == 1
    assert is_kept(top, values) == is_among_the_first(values, 8_000)


@pytest.mark.parametrize("max_held", [2, 1000])
@pytest.mark.parametrize("sample", [[40, 41, 42], [0, 1, 2], [2**31 - 1]])
def test_a_wrong_guess_costs_passes_and_changes_nothing(monkeypatch: pytest.MonkeyPatch, max_held: int, sample: Sequence[int]) -> None:
    """The threshold lies below the first, above the second; nothing at all lies in the third."""
    monkeypatch.setattr("models.merging.selection.MAX_HELD", max_held)
    values = np.array([20, 20, 0, 30, 0, 41, 42, 1] * 5, dtype=np.uint32)
    for num_kept in (18, 40):
        top = TopK(num_kept, 31, np.array(sample, dtype=np.uint32), len(values))
        passes = find(top, values)
        assert is_kept(top, values) == is_among_the_first(values, num_kept)
        assert passes <= (2 if max_held == 1000 else 4)
