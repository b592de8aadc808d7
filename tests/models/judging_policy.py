"""A small policy of the quickstart's kind that can learn to judge the episodes of tests/agent/judged_episodes.py."""

from __future__ import annotations

from pathlib import Path

from models.checkpoints.checkpoint import save
from models.families.shift_qwen3 import ShiftQwen3ForCausalLM, initialise, tiny_config
from models.families.tokenizer import build_tokenizer, equivalent_characters
from tests.agent.judged_episodes import NAMES


def new_policy(folder: Path) -> Path:
    """A small quickstart policy with random weights, whose tokenizer knows the world's words."""
    tokenizer = build_tokenizer([*NAMES, "Click", "on", "the", "yes", "Verdict"])
    config = tiny_config(
        len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        hidden_size=64,
        num_hidden_layers=2,
        head_dim=16,
        intermediate_size=128,
    )
    model = ShiftQwen3ForCausalLM(config)
    initialise(model, 0, equivalents=equivalent_characters(tokenizer))
    save(folder, model, tokenizer, stage="seed_policy", iteration="0000")
    return folder
