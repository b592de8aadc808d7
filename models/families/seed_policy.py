"""The quickstart's policy before it has learned anything: tokenizer and model, with the weights that a seed gives."""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast

from models.families.shift_qwen3 import ShiftQwen3Config, ShiftQwen3ForCausalLM, initialise, tiny_config
from models.families.tokenizer import build_tokenizer, equivalent_characters


def seed_policy(
    words: Iterable[str], seed: int, token_shift: int = ShiftQwen3Config.num_shifted_tokens
) -> tuple[ShiftQwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A policy whose tokenizer has a token for each of `words`, each position of which also reads the `token_shift` tokens before it."""
    tokenizer = build_tokenizer(words)
    config = tiny_config(
        len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        num_shifted_tokens=token_shift,
    )
    model = ShiftQwen3ForCausalLM(config)
    initialise(model, seed, equivalents=equivalent_characters(tokenizer))
    return model, tokenizer
