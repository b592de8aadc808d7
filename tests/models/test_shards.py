"""Weights written in several files are the ones that `save_pretrained` writes in one: the same names, tensors and configuration. What is
written where each process has a piece of each weight is test_deepspeed.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from models.checkpoints.model_files import CONFIG_FILE, INDEX_FILE, SINGLE_FILE
from models.checkpoints.safetensors_stream import read_layout
from models.training.shards import save_in_shards
from tests.models.vision_models import VISION_MODELS


def stored(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in read_layout(folder).files for name, tensor in load_file(folder / file.name).items()}


@pytest.mark.parametrize("family", ["shift_qwen3", *VISION_MODELS])
def test_files_of_a_few_layers_hold_what_one_file_does(family: str, make_model: Callable[..., Any], tmp_path: Path) -> None:
    model, _ = make_model() if family == "shift_qwen3" else VISION_MODELS[family]()
    model.save_pretrained(tmp_path / "whole")
    save_in_shards(model, tmp_path / "parts", is_leader=True, file_bytes=2**14)
    save_in_shards(model, tmp_path / "one", is_leader=True)
    assert (tmp_path / "one" / SINGLE_FILE).read_bytes() == (tmp_path / "whole" / SINGLE_FILE).read_bytes()
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2 and (tmp_path / "parts" / INDEX_FILE).exists()
    expected, found = stored(tmp_path / "whole"), stored(tmp_path / "parts")
    assert expected.keys() == found.keys() and all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    for name in ("parts", "one"):
        assert (tmp_path / name / CONFIG_FILE).read_bytes() == (tmp_path / "whole" / CONFIG_FILE).read_bytes()
    opened = type(model).from_pretrained(tmp_path / "parts").state_dict()
    assert all(torch.equal(opened[name], tensor) for name, tensor in model.state_dict().items())
