"""Linear merging of real safetensors folders: exactness and refusals. The choice among weightings: test_merge_weights.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.checkpoints import checkpoint
from models.merging.dtype_codec import Scratch, decode, encode
from models.merging.merge import merge
from tests.models.merge_helpers import read_all, write_parent
from warehouse.core.errors import CheckpointError, MergeError


def random_tensors(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed.weight": (300, 16), "layer.0.weight": (16, 1000), "layer.1.weight": (700, 900), "norm.weight": (16,), "scale": ()}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_the_merge_is_the_weighted_sum_rounded_once(tmp_path: Path, dtype: torch.dtype) -> None:
    sources = [random_tensors(seed, dtype) for seed in range(3)]
    parents = [write_parent(tmp_path / f"p{i}", tensors) for i, tensors in enumerate(sources)]
    weights = (0.5, 0.2, 0.3)
    merge(parents, weights, tmp_path / "merged")
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    for name, merged in read_all(tmp_path / "merged").items():
        assert merged.dtype == dtype
        total = sources[0][name].to(wide) * weights[0]
        for tensors, weight in zip(sources[1:], weights[1:], strict=True):
            total += tensors[name].to(wide) * weight
        assert torch.equal(merged, total.to(dtype)), name


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_corner_of_the_simplex_is_its_parent_bit_for_bit(tmp_path: Path, num_shards: int) -> None:
    parents = [write_parent(tmp_path / f"p{i}", random_tensors(i, torch.bfloat16), num_shards=num_shards) for i in range(2)]
    for k, weights in enumerate([(1.0, 0.0), (0.0, 1.0)]):
        card = merge(parents, weights, tmp_path / "merged")
        for file in sorted(parents[k].glob("*.safetensors")):
            assert (tmp_path / "merged" / file.name).read_bytes() == file.read_bytes()
        assert card.config["weights"] == {checkpoint.read_card(p).checkpoint_id: w for p, w in zip(parents, weights, strict=True)}


def test_parents_that_agree_stay_exact_under_any_weights(tmp_path: Path) -> None:
    parents = [write_parent(tmp_path / f"p{i}", random_tensors(0)) for i in range(3)]
    merge(parents, (0.1, 0.2, 0.7), tmp_path / "merged")
    assert (tmp_path / "merged/model.safetensors").read_bytes() == (parents[0] / "model.safetensors").read_bytes()


def test_shards_may_be_cut_differently(tmp_path: Path) -> None:
    sources = [random_tensors(i) for i in range(2)]
    parents = [write_parent(tmp_path / f"p{i}", tensors, num_shards=i * 2 + 1) for i, tensors in enumerate(sources)]
    merge(parents, (0.5, 0.5), tmp_path / "merged")
    for name, merged in read_all(tmp_path / "merged").items():
        assert torch.equal(merged, (sources[0][name] * 0.5) + (sources[1][name] * 0.5))


def test_the_merged_folder_is_a_whole_checkpoint(tmp_path: Path) -> None:
    parents = [write_parent(tmp_path / f"p{i}", random_tensors(i)) for i in range(2)]
    (parents[0] / "notes").mkdir()
    card = merge(parents, (0.5, 0.5), tmp_path / "merged", iteration="0002")
    assert checkpoint.verify(tmp_path / "merged") == card
    assert card.stage == "merged_policy"
    assert card.iteration == "0002"
    assert card.parents == tuple(checkpoint.read_card(parent).checkpoint_id for parent in parents)
    assert sorted(card.files) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert not (tmp_path / "merged/notes").exists()


def test_integer_tensors_are_copied_when_equal_and_refused_otherwise(tmp_path: Path) -> None:
    same = [{"w": torch.randn(4), "ids": torch.arange(5)} for _ in range(2)]
    parents = [write_parent(tmp_path / f"p{i}", tensors) for i, tensors in enumerate(same)]
    merge(parents, (0.5, 0.5), tmp_path / "merged")
    assert torch.equal(read_all(tmp_path / "merged")["ids"], torch.arange(5))
    odd = write_parent(tmp_path / "odd", {"w": torch.randn(4), "ids": torch.arange(5) + 1})
    with pytest.raises(MergeError, match="ids of type I64 differs"):
        merge([parents[0], odd], (0.5, 0.5), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    assert not list(tmp_path.glob(".refused*"))


@pytest.mark.parametrize("weights", [(0.5, 0.6), (1.5, -0.5), (1.0,), (0.5, 0.25, 0.25), (float("nan"), 1.0)])
def test_weights_off_the_simplex_are_refused(tmp_path: Path, weights: tuple[float, ...]) -> None:
    parents = [write_parent(tmp_path / f"p{i}", random_tensors(i)) for i in range(2)]
    with pytest.raises(MergeError, match=r"simplex|one weight per parent"):
        merge(parents, weights, tmp_path / "merged")


def test_what_does_not_fit_together_is_refused_with_the_reason(tmp_path: Path) -> None:
    first = write_parent(tmp_path / "first", random_tensors(0))
    reshaped = {**random_tensors(1), "norm.weight": torch.zeros(17)}
    missing = {name: tensor for name, tensor in random_tensors(1).items() if name != "scale"}
    others = {
        "not trained from one checkpoint": write_parent(tmp_path / "stranger", random_tensors(1), parents=("checkpoint-00000000000000bb",)),
        "with the same tokenizer": write_parent(tmp_path / "tongue", random_tensors(1), tokenizer='{"a": 1}'),
        "hidden_size: 16 and 32": write_parent(tmp_path / "config", random_tensors(1), hidden=32),
        "tensor norm.weight is F32": write_parent(tmp_path / "shape", reshaped),
        "hold different tensors": write_parent(tmp_path / "names", missing),
        r"is F32.* and BF16": write_parent(tmp_path / "type", random_tensors(1, torch.bfloat16)),
    }
    for reason, other in others.items():
        with pytest.raises(MergeError, match=reason):
            merge([first, other], (0.5, 0.5), tmp_path / "merged")
    with pytest.raises(CheckpointError, match=r"card\.json is missing"):
        merge([first, tmp_path], (0.5, 0.5), tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_specialist_merges_with_the_checkpoint_it_came_from(tmp_path: Path) -> None:
    base = write_parent(tmp_path / "base", random_tensors(0), parents=())
    specialist = write_parent(tmp_path / "one", random_tensors(1), parents=(checkpoint.read_card(base).checkpoint_id,))
    merge([base, specialist], (0.5, 0.5), tmp_path / "merged")
    # A stage that passed its input on hands in the base itself, twice.
    card = merge([base, base], (0.5, 0.5), tmp_path / "same")
    assert card.checkpoint_id == checkpoint.read_card(base).checkpoint_id


def test_a_truncated_weight_file_is_named(tmp_path: Path) -> None:
    parents = [write_parent(tmp_path / f"p{i}", random_tensors(i)) for i in range(2)]
    path = parents[1] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        merge(parents, (0.5, 0.5), tmp_path / "merged")


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
@settings(max_examples=50)
def test_bfloat16_rounding_is_that_of_torch(values: list[float]) -> None:
    floats = np.array(values * 2, dtype=np.float32)  # an even number: a piece is padded to whole words
    theirs = torch.from_numpy(floats.copy()).to(torch.bfloat16)
    ours = encode((floats[0::2].copy(), floats[1::2].copy()), "BF16", Scratch())
    assert torch.equal(torch.frombuffer(bytearray(ours.tobytes()), dtype=torch.bfloat16), theirs)
    padded = np.frombuffer(bytearray(ours.tobytes() + bytes(-len(ours) % 8)), dtype=np.uint8)
    even, odd = decode(padded, "BF16", Scratch(), "array")
    assert np.array_equal(np.stack([even, odd], axis=-1).ravel()[: len(floats)], theirs.float().numpy())


def test_merging_never_imports_torch() -> None:
    code = "import sys, models.merging.merge; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
