"""What the scheduler of generation is made of, each by itself: kept conversations, the choice of a token, large products."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from models.engine import linear
from models.engine.conversations import Conversations
from models.engine.kv_cache import Snapshot
from models.engine.linear import SMALLEST_WORK, Weight
from models.engine.rows import Row
from models.engine.sampling import choose, nucleus
from tests.models.generation_helpers import VOCABULARY, requests


def snapshot(num_tokens: int) -> Snapshot:
    return Snapshot([torch.zeros(2, num_tokens, 4)], [torch.zeros(2, num_tokens, 4)])


def test_conversations_are_bounded_least_recently_used_first_out() -> None:
    per_token = snapshot(1).num_bytes
    kept = Conversations(100 * per_token)
    for name in ("a", "b", "c"):
        kept.keep(name, range(40), snapshot(40))
        assert kept.num_bytes <= 100 * per_token
    assert kept.find("a", range(50)) is None
    assert kept.find("b", [*range(30), 7, 8]) is not None
    kept.keep("d", range(50), snapshot(50))
    assert kept.find("c", range(50)) is None, "b was used after it"
    found = kept.find("b", [*range(30), 7, 8])
    assert found is not None
    assert found[1] == 30
    same = kept.find("b", range(40))
    assert same is not None
    assert same[1] == 39, "the last token of a prompt is always read"
    assert kept.find("b", [5, *range(40)]) is None
    kept.keep("b", range(101), snapshot(101))
    assert kept.find("b", range(101)) is None, "one that is too large is not kept, and its old beginning is gone"
    assert (len(kept), kept.num_bytes) == (1, 50 * per_token)
    kept.clear()
    assert (len(kept), kept.num_bytes) == (0, 0)


def test_logits_that_are_not_numbers_are_reported_row_by_row() -> None:
    row, other = (Row.of(request) for request in requests(2, temperature=1.0))
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(0))
    logits[0], logits[2] = torch.nan, -torch.inf
    ids, logprobs, _ = choose(logits, [row, other, row])
    assert [math.isfinite(logprob) for logprob in logprobs] == [False, True, False]
    alone, alone_logprobs, _ = choose(logits[1:2], [other])
    assert (ids[1], logprobs[1]) == (alone[0], alone_logprobs[0])
    ids, logprobs, _ = choose(torch.zeros(1, 4), [row], never=(0, 1, 3))
    assert (ids, logprobs) == ([2], [0.0])


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p() -> None:
    logprobs = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).log().repeat(4, 1)
    kept = nucleus(logprobs, torch.tensor([0.45, 0.65, 0.95, 1.0])).exp()
    expected = torch.tensor([[1.0, 0, 0, 0], [5 / 7, 2 / 7, 0, 0], [0.5, 0.2, 0.2, 0.1], [0.5, 0.2, 0.2, 0.1]])
    torch.testing.assert_close(kept, expected)
    assert torch.equal(nucleus(logprobs, torch.ones(4)), logprobs)


@pytest.mark.parametrize("on_intel", [True, False])
def test_products_give_the_same_numbers_however_a_matrix_is_kept(monkeypatch: pytest.MonkeyPatch, on_intel: bool) -> None:
    monkeypatch.setattr(linear, "is_intel", lambda: on_intel)
    generator = torch.Generator().manual_seed(0)
    matrix, x = torch.randn(80, 64, generator=generator), torch.randn(3, SMALLEST_WORK // 80 // 64, 64, generator=generator)
    bias = torch.randn(80, generator=generator)
    for pack, some in itertools.product((True, False), (x, x[:, :1])):
        torch.testing.assert_close(Weight(matrix, pack=pack)(some), some @ matrix.T, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(Weight(matrix, bias, pack=pack)(some), some @ matrix.T + bias, atol=1e-4, rtol=1e-4)
    halved = matrix.bfloat16()
    assert Weight(halved).matrix is halved, "other types go the ordinary way"
    model = torch.nn.Sequential(torch.nn.Linear(64, 80), torch.nn.Linear(80, 8, bias=False))
    expected, names = model(x), list(model.state_dict())
    for _ in range(2):  # again, as after a change of weights
        linear.pack_linears(model)
        torch.testing.assert_close(model(x), expected, atol=1e-4, rtol=1e-4)
    assert list(model.state_dict()) == names
