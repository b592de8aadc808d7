"""Packed rows give the loss and the gradients of the same samples one by one: nothing passes from one sample to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from models.training.batching import EncodedSample, tensors
from models.training.forward import weighted_loss
from models.training.packing import attend, attend_from, check_can_pack, questions, segments, segments_attention
from warehouse.core.errors import ConfigError

LENGTHS = (9, 2, 23, 14, 5, 23, 3)
SIZES: dict[str, Any] = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


def samples(lengths: tuple[int, ...] = LENGTHS, vocabulary: int = 90) -> list[EncodedSample]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for length in lengths:
        ids = torch.randint(5, vocabulary, (length,), generator=generator)
        weights = torch.rand(length, generator=generator)
        weights[torch.rand(length, generator=generator) < 0.5] = 0.0
        weights[-1] = 1.0
        made.append(EncodedSample(token_ids=ids.tolist(), loss_weights=weights.tolist()))
    return made


def loss_and_gradients(model: PreTrainedModel, batches: list[dict[str, Tensor]]) -> tuple[Tensor, dict[str, Tensor]]:
    """Of the weighted mean over several batches."""
    total = sum(float(batch["loss_weights"].sum()) for batch in batches)
    model.zero_grad()
    loss = torch.zeros(())
    for batch in batches:
        loss = loss + weighted_loss(model, {**batch, "total_weight": torch.tensor(total)})
    loss.backward()
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_the_same(model: PreTrainedModel, chosen: list[EncodedSample]) -> None:
    loss, gradients = loss_and_gradients(model, [tensors([sample], 0) for sample in chosen])
    with segments_attention(model):
        packed_loss, packed = loss_and_gradients(model, [tensors(chosen, 0, "packed")])
    torch.testing.assert_close(packed_loss, loss, atol=1e-6, rtol=1e-6)
    assert packed.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(packed[name], gradient, atol=2e-6, rtol=1e-4, msg=lambda said, name=name: f"{name}: {said}")


def test_shift_qwen3_learns_the_same_from_packed_samples(make_model: Callable[..., Any]) -> None:
    model, _ = make_model()
    assert_the_same(model, samples())


def test_the_token_shift_stops_at_a_boundary(make_model: Callable[..., Any]) -> None:
    """The first tokens of a sample, which the shift would reach back from, do not depend on the sample before."""
    model, _ = make_model()
    one, other, after = samples((12, 12, 8))
    outputs = []
    for before in (one, other):
        batch = tensors([before, after], 0, "packed")
        layout = segments(batch["lengths"].tolist())
        embedded = model.model.embed(batch["input_ids"], layout.position_ids)[0, 11:]
        with segments_attention(model):
            logits = model(batch["input_ids"], position_ids=layout.position_ids, segments=layout, use_cache=False).logits[0, 11:]
        outputs.append((embedded, logits))
    torch.testing.assert_close(outputs[0][0], outputs[1][0], atol=0, rtol=0)
    torch.testing.assert_close(outputs[0][1], outputs[1][1], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_any_decoder_learns_the_same_from_packed_samples(family: str) -> None:
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**SIZES)) if family == "llama" else Qwen2ForCausalLM(Qwen2Config(**SIZES))
    assert_the_same(model, samples())
    assert model.config._attn_implementation == "sdpa", "the model is handed back as it came"


def test_layers_that_look_across_are_refused() -> None:
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8))
    with pytest.raises(ConfigError, match="packing: padded"):
        check_can_pack(model)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 9))
def test_attention_in_segments_is_attention_in_each(lengths: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, sum(lengths), 2, 4, generator=generator).unbind(0)
    expected = torch.cat(
        [
            scaled_dot_product_attention(*(x.transpose(0, 1) for x in parts), is_causal=True).transpose(0, 1)
            for parts in zip(*(x.split(lengths) for x in (query, key, value)), strict=True)
        ]
    )
    layout = segments(lengths)
    torch.testing.assert_close(attend(query, key, value, layout, None), expected)
    is_asked = torch.rand(sum(lengths), generator=generator) < 0.3
    is_asked[-1] = True
    places = is_asked.nonzero().flatten()
    asked = questions(layout, places)
    torch.testing.assert_close(attend_from(query[places], key, value, layout, asked, None), expected[places])
    assert layout.position_ids.flatten().tolist() == [position for length in lengths for position in range(length)]
