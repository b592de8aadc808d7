"""Parameters counted from a configuration are the model's own: built without memory by transformers, and in our own tiny one for real."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from models.families.seed_policy import seed_policy
from models.families.shapes import KNOWN_CONFIGS, shape_of
from warehouse.core.errors import CheckpointError

TEXT = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def nested(name: str) -> dict[str, Any]:
    """A known configuration as transformers wants it now."""
    flat = dict(KNOWN_CONFIGS[name])
    vision, kind = flat.pop("vision_config"), flat.pop("model_type")
    tied = flat.pop("tie_word_embeddings")
    return {"text_config": {**flat, "tie_word_embeddings": tied}, "vision_config": vision, "tie_word_embeddings": tied, "kind": kind}


def count(model: PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "published"), [("Qwen/Qwen2-VL-2B-Instruct", 2_208_985_600), ("ByteDance-Seed/UI-TARS-1.5-7B", 8_292_166_656)]
)
def test_the_known_models_have_the_published_size(name: str, published: int) -> None:
    assert shape_of(KNOWN_CONFIGS[name]).num_parameters == published
    arguments = nested(name)
    kind = arguments.pop("kind")
    with torch.device("meta"):
        if kind == "qwen2_vl":
            config: Any = Qwen2VLConfig(**arguments)
            model: PreTrainedModel = Qwen2VLForConditionalGeneration(config)
        else:
            config = Qwen2_5_VLConfig(**arguments)
            model = Qwen2_5_VLForConditionalGeneration(config)
    assert count(model) == published
    assert shape_of(config.to_dict()).num_parameters == published, "the new nested form says the same"
    assert shape_of(config.to_dict()).vision.num_parameters == count(model.model.visual)  # type: ignore[union-attr]


@pytest.mark.parametrize("tied", [True, False])
def test_text_models_are_counted_to_the_parameter(tied: bool) -> None:
    with torch.device("meta"):
        qwen = Qwen2ForCausalLM(Qwen2Config(**TEXT, tie_word_embeddings=tied))
        llama = LlamaForCausalLM(LlamaConfig(**TEXT, tie_word_embeddings=tied))
        third = Qwen3ForCausalLM(Qwen3Config(**TEXT, head_dim=16, tie_word_embeddings=tied))
    for model in (qwen, llama, third):
        assert shape_of(model.config.to_dict()).num_parameters == count(model)


@pytest.mark.parametrize("heard", [[], [0, 2]])
def test_a_tower_that_several_layers_hear_is_counted_to_the_parameter(heard: list[int]) -> None:
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 50,
        "num_heads": 4,
        "patch_size": 8,
        "out_hidden_size": 48,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": heard,
    }
    with torch.device("meta"):
        config = Qwen3VLConfig(text_config={**TEXT, "head_dim": 16}, vision_config=vision, tie_word_embeddings=True)
        model = Qwen3VLForConditionalGeneration(config)
    shape = shape_of(config.to_dict())
    assert shape.num_parameters == count(model)
    assert shape.vision is not None and shape.vision.num_parameters == count(model.model.visual)


def test_the_tiny_policy_is_counted_to_the_parameter() -> None:
    model, _ = seed_policy(("click", "button", "ok"), seed=0)
    shape = shape_of(model.config.to_dict())
    assert shape.num_parameters == count(model)
    assert shape.kv_size == 2 * 3 * 96


def test_pictures_are_counted_in_tokens() -> None:
    vision = shape_of(KNOWN_CONFIGS["Qwen/Qwen2-VL-2B-Instruct"]).vision
    assert vision is not None and vision.token_px == 28
    assert vision.image_tokens(1280, 720) == 1176 and vision.image_tokens(1280, 720, 512 * 28 * 28) == 512


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"'mamba'.*qwen2_5_vl"):
        shape_of({"model_type": "mamba"})
    with pytest.raises(CheckpointError, match="hidden_size"):
        shape_of({"model_type": "qwen2"})
