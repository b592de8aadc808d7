"""What cannot be merged is refused, with a way to fix it, before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from models.checkpoints import checkpoint
from models.merging.config import MethodConfig
from models.merging.merge import merge
from models.merging.methods import METHODS
from tests.models.merge_helpers import family, write_family, write_parent
from warehouse.core.errors import CheckpointError, MergeError, StorageFull


def test_what_cannot_be_merged_is_refused_with_a_fix(tmp_path: Path) -> None:
    root, parents = write_family(tmp_path, torch.bfloat16, num=2)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(MergeError, match="merge_and_unload"):
        merge([parents[0], adapter], (0.5, 0.5), tmp_path / "merged")
    mother = checkpoint.read_card(root).checkpoint_id
    eight = [write_parent(tmp_path / f"f8{i}", {"w": torch.randn(8).to(torch.float8_e4m3fn)}, parents=(mother,)) for i in range(2)]
    with pytest.raises(MergeError, match="BF16 checkpoints and quantise the result"):
        merge(eight, (0.5, 0.5), tmp_path / "merged")
    broken = {name: tensor.clone() for name, tensor in family(torch.bfloat16)[1][0].items()}
    broken["b"][5] = float("nan")
    sick = write_parent(tmp_path / "sick", broken, parents=(mother,))
    for config in (MethodConfig.model_validate({"method": method}) for method in METHODS):
        with pytest.raises(MergeError, match=r"tensor b .* has NaN in .*sick"):
            merge([parents[0], sick], (0.5, 0.5), tmp_path / "merged", config, base=root)
    with pytest.raises(MergeError, match=r"tensor b .* has NaN in .*sick"):
        merge([sick, parents[0]], (1.0, 0.0), tmp_path / "merged")
    stranger = write_parent(tmp_path / "stranger", family(torch.bfloat16, seed=7)[0], parents=())
    with pytest.raises(MergeError, match="the parents were not trained from the base"):
        merge(parents, (0.5, 0.5), tmp_path / "merged", MethodConfig(method="ties"), base=stranger)
    assert not (tmp_path / "merged").exists() and not list(tmp_path.glob(".merged*"))


def test_float16_that_overflows_is_said(tmp_path: Path) -> None:
    root = write_parent(tmp_path / "base", {"w": torch.zeros(4, dtype=torch.float16)}, parents=())
    mother = checkpoint.read_card(root).checkpoint_id
    parents = [write_parent(tmp_path / f"p{i}", {"w": torch.full((4,), 5e4 - i).half()}, parents=(mother,)) for i in range(2)]
    with pytest.raises(MergeError, match="exceeds the largest F16"):
        merge(parents, (1.0, 1.0), tmp_path / "merged", MethodConfig(method="task_arithmetic"), base=root)


def test_folders_without_a_card_are_taken_only_when_asked(tmp_path: Path) -> None:
    _, moved = family(torch.bfloat16, num=2)
    for i, tensors in enumerate(moved):
        folder = tmp_path / f"p{i}"
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"model_type": "any", "use_cache": bool(i)}))
        (folder / "pytorch_model.bin").write_bytes(b"the parent's own")
    parents = [tmp_path / "p0", tmp_path / "p1"]
    with pytest.raises(CheckpointError, match=r"card\.json is missing"):
        merge(parents, (0.5, 0.5), tmp_path / "merged")
    card = merge(parents, (0.5, 0.5), tmp_path / "merged", check_ancestry=False)
    assert card.config["weights"] == {"p0": 0.5, "p1": 0.5}
    assert sorted(card.files) == ["config.json", "model.safetensors"], "weights in another format would not be the merge"


def test_a_full_disk_is_said_before_a_byte_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, parents = write_family(tmp_path, torch.bfloat16, num=2)
    monkeypatch.setattr("models.merging.merge.shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(StorageFull, match=r"no room for the merge .* are wanted. Free space there, then merge again, or name"):
        merge(parents, (0.5, 0.5), tmp_path / "merged")


def test_headers_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    _, parents = write_family(tmp_path, torch.bfloat16, num=3)
    path = parents[0] / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"shape":[701]', b'"shape":[700]'))
    with pytest.raises(CheckpointError, match="tensor b is BF16"):
        merge(parents[:2], (0.5, 0.5), tmp_path / "merged")
    path.write_bytes(data)
    index = parents[2] / "model.safetensors.index.json"
    named = json.loads(index.read_text())
    named["weight_map"]["ghost"] = next(iter(named["weight_map"].values()))
    index.write_text(json.dumps(named))
    with pytest.raises(CheckpointError, match=r"names \['ghost'\]"):
        merge(parents, (0.5, 0.25, 0.25), tmp_path / "merged")
