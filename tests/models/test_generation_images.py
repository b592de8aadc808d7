"""Generation with images, by tiny models of two families: seen once, never mistaken, refused where they do not fit."""

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
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from models.generation.hf_backend import HuggingFaceBackend
from models.generation.rows import Request
from tests.models.generation_helpers import EOS, IMAGE, TEXT, reference, run, scheduler_of
from warehouse.errors import ModelError


def qwen() -> tuple[Any, Callable[[int], tuple[dict[str, torch.Tensor], list[int]]], int]:
    vision = {
        "depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4, "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    config = Qwen2VLConfig(
        text_config={**TEXT, "rope_parameters": rope}, vision_config=vision, image_token_id=IMAGE, video_token_id=IMAGE + 1,
        vision_start_token_id=IMAGE + 2, vision_end_token_id=IMAGE + 3,
    )  # fmt: skip

    def image(seed: int) -> tuple[dict[str, torch.Tensor], list[int]]:
        height, width = [(4, 4), (4, 8), (6, 4)][seed % 3]
        pixels = torch.randn(height * width, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(seed))
        tokens = [IMAGE + 2, *[IMAGE] * (height * width // 4), IMAGE + 3]
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, height, width]])}, tokens

    return Qwen2VLForConditionalGeneration(config).eval(), image, 0


def idefics() -> tuple[Any, Callable[[int], tuple[dict[str, torch.Tensor], list[int]]], int]:
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16, "patch_size": 4,
    }  # fmt: skip
    text = {"model_type": "llama", **TEXT}
    config = Idefics3Config(text_config=text, vision_config=vision, image_token_id=IMAGE, scale_factor=2)

    def image(seed: int) -> tuple[dict[str, torch.Tensor], list[int]]:
        pixels = torch.randn(1, 1, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        tensors = {"pixel_values": pixels, "pixel_attention_mask": torch.ones(1, 1, 16, 16, dtype=torch.long)}
        return tensors, [108, *[IMAGE] * 4, 109]

    return Idefics3ForConditionalGeneration(config).eval(), image, 1


@pytest.mark.parametrize("family", [qwen, idefics])
def test_images_are_seen_once_and_never_mistaken(family: Callable[[], Any]) -> None:
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
                Request(
                    prompt=tuple(ids), temperature=temperature, max_new_tokens=5, seed=turn, conversation=str(number), vision=vision
                )
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
