"""Generation with images, by tiny models of every family that is known: seen once, never mistaken, refused where they do not fit."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from models.engine import backend
from models.engine.hf_backend import HuggingFaceBackend
from models.engine.rows import Request
from tests.models.generation_helpers import EOS, IMAGE, TEXT, reference, run, scheduler_of
from warehouse.core.errors import ModelError

Family = tuple[Any, Callable[[int], tuple[dict[str, torch.Tensor], list[int]]], int]
"""A model, its n-th image as tensors and as tokens, and the dimension in which images are joined."""
PATCHES: dict[str, Any] = {"depth": 2, "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}


def qwen(config_class: Any = Qwen2VLConfig, model_class: Any = Qwen2VLForConditionalGeneration, **vision: Any) -> Family:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    vision = {**PATCHES, **(vision or {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2})}
    config = config_class(
        text_config={**TEXT, "head_dim": 8, "rope_parameters": rope},
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=IMAGE + 1,
        vision_start_token_id=IMAGE + 2,
        vision_end_token_id=IMAGE + 3,
    )

    def image(seed: int) -> tuple[dict[str, torch.Tensor], list[int]]:
        height, width = [(4, 4), (4, 8), (6, 4)][seed % 3]
        pixels = torch.randn(height * width, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(seed))
        tokens = [IMAGE + 2, *[IMAGE] * (height * width // 4), IMAGE + 3]
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, height, width]])}, tokens

    return model_class(config).eval(), image, 0


def qwen2_5() -> Family:
    """Its vision tower looks through windows."""
    return qwen(
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        hidden_size=32,
        intermediate_size=48,
        out_hidden_size=32,
        window_size=16,
        fullatt_block_indexes=[1],
    )


def qwen3() -> Family:
    """Its vision tower is heard in several layers of the decoder (deepstack)."""
    return qwen(
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        hidden_size=32,
        intermediate_size=48,
        out_hidden_size=32,
        num_position_embeddings=64,
        deepstack_visual_indexes=[0, 1],
    )


def idefics(config_class: Any = Idefics3Config, model_class: Any = Idefics3ForConditionalGeneration) -> Family:
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "image_size": 16,
        "patch_size": 4,
    }
    text = {"model_type": "llama", **TEXT}
    config = config_class(text_config=text, vision_config=vision, image_token_id=IMAGE, scale_factor=2)

    def image(seed: int) -> tuple[dict[str, torch.Tensor], list[int]]:
        pixels = torch.randn(1, 1, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        tensors = {"pixel_values": pixels, "pixel_attention_mask": torch.ones(1, 1, 16, 16, dtype=torch.long)}
        return tensors, [108, *[IMAGE] * 4, 109]

    return model_class(config).eval(), image, 1


def smolvlm() -> Family:
    return idefics(SmolVLMConfig, SmolVLMForConditionalGeneration)


@pytest.mark.parametrize("family", [qwen, qwen2_5, qwen3, idefics, smolvlm])
def test_images_are_seen_once_and_never_mistaken(family: Callable[[], Family]) -> None:
    torch.manual_seed(0)
    model, image, joined_in = family()
    scheduler = scheduler_of(HuggingFaceBackend(model, frozenset([EOS])))
    rng, seeds = random.Random(0), count()
    sessions: list[tuple[list[int], list[dict[str, torch.Tensor]]]] = [([], []) for _ in range(3)]
    for turn in range(3):
        asked = []
        for number, (ids, images) in enumerate(sessions):
            ids += [rng.randrange(3, 100) for _ in range(9)]
            if turn != 1 or number:
                tensors, tokens = image(next(seeds))
                images.append(tensors)
                ids += [*tokens, rng.randrange(3, 100)]
            vision = {name: torch.cat([one[name] for one in images], dim=joined_in) for name in images[0]}
            temperature = float(number == 2)
            asked.append(
                Request(prompt=tuple(ids), temperature=temperature, max_new_tokens=5, seed=turn, conversation=str(number), vision=vision)
            )
        for row, (ids, _) in zip(run(scheduler, asked), sessions, strict=True):
            assert row.logprobs == pytest.approx(reference(model, row, scheduler.backend.never_token_ids, **row.request.vision), abs=5e-5)
            assert IMAGE not in row.answer
            ids += row.answer
    reused = scheduler.counts.tokens_reused
    assert reused > 100
    # The same tokens, another first image: nothing after it may be taken from what was kept.
    images = [image(34)[0], *sessions[1][1][1:]]
    other = {name: torch.cat([one[name] for one in images], dim=joined_in) for name in images[0]}
    [row] = run(scheduler, [replace(asked[1], vision=other)])
    assert row.logprobs == pytest.approx(reference(model, row, scheduler.backend.never_token_ids, **other), abs=5e-5)
    assert scheduler.counts.tokens_reused - reused < 12


@pytest.mark.parametrize(("family", "passes"), [(qwen, [4]), (idefics, [1, 1, 1, 1])])
def test_prompts_with_images_are_read_together_where_their_patches_join(
    family: Callable[[], Family], passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, image, _ = family()
    scheduler = scheduler_of(HuggingFaceBackend(model, frozenset([EOS])))
    shapes: list[tuple[int, int]] = []

    def note(module: object, args: object, kwargs: dict[str, Any]) -> None:
        shapes.extend([tuple(kwargs["input_ids"].shape)] if "input_ids" in kwargs else [])

    model.register_forward_pre_hook(note, with_kwargs=True)

    def ask(first: int) -> list[int]:
        shapes.clear()
        asked = []
        for index in range(first, first + 4):
            tensors, tokens = image(index)
            asked.append(Request(prompt=(5, *tokens, 6 + index), temperature=0.0, max_new_tokens=2, seed=0, vision=tensors))
        rows = run(scheduler, asked)
        found = [num_rows for num_rows, num_tokens in shapes if num_tokens > 1]
        for row in rows:
            expected = reference(model, row, scheduler.backend.never_token_ids, **row.request.vision)
            assert row.logprobs == pytest.approx(expected, abs=5e-5)
        return found

    assert ask(0) == passes
    monkeypatch.setattr(backend, "PREFILL_TOKENS", 1)
    assert ask(4) == [1, 1, 1, 1]


def test_images_that_do_not_fit_their_tokens_are_refused() -> None:
    model, image, _ = qwen()
    backend = HuggingFaceBackend(model, frozenset([EOS]))
    tensors, tokens = image(0)
    request = Request(prompt=(5, *tokens), temperature=0.0, max_new_tokens=3, seed=0, vision=tensors)
    with pytest.raises(ModelError, match=r"5 image tokens and its images take 4"):
        backend.open(replace(request, prompt=(5, IMAGE, *tokens)))
    with pytest.raises(ModelError, match="0 image tokens"):
        backend.open(replace(request, prompt=(5, 6)))
    with pytest.raises(ModelError, match="no image_token_id"):
        HuggingFaceBackend(LlamaForCausalLM(LlamaConfig(**TEXT)), frozenset([EOS])).open(request)
