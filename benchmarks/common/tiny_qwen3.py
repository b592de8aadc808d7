"""A tiny text policy of a stock architecture, with the weights that a seed gives: a Qwen3, which every server opens. The quickstart's own
model, with its token shift, is opened by ours alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from models.families.templates import TemplateCodec
from models.families.tiny_vision import END, vision_tokenizer

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(texts: Iterable[str], size: int = 2000, alphabet: list[str] | None = None) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of these texts, with a plain chat template: it decodes to the byte, so a grammar can hold its answers.
    `alphabet`: bytes that it has, as BPE writes them, beside those of the texts; by default all."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if alphabet is None else alphabet
    core.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<|im_start|>", END)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, pad_token=END, chat_template=CHAT)


def tiny_qwen3_policy(words: Iterable[str], seed: int, **changes: Any) -> tuple[Qwen3ForCausalLM, TemplateCodec]:
    """As `tiny_qwen3_of`, with a tokenizer in which `words` are single tokens."""
    return tiny_qwen3_of(vision_tokenizer(words), seed, **changes)


def tiny_qwen3_of(tokenizer: PreTrainedTokenizerFast, seed: int, **changes: Any) -> tuple[Qwen3ForCausalLM, TemplateCodec]:
    """The policy before it has learned anything; `changes` override fields of its configuration. Heads are of 32, the smallest size that
    vLLM computes on a CPU; weights are large enough for clear preferences."""
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
