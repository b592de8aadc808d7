"""A tiny text policy of a stock architecture, with the weights that a seed gives: a Qwen3, which every server opens. The quickstart's own
model, with its token shift, is opened by ours alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from models.families.templates import TemplateCodec
from models.families.tiny_vision import END, vision_tokenizer


def tiny_qwen3_policy(words: Iterable[str], seed: int, **changes: Any) -> tuple[Qwen3ForCausalLM, TemplateCodec]:
    """The policy before it has learned anything; `changes` override fields of its configuration. `words` become single tokens. Heads are of
    32, the smallest size that vLLM computes on a CPU; weights are large enough for clear preferences."""
    tokenizer = vision_tokenizer(words)
    sizes: dict[str, Any] = {
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
    }
    tokens = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.convert_tokens_to_ids(END),
    }
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**(sizes | tokens | changes))).eval(), TemplateCodec(tokenizer)
