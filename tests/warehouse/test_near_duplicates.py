"""Near-duplicates: every pair of small sets is found as a comparison of all with all finds it; planted copies of large ones too."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from warehouse.quality.near_duplicates import Documents, Pairs, bands_for, jaccard, nearest_original, similar_pairs


def documents_of(sets: list[set[int]]) -> Documents:
    """Of small numbers, spread over 64 bits as a hash would."""
    rng = np.random.default_rng(1)
    hashes = rng.integers(0, 1 << 63, 5000, dtype=np.uint64) * np.uint64(2)
    values = np.array([hashes[token] for tokens in sets for token in tokens], np.uint64)
    return Documents.of(values, np.cumsum([0, *(len(tokens) for tokens in sets)], dtype=np.int64))


def like(first: set[int], second: set[int]) -> float:
    return len(first & second) / len(first | second) if first | second else 1.0


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sets(st.integers(0, 40), max_size=30), min_size=2, max_size=12))
def test_the_jaccard_index_is_exact(sets: list[set[int]]) -> None:
    documents = documents_of(sets)
    first, second = np.triu_indices(len(sets), 1)
    assert jaccard(documents, first, second).tolist() == [like(sets[i], sets[j]) for i, j in zip(first, second, strict=True)]


def test_all_pairs_are_found_and_no_others() -> None:
    rng = random.Random(4)
    bases = [set(rng.sample(range(5000), 80)) for _ in range(60)]
    sets = list(bases)
    for base in bases:
        for _ in range(3):
            kept = set(rng.sample(sorted(base), rng.randint(40, 80)))
            sets.append(kept | set(rng.sample(range(5000), rng.randint(0, 8))))
    pairs = similar_pairs(documents_of(sets), 0.8)
    expected = {(i, j) for j in range(len(sets)) for i in range(j) if like(sets[i], sets[j]) >= 0.8}
    found = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    assert len(expected) > 60 and found <= expected and len(expected - found) <= 1
    assert found == set(zip(*(column.tolist() for column in (similar_pairs(documents_of(sets), 0.8).first, pairs.second)), strict=True))


def test_groups_are_kept_apart_and_the_empty_are_alike() -> None:
    sets: list[set[int]] = [{1, 2, 3}, {1, 2, 3}, {1, 2, 3}, set(), set()]
    groups = np.array([0, 1, 0, 0, 0], np.uint64)
    pairs = similar_pairs(documents_of(sets), 0.9, groups)
    assert list(zip(pairs.first.tolist(), pairs.second.tolist(), pairs.similarity.tolist(), strict=True)) == [(0, 2, 1.0), (3, 4, 1.0)]
    assert len(similar_pairs(documents_of([]), 0.9).first) == 0


def test_a_crowd_of_copies_all_find_the_first() -> None:
    base = set(range(100))
    sets = [base | {1000 + i} for i in range(300)]
    pairs = similar_pairs(documents_of(sets), 0.9)
    best, other = nearest_original(pairs, len(sets), 0.9)
    assert other.tolist() == [-1, *[0] * 299] and best[0] == 0 and (best[1:] > 0.97).all()


def test_only_originals_are_compared_with() -> None:
    pairs = Pairs(np.array([0, 1]), np.array([1, 2]), np.array([0.95, 0.92]))
    best, other = nearest_original(pairs, 3, 0.9)
    assert other.tolist() == [-1, 0, -1] and best.tolist() == [0.0, 0.95, 0.0]


def test_bands_miss_no_more_than_asked() -> None:
    for threshold in (0.3, 0.7, 0.8, 0.9, 0.99):
        bands, rows = bands_for(threshold)
        assert bands * rows <= 256 and (1 - threshold**rows) ** bands <= 1e-3
