"""Small vision-language policies: a Qwen2-VL by shape with the weights that a seed gives, and its codec. What they learn is
benchmarks/pixels.py's business.

The smallest has half a million parameters and one token per 32 pixels of a task page: pictures are halved, patches are 16 pixels and not
merged. Weights start with a standard deviation of about one over the root of the hidden size; at the 0.02 of large models attention is so
even at first that so small a model takes several times as long to find a place on the screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from models.families.tokenizer import MAX_NUMBER, build_tokenizer
from models.families.vision import PatchReader, VisionCodec

START, END = "<|im_start|>", "<|im_end|>"
BOX_START, BOX_END = "<|box_start|>", "<|box_end|>"
VISION_START, IMAGE, VIDEO, VISION_END = "<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen2-VL's layout, without its standing system message."""
PATCH_PX = 16
MIN_PIXELS, MAX_PIXELS = 4 * PATCH_PX**2, 40 * PATCH_PX**2
SMALLEST = {"depth": 1, "embed_dim": 64, "num_heads": 4, "mlp_ratio": 2, "patch_size": PATCH_PX, "temporal_patch_size": 1}
PAGE_MAX_PIXELS = 160 * 224
"""A task page, its height rounded up to whole tokens of 32 pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSize:
    """Fields of the two parts' configurations."""

    vision: Mapping[str, Any]
    text: Mapping[str, Any]


VISION_SIZES: Mapping[str, VisionSize] = {
    "small-vision": VisionSize(
        vision={"depth": 2, "embed_dim": 128, "num_heads": 4, "mlp_ratio": 2},
        text={
            "hidden_size": 192,
            "intermediate_size": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "initializer_range": 0.07,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [4, 6, 6]},
        },
    ),
    "medium-vision": VisionSize(
        vision={"depth": 4, "embed_dim": 384, "num_heads": 6, "mlp_ratio": 4},
        text={
            "hidden_size": 640,
            "intermediate_size": 1792,
            "num_hidden_layers": 14,
            "num_attention_heads": 10,
            "num_key_value_heads": 10,
            "initializer_range": 0.04,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [8, 12, 12]},
        },
    ),
}
"""Policies that begin with random weights and look at task pages: 2.7 million parameters, for two cores, and 82 million, for a GPU."""


def vision_tokenizer(words: Iterable[str], *, spells_numbers: bool = False) -> PreTrainedTokenizerFast:
    """The quickstart's tokenizer with the control tokens of a Qwen2-VL chat. `spells_numbers`: digit by digit, else those up to 500 are
    tokens."""
    tokenizer = build_tokenizer(words, max_number=9 if spells_numbers else MAX_NUMBER)
    control = [START, END, VISION_START, IMAGE, VIDEO, VISION_END, BOX_START, BOX_END]
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in control], special_tokens=True)
    tokenizer.eos_token, tokenizer.chat_template = END, CHAT_TEMPLATE
    return tokenizer


def tiny_vision_policy(
    words: Iterable[str], seed: int, *, merge_size: int = 1, **changes: Any
) -> tuple[Qwen2VLForConditionalGeneration, VisionCodec]:
    """The policy before it has learned anything; `changes` override fields of its `text_config`. `words` become single tokens. Of a square
    of `merge_size` patches a side one token is made."""
    return _policy(vision_tokenizer(words), seed, {**SMALLEST, "spatial_merge_size": merge_size}, MAX_PIXELS, changes)


def page_vision_policy(
    words: Iterable[str], seed: int, size: str = "small-vision", *, max_pixels: int | None = None
) -> tuple[Qwen2VLForConditionalGeneration, VisionCodec]:
    """A policy that sees task pages pixel by pixel and spells the numbers of a point, so that its first digit is a coarse place that all
    points near it share. A picture of more than `max_pixels` is shrunk to that."""
    return _policy(_page_tokenizer(words), seed, _page_vision(size), max_pixels or PAGE_MAX_PIXELS, VISION_SIZES[size].text)


def page_vision_config(words: Iterable[str], size: str) -> Qwen2VLConfig:
    return vision_config(_page_tokenizer(words), _page_vision(size), **VISION_SIZES[size].text)


def _page_vision(size: str) -> dict[str, Any]:
    return {**VISION_SIZES[size].vision, "patch_size": PATCH_PX, "spatial_merge_size": 2, "temporal_patch_size": 1}


def _page_tokenizer(words: Iterable[str]) -> PreTrainedTokenizerFast:
    return vision_tokenizer([word for word in words if word.isalpha()], spells_numbers=True)


def _policy(
    tokenizer: PreTrainedTokenizerFast, seed: int, vision: Mapping[str, Any], max_pixels: int, text: Mapping[str, Any]
) -> tuple[Qwen2VLForConditionalGeneration, VisionCodec]:
    processor = Qwen2VLImageProcessorPil(
        patch_size=vision["patch_size"],
        merge_size=vision["spatial_merge_size"],
        temporal_patch_size=1,
        min_pixels=MIN_PIXELS,
        max_pixels=max_pixels,
    )
    torch.manual_seed(seed)
    model = Qwen2VLForConditionalGeneration(vision_config(tokenizer, vision, **text))
    return model.eval(), VisionCodec(tokenizer, PatchReader(processor))


def tiny_vision_config(tokenizer: PreTrainedTokenizerFast, *, merge_size: int = 1, **changes: Any) -> Qwen2VLConfig:
    """The smallest policy's configuration."""
    return vision_config(tokenizer, {**SMALLEST, "spatial_merge_size": merge_size}, **changes)


def vision_config(tokenizer: PreTrainedTokenizerFast, vision: Mapping[str, Any], **changes: Any) -> Qwen2VLConfig:
    """`vision` and `changes` are fields of the two parts' configurations. Rotary sections (time, height, width) share the half of a head's
    size."""
    token_id = {token: int(str(tokenizer.convert_tokens_to_ids(token))) for token in (END, VISION_START, IMAGE, VIDEO, VISION_END)}
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 1024,
        "initializer_range": 0.1,
        "bos_token_id": None,
        "eos_token_id": token_id[END],
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [4, 4, 4]},
        **changes,
    }
    return Qwen2VLConfig(
        text_config=text,
        vision_config={**vision, "hidden_size": text["hidden_size"], "initializer_range": text["initializer_range"]},
        image_token_id=token_id[IMAGE],
        video_token_id=token_id[VIDEO],
        vision_start_token_id=token_id[VISION_START],
        vision_end_token_id=token_id[VISION_END],
        tie_word_embeddings=True,
    )
