"""Merges held to what other programs make of them: transformers opens a merged vision-language model, mergekit writes the same bytes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from models.checkpoints import checkpoint
from models.merging.config import MethodConfig
from models.merging.merge import merge
from tests.models.merge_helpers import read_all


@pytest.mark.long
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
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10_000.0},
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    tokens = {"image_token_id": 290, "video_token_id": 291, "vision_start_token_id": 292, "vision_end_token_id": 293}
    if family_name == "qwen2_vl":
        vision = {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 32, "patch_size": 14, "mlp_ratio": 2}
        config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **tokens)
        return config, transformers.Qwen2VLForConditionalGeneration
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32, "fullatt_block_indexes": [1]}
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **tokens)
    return config, transformers.Qwen2_5_VLForConditionalGeneration


MERGEKIT = Path(__file__).parents[2] / ".bench/mergekit/bin/mergekit-yaml"


@pytest.mark.long
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
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        "tie_word_embeddings": True,
        "head_dim": 8,
    }

    def write(name: str, tensors: dict[str, torch.Tensor], parents: tuple[str, ...]) -> Path:
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
            "merge_method": config.method,
            "dtype": "float32",
            "models": [
                {"model": str(parent), "parameters": {"weight": weight, **({"density": 0.3} if config.method == "ties" else {})}}
                for parent, weight in zip(parents, weights, strict=True)
            ],
            **({} if config.fused else {"base_model": str(root), "parameters": {"lambda": config.scale}}),
        }
        (tmp_path / "recipe.yml").write_text(json.dumps(recipe))  # JSON is YAML
        theirs = tmp_path / f"theirs-{config.method}"
        subprocess.run([MERGEKIT, tmp_path / "recipe.yml", theirs], check=True, capture_output=True)
        merge(parents, weights, tmp_path / "ours", config, base=root)
        ours = read_all(tmp_path / "ours")
        for name, tensor in read_all(theirs).items():
            assert torch.equal(tensor, ours[name]), (config.method, name)
