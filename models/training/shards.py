"""The weights of a model in training as a checkpoint's files, also where each process has a piece of each weight (ZeRO-3): gathered and
written file by file, so that no process has more of them at once than a file and its own pieces.

Trainer checkpoints, which a killed run resumes from, are not written here: there each process writes its own pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from models.checkpoints.checkpoint import quiet
from models.checkpoints.model_files import INDEX_FILE, SINGLE_FILE, WEIGHT_SUFFIX
from models.training.adapters import has_adapters
from models.training.zero import gathered, num_elements

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FILE_BYTES = 4 * 2**30
"""Of one file, unless a single layer has more."""


def save_in_shards(model: PreTrainedModel, folder: Path, *, is_leader: bool, file_bytes: int = FILE_BYTES) -> None:
    """Write into a new folder what `from_pretrained` opens; of a model with adapters the adapters alone, under the names that they have in
    it. All processes that share the model call this at once, and the leader writes."""
    weights, is_whole = _stored(model), not has_adapters(model)
    files = list(_files(weights, file_bytes))
    if is_leader:
        folder.mkdir(parents=True)
        with quiet():
            model.save_pretrained(folder, state_dict={})  # the configuration
        (folder / SINGLE_FILE).unlink(missing_ok=True)
    places: dict[str, str] = {}
    for number, names in enumerate(files, start=1):
        file = SINGLE_FILE if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}{WEIGHT_SUFFIX}"
        tensors = _taken_over({name: weights[name] for name in names}, is_leader)
        if is_leader:
            tensors = revert_weight_conversion(model, tensors) if is_whole else tensors
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file, metadata={"format": "pt"})
            places |= dict.fromkeys(tensors, file)
    if is_leader and len(files) > 1:
        total = sum(map(_size, weights.values()))
        (folder / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2, sort_keys=True))


def _stored(model: PreTrainedModel) -> dict[str, Tensor]:
    """By name, in the order of the layers. What is tied has the first of its names, as save_pretrained stores it."""
    state = model.state_dict(keep_vars=True)
    if has_adapters(model):
        return {name: tensor for name, tensor in state.items() if "lora_" in name}
    tied = {name for name, tensor in state.items() if isinstance(tensor, torch.nn.Parameter)} - dict(model.named_parameters()).keys()
    left_out = tied.union(model._keys_to_ignore_on_save or ())
    return {name: tensor for name, tensor in state.items() if name not in left_out}


def _files(weights: Mapping[str, Tensor], file_bytes: int) -> Iterator[list[str]]:
    """Names by file. A layer is in one file: families that store its weights otherwise than they hold them make them of one another."""
    names, size = list[str](), 0
    for _, layer in groupby(weights, key=_layer):
        found = list(layer)
        layer_bytes = sum(_size(weights[name]) for name in found)
        if names and size + layer_bytes > file_bytes:
            yield names
            names, size = [], 0
        names, size = names + found, size + layer_bytes
    yield names


def _layer(name: str) -> str:
    """`model.layers.3` of `model.layers.3.mlp.up_proj.weight`; a weight outside layers is by itself."""
    parts = name.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[: number + 1])


def _size(weight: Tensor) -> int:
    return num_elements(weight) * weight.element_size()


def _taken_over(weights: Mapping[str, Tensor], is_leader: bool) -> dict[str, Tensor]:
    """Copies in the leader's main memory; whole in the others' for a moment, one after the other."""
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        with gathered([weight]):
            if is_leader:
                found[name] = weight.detach().to("cpu", copy=True)
    return found
