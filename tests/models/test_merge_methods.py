"""Each merging method against a straightforward torch implementation of its formula, and what all of them keep. What they refuse:
test_merge_refusals.py; what other programs make of the same: test_merge_agreement.py; slerp: test_merge_slerp.py; the largest of a task
vector: test_merge_selection.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from models.checkpoints import checkpoint
from models.merging import io, ties
from models.merging.config import MethodConfig
from models.merging.dtype_codec import Scratch
from models.merging.merge import merge
from models.merging.methods import METHODS
from tests.models.merge_helpers import SHAPES, family, read_all, write_family, write_parent
from warehouse.core.errors import MergeError

Tensor = torch.Tensor


def wide_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def reference(method: str, base: Tensor, parents: Sequence[Tensor], weights: Sequence[float], config: MethodConfig) -> Tensor:
    """In the wide type, operation for operation as the formula reads."""
    wide = wide_type(base.dtype)
    start, theta = base.to(wide), [parent.to(wide) for parent in parents]
    deltas = [value - start for value in theta]
    if method == "ties":
        num_kept = max(1, int(config.density * base.numel()))
        for k, delta in enumerate(deltas):
            order = torch.sort(delta.abs().reshape(-1), descending=True, stable=True).indices[:num_kept]
            mask = torch.zeros(delta.numel(), dtype=wide)
            mask[order] = 1
            deltas[k] = delta * mask.reshape(delta.shape)
    weighted = [delta * torch.tensor(weight, dtype=wide) for delta, weight in zip(deltas, weights, strict=True)]
    if method == "task_arithmetic":
        total = weighted[0].clone()
        for part in weighted[1:]:
            total += part
    else:
        summed = torch.stack(weighted).sum(0)
        elected = torch.where(summed >= 0, 1.0, -1.0).to(wide)
        total, divisor = torch.zeros_like(start), torch.zeros_like(start)
        for part, weight in zip(weighted, weights, strict=True):
            agrees = part.sign() == elected
            total += part * agrees
            divisor += torch.tensor(weight, dtype=wide) * agrees
        divisor[divisor == 0] = 1
        total = total / divisor if config.normalize is not False else total
    if config.scale != 1:
        total *= config.scale
    return (start + total).to(base.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "config",
    [
        MethodConfig(method="task_arithmetic", scale=1.5),
        MethodConfig(method="ties", density=0.3),
        MethodConfig(method="ties", density=1.0, normalize=False, scale=0.7),
    ],
    ids=str,
)
def test_task_vector_methods_are_their_formula_bit_for_bit(tmp_path: Path, dtype: torch.dtype, config: MethodConfig) -> None:
    base, moved = family(dtype)
    root, parents = write_family(tmp_path, dtype)
    weights = (0.5, 0.9, 0.3)
    merge(parents, weights, tmp_path / "merged", config, base=root)
    for name, merged in read_all(tmp_path / "merged").items():
        assert torch.equal(merged, reference(config.method, base[name], [tensors[name] for tensors in moved], weights, config)), name


def test_ties_without_ties_among_magnitudes_is_the_textbook_on_a_larger_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one piece, a guessed threshold, and equal magnitudes at the edge, of which the first are kept."""
    monkeypatch.setattr("models.merging.ties._LEAST_FOR_SAMPLE", 1000)
    monkeypatch.setattr(io, "PIECE_BYTES", 4096)
    generator = torch.Generator().manual_seed(1)
    base = {"w": torch.randn(300, 101, generator=generator).bfloat16()}
    moved = [{"w": (base["w"].float() + torch.randn(300, 101, generator=generator).mul(8).round().div(64)).bfloat16()} for _ in range(2)]
    root = write_parent(tmp_path / "base", base, parents=())
    mother = checkpoint.read_card(root).checkpoint_id
    parents = [write_parent(tmp_path / f"p{i}", tensors, parents=(mother,)) for i, tensors in enumerate(moved)]
    config = MethodConfig(method="ties", density=0.4)
    merge(parents, (1.0, 1.0), tmp_path / "merged", config, base=root)
    expected = reference("ties", base["w"], [tensors["w"] for tensors in moved], (1.0, 1.0), config)
    assert torch.equal(read_all(tmp_path / "merged")["w"], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_is_the_textbook_where_magnitudes_are_counted_in_bins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr("models.merging.selection.MAX_HELD", 20)
    base, moved = family(dtype, num=2)
    root, parents = write_family(tmp_path, dtype, num=2)
    config = MethodConfig(method="ties", density=0.3)
    merge(parents, (1.0, 0.5), tmp_path / "merged", config, base=root)
    for name, merged in read_all(tmp_path / "merged").items():
        assert torch.equal(merged, reference("ties", base[name], [tensors[name] for tensors in moved], (1.0, 0.5), config)), name


def elected(deltas: Sequence[Sequence[float]], weights: Sequence[float], *, base: float = 0.0, normalize: bool = True) -> list[float]:
    arrays = [np.array(delta, dtype=np.float32) for delta in deltas]
    start = np.full(len(arrays[0]), base, dtype=np.float32)
    found = ties.elected(start, arrays, weights, MethodConfig(method="ties"), Scratch(), normalize=normalize)
    assert found.dtype == np.float32
    return found.tolist()


def test_a_sign_is_elected_by_hand() -> None:
    two = ([3.0, -3.0, 2.0, -2.0, 0.0, -0.0], [1.0, 1.0, -2.0, 2.0, -5.0, -0.0])
    assert elected(two, (1, 1)) == [2, -3, 2, 2, -5, 0], "a sum of 0 counts as positive"
    assert elected(two, (1, 1), normalize=False) == [4, -3, 2, 2, -5, 0]
    assert elected(two, (1, 3), base=10) == [11.5, 11, 8, 12, 5, 10], "a mean by weight: 10 + (3 + 3 · 1) / 4"
    assert elected(two, (1, 3), normalize=False) == [6, 3, -6, 6, -15, 0]
    assert elected(([1.0], [-1.0]), (1, -1)) == [2], "weights that cancel are not divided by"
    assert math.copysign(1, elected(([-0.0], [0.0]), (1, 1), base=-0.0)[0]) == 1, "-0 moved by nothing is 0"


@pytest.mark.parametrize("method", ["task_arithmetic", "ties", "dare_linear", "dare_ties"])
def test_what_comes_after_a_piece_that_all_agree_on_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(io, "PIECE_BYTES", 64)
    root = write_parent(tmp_path / "base", {"w": torch.ones(48)}, parents=())
    mother = checkpoint.read_card(root).checkpoint_id
    sources = [{"w": torch.tensor([1.0] * 16 + [value] * 16 + [1.0] * 16)} for value in (2.0, 4.0)]
    parents = [write_parent(tmp_path / f"p{value}", tensors, parents=(mother,)) for value, tensors in enumerate(sources)]
    merge(parents, (0.5, 0.5), tmp_path / "merged", MethodConfig.model_validate({"method": method, "density": 1.0}), base=root)
    assert read_all(tmp_path / "merged")["w"].tolist() == [1.0] * 16 + [3.0] * 16 + [1.0] * 16


@pytest.mark.parametrize("method", METHODS)
def test_a_tensor_of_no_elements_stays_one(tmp_path: Path, method: str) -> None:
    tensors = [{"empty": torch.zeros(0, 4), "w": torch.full((8,), float(k))} for k in range(3)]
    root = write_parent(tmp_path / "base", tensors[0], parents=())
    mother = checkpoint.read_card(root).checkpoint_id
    parents = [write_parent(tmp_path / f"p{k}", tensors[k], parents=(mother,)) for k in (1, 2)]
    merge(parents, (0.5, 0.5), tmp_path / "merged", MethodConfig.model_validate({"method": method}), base=root)
    assert read_all(tmp_path / "merged")["empty"].shape == (0, 4)


@pytest.mark.parametrize("method", ["dare_linear", "dare_ties"])
def test_dare_repeats_itself_whatever_the_order_and_threads(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "PIECE_BYTES", 1024)
    root, parents = write_family(tmp_path, torch.bfloat16, num=2)
    made = MethodConfig.model_validate({"method": method, "density": 0.6})
    first = merge(parents, (0.5, 0.5), tmp_path / "one", made, base=root, num_threads=1)
    again = merge(parents, (0.5, 0.5), tmp_path / "two", made, base=root, num_threads=3)
    assert first.checkpoint_id == again.checkpoint_id
    merge(parents[::-1], (0.5, 0.5), tmp_path / "turned", made, base=root)
    one, turned = read_all(tmp_path / "one"), read_all(tmp_path / "turned")
    assert all(torch.equal(one[name], turned[name]) for name in one)
    other = merge(parents, (0.5, 0.5), tmp_path / "other", made.model_copy(update={"seed": 1}), base=root)
    assert other.checkpoint_id != first.checkpoint_id


def test_dare_drops_its_share_and_keeps_the_expectation(tmp_path: Path) -> None:
    base, moved = {"w": torch.zeros(400, 500)}, {"w": torch.ones(400, 500)}
    root = write_parent(tmp_path / "base", base, parents=())
    parent = write_parent(tmp_path / "p", moved, parents=(checkpoint.read_card(root).checkpoint_id,))
    merge([parent], (1.0,), tmp_path / "merged", MethodConfig(method="dare_linear", density=0.25), base=root)
    merged = read_all(tmp_path / "merged")["w"]
    assert set(merged.unique().tolist()) == {0.0, 4.0}
    assert float(merged.mean()) == pytest.approx(1, abs=0.02)


DRAWN = {
    ("v", 0): "3230012023322200121103302003230122023302102131033022212011303120",
    ("v", 5): "1100322320101320121133202131102003333201022330230230321022102223",
    ("w", 0): "0300210330101110222113222211010202213101122221231230032130030300",
}
"""Which parents' elements stay: the first's (1), the second's (2), both (3)."""


@pytest.mark.parametrize("seed", [0, 5])
def test_what_dare_draws_is_fixed_by_seed_shape_base_and_parent_for_good(tmp_path: Path, seed: int) -> None:
    sources = [{"v": torch.full((64,), float(k)), "w": torch.full((4, 16), float(k))} for k in range(3)]
    root = write_parent(tmp_path / "base", sources[0], parents=())
    mother = checkpoint.read_card(root).checkpoint_id
    parents = [write_parent(tmp_path / f"p{k}", sources[k], parents=(mother,)) for k in (1, 2)]
    merge(parents, (0.5, 0.5), tmp_path / "merged", MethodConfig(method="dare_linear", density=0.5, seed=seed), base=root)
    merged = {name: "".join(str(int(value)) for value in tensor.flatten()) for name, tensor in read_all(tmp_path / "merged").items()}
    assert {(name, seed): drawn for name, drawn in merged.items() if (name, seed) in DRAWN} == {
        key: drawn for key, drawn in DRAWN.items() if key[1] == seed
    }


@pytest.mark.parametrize(("dare", "plain"), [("dare_linear", "task_arithmetic"), ("dare_ties", "ties")])
def test_density_one_of_dare_is_its_method_without_a_mean(tmp_path: Path, dare: str, plain: str) -> None:
    root, parents = write_family(tmp_path, torch.bfloat16, num=2)
    made = [{"method": dare, "density": 1.0}, {"method": plain, "density": 1.0, "normalize": False}]
    cards = [
        merge(parents, (0.4, 0.6), tmp_path / str(chosen["method"]), MethodConfig.model_validate(chosen), base=root) for chosen in made
    ]
    assert cards[0].checkpoint_id == cards[1].checkpoint_id


def test_a_fused_linear_merge_is_torchs_addcmul_to_the_last_bit(tmp_path: Path) -> None:
    _, moved = family(torch.bfloat16)
    _, parents = write_family(tmp_path, torch.bfloat16)
    weights = (0.5, 0.3, 0.2)
    merge(parents, weights, tmp_path / "merged", MethodConfig(fused=True))
    for name, merged in read_all(tmp_path / "merged").items():
        total = torch.zeros(SHAPES[name])
        for tensors, weight in zip(moved, weights, strict=True):
            total.addcmul_(tensors[name], torch.tensor(weight))
        if torch.backends.cpu.get_cpu_capability() not in ("DEFAULT", "NO AVX"):
            assert torch.equal(merged, total.bfloat16()), name


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_keeps_layout_and_what_all_agree_on(tmp_path: Path, method: str) -> None:
    root, parents = write_family(tmp_path, torch.bfloat16, num=3)
    made = MethodConfig.model_validate({"method": method})
    card = merge(parents, (0.5, 0.25, 0.25), tmp_path / "merged", made, base=root)
    assert checkpoint.verify(tmp_path / "merged") == card
    assert card.config["method"] == method
    header = (parents[0] / "model.safetensors").read_bytes()[:400]
    assert (tmp_path / "merged/model.safetensors").read_bytes()[:100] == header[:100]
    same = merge([root, root], (0.5, 0.5), tmp_path / "same", made, base=root)
    assert same.checkpoint_id == checkpoint.read_card(root).checkpoint_id
    needs = METHODS[made.method].needs_base
    assert (checkpoint.read_card(root).checkpoint_id in card.parents) == needs
    if needs:
        with pytest.raises(MergeError, match="give it as the base"):
            merge(parents, (0.5, 0.25, 0.25), tmp_path / "none", made)


def test_tied_weights_may_be_stored_once_or_twice(tmp_path: Path) -> None:
    base, moved = family(torch.bfloat16, num=2)
    once, twice = moved[0], {**moved[1], "head": moved[1]["a"].clone()}
    root = write_parent(tmp_path / "base", base, parents=())
    mother = checkpoint.read_card(root).checkpoint_id
    parents = [write_parent(tmp_path / f"p{i}", tensors, parents=(mother,)) for i, tensors in enumerate((once, twice))]
    for method in METHODS:
        made = MethodConfig.model_validate({"method": method})
        merge(parents, (0.5, 0.5), tmp_path / "first", made, base=root)
        assert read_all(tmp_path / "first").keys() == once.keys()
        merge(parents[::-1], (0.5, 0.5), tmp_path / "second", made, base=root)
        merged = read_all(tmp_path / "second")
        assert torch.equal(merged["head"], merged["a"]), f"{method}: one parameter in two places stays one"


def test_a_tokenizer_that_remembers_its_last_use_is_the_same(tmp_path: Path) -> None:
    _, moved = family(torch.bfloat16, num=2)
    states = ('{"truncation": null, "model": 1}', '{"model": 1, "truncation": {"max_length": 9}}')
    parents = [write_parent(tmp_path / f"p{i}", tensors, tokenizer=states[i]) for i, tensors in enumerate(moved)]
    merge(parents, (0.5, 0.5), tmp_path / "merged")
    for name, merged in read_all(tmp_path / "merged").items():
        assert torch.equal(merged, (moved[0][name].float() * 0.5 + moved[1][name].float() * 0.5).bfloat16()), name


def test_progress_tells_every_byte(tmp_path: Path) -> None:
    _, parents = write_family(tmp_path, torch.bfloat16, num=2)
    reported: list[int] = []
    merge(parents, (0.5, 0.5), tmp_path / "merged", advance=reported.append)
    assert sum(reported) == sum(2 * math.prod(shape) for shape in SHAPES.values())
