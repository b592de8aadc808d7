"""The smallest vision-language policy that learns here: a Qwen2-VL of half a million parameters with the weights that a seed gives, and its
codec. What it learns is benchmarks/pixels.py's business.

One token per 32 pixels of a task page: pictures are halved, patches are 16 pixels and not merged. Weights start with a standard
deviation of about one over the root of the hidden size; at the 0.02 of large models attention is so even at first that so small a model
takes several times as long to find a place on the screen (benchmarks/pixels.py --initial-std shows it).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from models.families.tokenizer import build_tokenizer
from models.families.vision import PatchReader, VisionCodec

START, END = "<|im_start|>", "<|im_end|>"
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


def vision_tokenizer(words: Iterable[str]) -> PreTrainedTokenizerFast:
    """The quickstart's tokenizer with the control tokens of a Qwen2-VL chat."""
    tokenizer = build_tokenizer(words)
    control = [START, END, VISION_START, IMAGE, VIDEO, VISION_END]
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in control], special_tokens=True)
    tokenizer.eos_token, tokenizer.chat_template = END, CHAT_TEMPLATE
    return tokenizer


def tiny_vision_policy(
    words: Iterable[str], seed: int, *, merge_size: int = 1, **changes: Any
) -> tuple[Qwen2VLForConditionalGeneration, VisionCodec]:
    """The policy before it has learned anything; `changes` override fields of its `text_config`. `words` become single tokens. Of a square
    of `merge_size` patches a side one token is made."""
    tokenizer = vision_tokenizer(words)
    processor = Qwen2VLImageProcessorPil(
        patch_size=PATCH_PX, merge_size=merge_size, temporal_patch_size=1, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS
    )
    torch.manual_seed(seed)
    model = Qwen2VLForConditionalGeneration(tiny_vision_config(tokenizer, merge_size=merge_size, **changes))
    return model.eval(), VisionCodec(tokenizer, PatchReader(processor))


def tiny_vision_config(tokenizer: PreTrainedTokenizerFast, *, merge_size: int = 1, **changes: Any) -> Qwen2VLConfig:
    """The configuration; rotary sections (time, height, width) share the half of a head's size."""
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
    vision = {
        "depth": 1,
        "embed_dim": 64,
        "hidden_size": text["hidden_size"],
        "num_heads": 4,
        "mlp_ratio": 2,
        "patch_size": PATCH_PX,
        "spatial_merge_size": merge_size,
        "temporal_patch_size": 1,
        "initializer_range": text["initializer_range"],
    }
    return Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token_id[IMAGE],
        video_token_id=token_id[VIDEO],
        vision_start_token_id=token_id[VISION_START],
        vision_end_token_id=token_id[VISION_END],
        tie_word_embeddings=True,
    )
