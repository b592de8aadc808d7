"""Small real models for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from models.checkpoints.checkpoint import save
from models.families.shift_qwen3 import ShiftQwen3ForCausalLM, initialise, tiny_config
from models.families.tokenizer import build_tokenizer, equivalent_characters
from tests.models.policy_servers import TOKEN, TOKEN_VARIABLE

torch.set_num_threads(1)


MakeModel = Callable[..., tuple[ShiftQwen3ForCausalLM, PreTrainedTokenizerFast]]


def small_model(seed: int = 0, hidden_size: int = 32, token_shift: int = 3) -> tuple[ShiftQwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Two layers, four heads, random weights that are large enough for clear preferences; and its tokenizer."""
    tokenizer = build_tokenizer(("Ok", "Submit", "Find", "see", "then", "hello"))
    config = tiny_config(
        len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        hidden_size=hidden_size,
        num_hidden_layers=2,
        head_dim=hidden_size // 4,
        intermediate_size=2 * hidden_size,
        num_shifted_tokens=token_shift,
    )
    model = ShiftQwen3ForCausalLM(config)
    initialise(model, seed, equivalents=equivalent_characters(tokenizer))
    return model.eval(), tokenizer


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    return small_model


@pytest.fixture(scope="session")
def seed_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "seed"
    model, tokenizer = small_model()
    save(folder, model, tokenizer, stage="seed_policy", iteration="0000")
    return folder


@pytest.fixture(scope="session")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two checkpoints, `a` and `b`, of different weights; read it, do not write."""
    root = tmp_path_factory.mktemp("handed")
    for name, seed in {"a": 0, "b": 1}.items():
        model, tokenizer = small_model(seed)
        save(root / name, model, tokenizer, stage="seed_policy", iteration="0000")
    return root


@pytest.fixture
def engine_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token of policy servers, where engines look for it."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
