"""The cheaper training forward gives the model's own hidden states, loss and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from models.training.forward import hidden_where


def batch(pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 90, (4, 23), generator=generator)
    ids[1, 15:] = pad
    wanted = torch.rand(4, 23, generator=generator) < 0.3
    wanted[1, 15:] = False
    wanted[2] = False
    return ids, wanted


@pytest.mark.parametrize("everywhere", [False, True])
def test_hidden_states_and_gradients_are_the_models_own(make_model: Callable[..., Any], everywhere: bool) -> None:
    model, tokenizer = make_model()
    ids, wanted = batch(tokenizer.pad_token_id)
    if everywhere:
        wanted = torch.ones_like(wanted)
    reference = model.model(input_ids=ids, use_cache=False).last_hidden_state[wanted]
    reference.square().sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    made = hidden_where(model, ids, wanted)
    made.square().sum().backward()
    torch.testing.assert_close(made, reference, atol=1e-5, rtol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-3, rtol=1e-4)


def test_any_other_decoder_goes_through_its_own_forward() -> None:
    config = Qwen3Config(
        vocab_size=100,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        pad_token_id=0,
    )
    model = Qwen3ForCausalLM(config).eval()
    ids, wanted = batch(0)
    torch.testing.assert_close(hidden_where(model, ids, wanted), model.model(input_ids=ids, use_cache=False).last_hidden_state[wanted])
