"""Small safetensors checkpoints for the tests of merging."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from models.checkpoints import checkpoint

Tensors = Mapping[str, torch.Tensor]
BASE = "checkpoint-00000000000000aa"
SHAPES = {"a": (37, 11), "b": (701,), "c": (3, 5, 7), "scalar": ()}


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


def family(dtype: torch.dtype, num: int = 3, seed: int = 0) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """A base and specialists a little way from it."""
    generator = torch.Generator().manual_seed(seed)
    base = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}
    moved = [
        {name: (tensor.double() + 0.1 * torch.randn(tensor.shape, generator=generator)).to(dtype) for name, tensor in base.items()}
        for _ in range(num)
    ]
    return base, moved


def write_family(folder: Path, dtype: torch.dtype, num: int = 3) -> tuple[Path, list[Path]]:
    base, moved = family(dtype, num)
    root = write_parent(folder / "base", base, parents=())
    mother = checkpoint.read_card(root).checkpoint_id
    return root, [write_parent(folder / f"p{i}", tensors, parents=(mother,), num_shards=i + 1) for i, tensors in enumerate(moved)]
