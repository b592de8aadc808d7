"""Small safetensors checkpoints for the tests of merging."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from models import checkpoint

Tensors = Mapping[str, torch.Tensor]
BASE = "checkpoint-00000000000000aa"


def write_parent(
    folder: Path, tensors: Tensors, *, parents: tuple[str, ...] = (BASE,), num_shards: int = 1, tokenizer: str = "{}", hidden: int = 16
) -> Path:
    def fill(aside: Path) -> None:
        (aside / "config.json").write_text(json.dumps({"model_type": "tiny", "hidden_size": hidden, "_name_or_path": folder.name}))
        (aside / "tokenizer.json").write_text(tokenizer)
        names = sorted(tensors)
        if num_shards == 1:
            save_file(dict(tensors), aside / "model.safetensors", metadata={"format": "pt"})
            return
        weight_map = {name: f"model-{i % num_shards + 1:05d}-of-{num_shards:05d}.safetensors" for i, name in enumerate(names)}
        for file in sorted(set(weight_map.values())):
            save_file({name: tensors[name] for name in names if weight_map[name] == file}, aside / file, metadata={"format": "pt"})
        (aside / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    checkpoint.write(folder, fill, stage=folder.name, iteration="0001", parents=parents)
    return folder


def read_all(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}
