"""Images inside a prompt: which tokens stand for which image, its vision tensors, and whether it is the same image as before. So a
conversation's earlier images are not encoded again, and a prompt with another image in the same place does not reuse the cached one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warehouse.core.errors import ModelError

GRID = "image_grid_thw"
"""Names the images of the Qwen2-VL class: patches of all images in one row, with a grid of patches for each."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One image (or tile of one): its placeholder tokens `start` to `end`, what the model is handed for it, and the dimension in which
    several of them are joined. `key` is equal for equal images, and never a token id."""

    start: int
    end: int
    inputs: dict[str, Tensor]
    joined_in: int
    key: int


def placeholder_ids(config: Any) -> tuple[int, ...]:
    """The tokens that stand for images and videos in a model's prompts: a forward pass over one without an image fails. They are never
    sampled, and have probability 0 wherever a policy learns from what was; a model of text has none."""
    found = (getattr(config, name, None) for name in ("image_token_id", "video_token_id"))
    return tuple(token for token in found if isinstance(token, int))


def units_of(prompt: Sequence[int], vision: Mapping[str, Tensor], image_token_id: int, merge_size: int) -> tuple[Unit, ...]:
    """The images of a prompt, in order. `vision` may be of the Qwen2-VL class (see GRID), or hold one slice an image or tile in its first
    dimension (LLaVA) or its second (Idefics3); anything else counts as one image. Raises ModelError where tokens and images do not match.
    """
    places = [place for place, token in enumerate(prompt) if token == image_token_id]
    pixels = vision.get("pixel_values")
    if pixels is None or not places:
        raise ModelError(f"a prompt has {sorted(vision)} but {len(places)} image tokens: codec and model do not match")
    if GRID in vision:
        grids = vision[GRID]
        num_patches = grids.prod(dim=-1).tolist()
        slices = [{"pixel_values": part, GRID: grids[i : i + 1]} for i, part in enumerate(pixels.split(num_patches))]
        lengths, joined_in = [patches // merge_size**2 for patches in num_patches], 0
    else:
        joined_in = 1 if pixels.dim() == 5 else 0
        count = pixels.shape[joined_in]
        alike = all(tensor.dim() > joined_in and tensor.shape[joined_in] == count for tensor in vision.values())
        count = count if alike and len(places) % count == 0 else 1
        slices = [
            dict(zip(vision, parts, strict=True))
            for parts in zip(*(tensor.chunk(count, dim=joined_in) for tensor in vision.values()), strict=True)
        ]
        lengths = [len(places) // count] * count
    if sum(lengths) != len(places):
        raise ModelError(f"a prompt has {len(places)} image tokens and its images take {sum(lengths)}: codec and model do not match")
    units, first = [], 0
    for inputs, length in zip(slices, lengths, strict=True):
        units.append(Unit(places[first], places[first + length - 1] + 1, inputs, joined_in, _key(inputs)))
        first += length
    return tuple(units)


def keys_of(prompt: Sequence[int], units: Sequence[Unit], image_token_id: int) -> list[int]:
    """The prompt's tokens, with its images' keys in place of their tokens."""
    keys = list(prompt)
    for unit in units:
        for place in range(unit.start, unit.end):
            if keys[place] == image_token_id:
                keys[place] = unit.key
    return keys


def joined(units: Sequence[Unit]) -> dict[str, Tensor]:
    """What the model is handed for several images in a row."""
    if not units:
        return {}
    return {name: torch.cat([unit.inputs[name] for unit in units], dim=units[0].joined_in) for name in units[0].inputs}


def _key(inputs: Mapping[str, Tensor]) -> int:
    """Negative, so that no token id equals it; of this process only."""
    parts = tuple((name, tuple(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes()) for name, tensor in inputs.items())
    return -1 - (hash(parts) & (2**62 - 1))
