"""Each merging method against a straightforward torch implementation of its formula, and what all of them keep and refuse."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from models import checkpoint
from models.merge import merge
from models.merging import io, slerp
from models.merging.config import MethodConfig
from models.merging.lanes import Scratch
from models.merging.methods import METHODS
from models.merging.selection import TopK, magnitudes
from tests.models.merge_helpers import read_all, write_parent
from warehouse.errors import CheckpointError, MergeError, StorageFull

Tensor = torch.Tensor
SHAPES = {"a": (37, 11), "b": (701,), "c": (3, 5, 7), "scalar": ()}


def family(dtype: torch.dtype, num: int = 3, seed: int = 0) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
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


@given(
    st.lists(st.floats(-4, 4, width=16), min_size=1, max_size=300),
    st.floats(0.001, 1),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=60, deadline=None)
def test_the_counted_threshold_is_the_sorted_one(values: list[float], share: float, with_sample: bool, kind: type) -> None:
    array = np.array(values, dtype=kind)
    num_kept = max(1, int(share * len(array)))
    sample = magnitudes(array.copy())[::7] if with_sample else None
    top = TopK(num_kept, 63 if kind is np.float64 else 31, sample, len(array))
    while not top.is_found:
        for chunk in np.array_split(array, 3):
            top.count(magnitudes(chunk.copy()), Scratch())
        top.end_pass()
    ordered = np.sort(magnitudes(array.copy()))[::-1]
    assert top.threshold == ordered[num_kept - 1]
    assert top.num_equal == num_kept - np.count_nonzero(ordered > top.threshold)


@pytest.mark.parametrize("num_bits", [31, 63])
def test_the_threshold_is_found_in_bins_when_too_much_lies_inside(monkeypatch: pytest.MonkeyPatch, num_bits: int) -> None:
    monkeypatch.setattr("models.merging.selection.MAX_HELD", 100)
    kind = np.float64 if num_bits == 63 else np.float32
    array = np.random.default_rng(0).normal(size=5000).round(3).astype(kind)
    top, passes = TopK(1234, num_bits), 0
    while not top.is_found:
        for chunk in np.array_split(array, 7):
            top.count(magnitudes(chunk.copy()), Scratch())
        top.end_pass()
        passes += 1
    ordered = np.sort(magnitudes(array.copy()))[::-1]
    kept = np.count_nonzero(ordered > top.threshold) + top.num_equal
    assert kept == 1234 and ordered[1233] >= top.threshold
    assert passes <= (num_bits + 1) // 16


@pytest.mark.parametrize("weights", [(0.3, 0.7), (0.5, 0.2, 0.3)])
def test_slerp_is_shoemakes_formula_and_the_mean_on_the_sphere(tmp_path: Path, weights: tuple[float, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    moved = [{"w": torch.randn(40, 50, generator=generator)} for _ in weights]
    parents = [write_parent(tmp_path / f"p{i}", tensors) for i, tensors in enumerate(moved)]
    merge(parents, weights, tmp_path / "merged", MethodConfig(method="slerp"))
    merged = read_all(tmp_path / "merged")["w"].double().reshape(-1)
    vectors = [tensors["w"].double().reshape(-1) for tensors in moved]
    if len(weights) == 2:
        angle = math.acos(float(vectors[0] @ vectors[1] / vectors[0].norm() / vectors[1].norm()))
        expected = (math.sin(weights[0] * angle) * vectors[0] + math.sin(weights[1] * angle) * vectors[1]) / math.sin(angle)
        assert torch.allclose(merged, expected, atol=1e-6)
        return
    units = torch.stack([vector / vector.norm() for vector in vectors])
    factors = slerp.coefficients((units @ units.T).numpy(), weights)
    mean = torch.tensor(factors, dtype=torch.float64) @ units
    angles = torch.acos(units @ mean)
    pulls = [w * a / a.sin() * (u - a.cos() * mean) for w, a, u in zip(weights, angles, units, strict=True)]
    assert float(mean.norm()) == pytest.approx(1)
    assert float(torch.stack(pulls).sum(0).norm()) < 1e-6, "nothing pulls the mean away"


def test_parallel_and_empty_vectors_are_interpolated_linearly() -> None:
    assert slerp.coefficients(np.array([[1.0, 1.0], [1.0, 1.0]]), (0.25, 0.75)) == (0.25, 0.75)
    assert slerp.coefficients(np.array([[0.0, 0.0], [0.0, 1.0]]), (0.25, 0.75)) == (0.25, 0.75)


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


def test_density_one_of_dare_is_task_arithmetic(tmp_path: Path) -> None:
    root, parents = write_family(tmp_path, torch.bfloat16, num=2)
    cards = [
        merge(parents, (0.4, 0.6), tmp_path / name, MethodConfig.model_validate({"method": name, "density": 1.0}), base=root)
        for name in ("dare_linear", "task_arithmetic")
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
        with pytest.raises(MergeError, match="name that one as the base"):
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


def test_what_cannot_be_merged_is_refused_with_a_mend(tmp_path: Path) -> None:
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
        with pytest.raises(MergeError, match=r"tensor b .* NaN already in .*sick"):
            merge([parents[0], sick], (0.5, 0.5), tmp_path / "merged", config, base=root)
    with pytest.raises(MergeError, match=r"tensor b .* NaN already in .*sick"):
        merge([sick, parents[0]], (1.0, 0.0), tmp_path / "merged")
    stranger = write_parent(tmp_path / "stranger", family(torch.bfloat16, seed=7)[0], parents=())
    with pytest.raises(MergeError, match="is not what the parents were trained from"):
        merge(parents, (0.5, 0.5), tmp_path / "merged", MethodConfig(method="ties"), base=stranger)
    assert not (tmp_path / "merged").exists() and not list(tmp_path.glob(".merged*"))


def test_float16_that_overflows_is_said(tmp_path: Path) -> None:
    root = write_parent(tmp_path / "base", {"w": torch.zeros(4, dtype=torch.float16)}, parents=())
    mother = checkpoint.read_card(root).checkpoint_id
    parents = [write_parent(tmp_path / f"p{i}", {"w": torch.full((4,), 5e4 - i).half()}, parents=(mother,)) for i in range(2)]
    with pytest.raises(MergeError, match="exceed what F16 can hold"):
        merge(parents, (1.0, 1.0), tmp_path / "merged", MethodConfig(method="task_arithmetic"), base=root)


def test_a_tokenizer_that_remembers_its_last_use_is_the_same(tmp_path: Path) -> None:
    _, moved = family(torch.bfloat16, num=2)
    states = ('{"truncation": null, "model": 1}', '{"model": 1, "truncation": {"max_length": 9}}')
    parents = [write_parent(tmp_path / f"p{i}", tensors, tokenizer=states[i]) for i, tensors in enumerate(moved)]
    merge(parents, (0.5, 0.5), tmp_path / "merged")


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
    room: Callable[[Path], tuple[int, int, int]] = lambda path: (10, 10, 0)  # noqa: E731
    monkeypatch.setattr("models.merge.shutil.disk_usage", lambda path: type("Usage", (), {"free": room(path)[2]}))
    with pytest.raises(StorageFull, match="free some, or merge elsewhere"):
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


def test_progress_tells_every_byte(tmp_path: Path) -> None:
    _, parents = write_family(tmp_path, torch.bfloat16, num=2)
    told: list[int] = []
    merge(parents, (0.5, 0.5), tmp_path / "merged", advance=told.append)
    assert sum(told) == sum(2 * math.prod(shape) for shape in SHAPES.values())


@pytest.mark.slow
@pytest.mark.parametrize("family_name", ["qwen2_vl", "qwen2_5_vl"])
def test_vision_language_models_need_no_architecture_table(tmp_path: Path, family_name: str) -> None:
    """Tiny ones with random weights, saved by transformers in several shards, merged, and opened by transformers again."""
    import transformers

    config, make = tiny_vision_language(family_name, transformers)
    folders = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = make(config).bfloat16()
        folder = tmp_path / f"m{seed}"

        def fill(aside: Path, model: torch.nn.Module = model) -> None:
            model.save_pretrained(aside, max_shard_size="100KB")  # type: ignore[operator]

        mother = (checkpoint.read_card(folders[0]).checkpoint_id,) if folders else ()
        checkpoint.write(folder, fill, stage=f"m{seed}", iteration="0001", parents=mother)
        folders.append(folder)
    base, *parents = folders
    assert len(list(base.glob("*.safetensors"))) > 1
    merge(parents, (0.5, 0.5), tmp_path / "merged")
    merge(parents, (0.5, 0.5), tmp_path / "trimmed", MethodConfig(method="ties"), base=base)
    first, second, merged = (make.from_pretrained(folder, dtype=torch.bfloat16).state_dict() for folder in (*parents, tmp_path / "merged"))
    assert any("visual" in name for name in merged)
    for name, tensor in merged.items():
        assert torch.equal(tensor, (first[name].float() * 0.5 + second[name].float() * 0.5).bfloat16()), name
    assert make.from_pretrained(tmp_path / "trimmed").num_parameters() > 0


def tiny_vision_language(family_name: str, transformers: ModuleType) -> tuple[Any, Any]:
    """A configuration of a few thousand parameters, and its model class."""
    text = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 300, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10_000.0},
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    tokens = {"image_token_id": 290, "video_token_id": 291, "vision_start_token_id": 292, "vision_end_token_id": 293}
    if family_name == "qwen2_vl":
        vision = {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 32, "patch_size": 14, "mlp_ratio": 2}
        config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **tokens)
        return config, transformers.Qwen2VLForConditionalGeneration
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32, "fullatt_block_indexes": [1]}
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **tokens)
    return config, transformers.Qwen2_5_VLForConditionalGeneration


MERGEKIT = Path(__file__).parents[2] / ".bench/mergekit/bin/mergekit-yaml"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not MERGEKIT.exists(), reason="mergekit's venv is not there; benchmarks/merge.py makes it")
def test_mergekit_writes_the_same_bytes(tmp_path: Path) -> None:
    """Linear with fused products and task arithmetic in full; TIES where no two magnitudes at its threshold are equal."""
    generator = torch.Generator().manual_seed(5)
    shapes = {"model.embed_tokens.weight": (96, 16), "model.norm.weight": (16,)}
    names = {"self_attn.q_proj": (16, 16), "self_attn.k_proj": (16, 16), "self_attn.v_proj": (16, 16), "self_attn.o_proj": (16, 16)}
    names |= {"mlp.gate_proj": (32, 16), "mlp.up_proj": (32, 16), "mlp.down_proj": (16, 32)}
    shapes |= {f"model.layers.0.{name}.weight": shape for name, shape in names.items()}
    shapes |= {f"model.layers.0.{name}.weight": (16,) for name in ("input_layernorm", "post_attention_layernorm")}
    base = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    llama = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 96, "tie_word_embeddings": True, "head_dim": 8,
    }  # fmt: skip

    def write(name: str, tensors: dict[str, Tensor], parents: tuple[str, ...]) -> Path:
        def fill(aside: Path) -> None:
            (aside / "config.json").write_text(json.dumps(llama))
            save_file(tensors, aside / "model.safetensors", metadata={"format": "pt"})

        checkpoint.write(tmp_path / name, fill, stage=name, iteration="0001", parents=parents)
        return tmp_path / name

    root = write("base", base, ())
    mother = (checkpoint.read_card(root).checkpoint_id,)
    weights = (0.5, 0.3, 0.2)
    parents = [
        write(f"p{k}", {name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator) for name, tensor in base.items()}, mother)
        for k in range(3)
    ]
    for config in (MethodConfig(fused=True), MethodConfig(method="task_arithmetic", scale=1.5), MethodConfig(method="ties", density=0.3)):
        recipe = {
            "merge_method": config.method, "dtype": "float32",
            "models": [
                {"model": str(parent), "parameters": {"weight": weight, **({"density": 0.3} if config.method == "ties" else {})}}
                for parent, weight in zip(parents, weights, strict=True)
            ],
            **({} if config.fused else {"base_model": str(root), "parameters": {"lambda": config.scale}}),
        }  # fmt: skip
        (tmp_path / "recipe.yml").write_text(json.dumps(recipe))  # JSON is YAML
        theirs = tmp_path / f"theirs-{config.method}"
        subprocess.run([MERGEKIT, tmp_path / "recipe.yml", theirs], check=True, capture_output=True)
        merge(parents, weights, tmp_path / "ours", config, base=root)
        ours = read_all(tmp_path / "ours")
        for name, tensor in read_all(theirs).items():
            assert torch.equal(tensor, ours[name]), (config.method, name)
