"""The plan of batches: within the budget, in proportion to the weights, the same for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.training.batching import EncodedSample, PlannedBatches, plan_batches


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 700), min_size=1, max_size=60), st.integers(0, 9), st.integers(1, 40))
def test_batches_fill_the_budget_and_never_exceed_it(lengths: list[int], seed: int, steps: int) -> None:
    plan = plan_batches(lengths, [1.0] * len(lengths), batch_tokens=512, steps=steps, seed=seed)
    assert len(plan) == steps
    for rows in plan:
        assert rows
        assert len(rows) == 1 or max(lengths[row] for row in rows) * len(rows) <= 512


def test_a_longer_run_begins_like_a_shorter_one_and_the_seed_decides() -> None:
    lengths, weights = [5 + row % 40 for row in range(300)], [1.0] * 300
    short = plan_batches(lengths, weights, batch_tokens=256, steps=50, seed=1)
    assert plan_batches(lengths, weights, batch_tokens=256, steps=80, seed=1)[:50] == short
    assert plan_batches(lengths, weights, batch_tokens=256, steps=50, seed=2) != short


def test_rows_are_drawn_by_weight_and_at_even_intervals() -> None:
    weights = [0.0, 1.0, 1.0, 3.0] * 50
    drawn = [row for rows in plan_batches([10] * 200, weights, batch_tokens=100, steps=1024, seed=0) for row in rows]
    counts = Counter(drawn)
    assert all(counts[row] == 0 for row in range(0, 200, 4))
    for row, weight in enumerate(weights):
        assert abs(counts[row] - len(drawn) * weight / sum(weights)) <= 3
    chunk = Counter(row for rows in plan_batches([10] * 200, [1.0] * 200, batch_tokens=100, steps=103, seed=0) for row in rows)
    assert set(chunk.values()) <= {4, 5, 6}, "five rounds of the data touch every row about five times"


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -1.0], [], [float("nan")]])
def test_unusable_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        plan_batches([3] * len(weights), weights, batch_tokens=64, steps=1, seed=0)


def test_tensors_are_padded_on_the_right_with_no_loss_there() -> None:
    samples = [EncodedSample(token_ids=[4, 5, 6], loss_weights=[0, 0, 1]), EncodedSample(token_ids=[7, 8], loss_weights=[0.5, 0.25])]
    item = PlannedBatches(samples, [[0, 1]], pad_token_id=9)[0]
    assert item["input_ids"].tolist() == [[4, 5], [7, 9]]
    assert item["targets"].tolist() == [[5, 6], [8, 9]]
    torch.testing.assert_close(item["loss_weights"], torch.tensor([[0.0, 1.0], [0.25, 0.0]]))
    assert item["total_weight"] == 1.25
