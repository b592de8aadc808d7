"""Small chat models of several families for the tests of this room: tokenizers with the templates of well-known models, and Idefics3."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Idefics3Config, Idefics3ForConditionalGeneration, PreTrainedTokenizerFast
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

from models.families.vision import TileReader, VisionCodec

_QWEN_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Qwen2's tokenizer cuts a text into words; Llama 3's is nearly the same."""
_TEXT = "user system assistant You are helpful. click 12 Open the page It is open finished hello see the screen\n\n 12 345 "

QWEN = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = (
    "{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
"""Llama 3's."""
STRIPPING = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""Phi-3's, whose control tokens take the white space to their right."""
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['role'] == 'assistant' and loop.last %}"
    "<think>\n\n</think>\n\n{% endif %}{{ message['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}"
    "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""Qwen3's, without its tools: an answer that did not think is given an empty thought."""
IDEFICS3 = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}{% if message['content'][0]['type'] == 'image' %}{{ ':' }}"
    "{% else %}{{ ': ' }}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
CONTROL = ("<|im_start|>", "<|im_end|>", "<|box_start|>", "<|box_end|>")


def chat_tokenizer(
    template: str | None = QWEN, control: Sequence[str] = CONTROL, end: str = "<|im_end|>", *, rstrip: bool = False, spaces: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer (with `spaces` a SentencePiece-like one) that knows `control` and, not special, `<think>`."""
    core = Tokenizer(models.BPE(byte_fallback=spaces))
    if spaces:
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        core.decoder = decoders.Metaspace(prepend_scheme="first")
    else:
        split = pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated")
        core.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        core.decoder = decoders.ByteLevel()
    alphabet = [chr(code) for code in range(32, 127)] if spaces else pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator([_TEXT] * 20, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False))
    core.add_special_tokens([AddedToken(token, special=True, normalized=False, rstrip=rstrip) for token in control])
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in ("<think>", "</think>")])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=end, pad_token=end, chat_template=template)


def small_idefics3(
    config_class: Any = Idefics3Config, model_class: Any = Idefics3ForConditionalGeneration
) -> tuple[Any, VisionCodec, Idefics3Processor]:
    """One vision layer and two of text; tiles of 32 pixels, four tokens each. SmolVLM takes the same settings."""
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    control = ("<|im_start|>", "<end_of_utterance>", "<image>", "<fake_token_around_image>", "<global-img>", *rows)
    tokenizer = chat_tokenizer(IDEFICS3, control, "<end_of_utterance>")
    images = Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}, do_image_splitting=True)
    processor = Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=IDEFICS3)
    torch.manual_seed(0)
    config = config_class(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "pad_token_id": 0,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    return model_class(config).eval(), VisionCodec(tokenizer, TileReader(processor)), processor


def png(width_px: int, height_px: int, colour: str | tuple[int, int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width_px, height_px), colour).save(file, "PNG")
    return file.getvalue()
