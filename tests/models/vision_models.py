"""A small model of every vision-language family that is known, with its codec: what tests hold to the models' own numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from models.families.tiny_vision import PATCH_PX, tiny_vision_policy
from models.families.vision import VisionCodec
from tests.models.chat_models import small_idefics3

WORDS = ("click", "finished", "see")
TEXT_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "initializer_range",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "rope_parameters",
)
TOKEN_FIELDS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


def later_qwen(config_class: Any, model_class: Any, text: dict[str, Any], vision: dict[str, Any]) -> tuple[Any, VisionCodec]:
    """The tiny Qwen2-VL policy's sizes, codec and tokens, in a later generation of its family."""
    first, codec = tiny_vision_policy(WORDS, 0, num_hidden_layers=2)
    described = first.config.to_dict()
    size = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 4,
        "patch_size": PATCH_PX,
        "spatial_merge_size": 1,
        "temporal_patch_size": 1,
        "out_hidden_size": described["text_config"]["hidden_size"],
        "initializer_range": 0.1,
    }
    torch.manual_seed(0)
    config = config_class(
        text_config={name: described["text_config"][name] for name in TEXT_FIELDS} | text,
        vision_config=size | vision,
        tie_word_embeddings=True,
        **{name: described[name] for name in TOKEN_FIELDS},
    )
    return model_class(config).eval(), codec


def qwen2_5() -> tuple[Any, VisionCodec]:
    """Its vision tower looks through windows, but in some layers."""
    vision = {"window_size": 2 * PATCH_PX, "fullatt_block_indexes": [1]}
    return later_qwen(Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, {}, vision)


def qwen3() -> tuple[Any, VisionCodec]:
    """Its vision tower is heard in several layers of the decoder (deepstack)."""
    vision = {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64}
    return later_qwen(Qwen3VLConfig, Qwen3VLForConditionalGeneration, {"head_dim": 24}, vision)


VISION_MODELS: dict[str, Callable[[], tuple[Any, VisionCodec]]] = {
    "qwen2_vl": lambda: tiny_vision_policy(WORDS, 0, num_hidden_layers=2),
    "qwen2_5_vl": qwen2_5,
    "qwen3_vl": qwen3,
    "idefics3": lambda: small_idefics3()[:2],
    "smolvlm": lambda: small_idefics3(SmolVLMConfig, SmolVLMForConditionalGeneration)[:2],
}
"""By the name that config.json has."""
