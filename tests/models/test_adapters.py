"""Adapters, frozen parts and gradient checkpointing: what is learned, and that a checkpoint comes out whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import PreTrainedModel

from agent.policy.policy import Message
from models.checkpoints.checkpoint import verify
from models.families.registry import load_policy
from models.families.tiny_vision import tiny_vision_policy
from models.supervised.config import SupervisedConfig
from models.supervised.run import train_supervised
from models.supervised.training_set import TrainingSample
from models.training.adapter_config import AdapterConfig
from models.training.adapters import has_adapters, merge_adapters, merged_state, prepare_for_training, save_adapter, without_adapters
from models.training.forward import hidden_where
from tests.models.conftest import small_model
from warehouse.core.errors import ConfigError

ASKED_BY_AN_OLD_NAME = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
"""peft's own model class asks so; the layers that we use of it do not."""
IDS = torch.tensor([[5, 6, 7, 8, 9, 5, 6]])
EVERYWHERE = torch.ones_like(IDS, dtype=torch.bool)
SAMPLES = [TrainingSample(messages=(Message(role="user", content="Find Ok"), Message(role="assistant", content="see Submit", loss=1.0)))]
LORA = {"steps": 4, "warmup_steps": 1, "learning_rate": 1e-2, "batch_tokens": 64, "save_every": 2, "log_every": 1, "lora_rank": 4}


def adapted(**fields: Any) -> PreTrainedModel:
    """A small model whose adapters have learned something."""
    model = small_model()[0]
    prepare_for_training(model, AdapterConfig(lora_rank=4, **fields), seed=1)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    return model.eval()


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=IDS).logits
    return found


def test_an_adapter_changes_nothing_at_first_and_is_all_that_is_trained() -> None:
    plain, model = small_model()[0], small_model()[0]
    prepare_for_training(model, AdapterConfig(lora_rank=4), seed=0)
    torch.testing.assert_close(logits(model), logits(plain))
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    other = small_model()[0]
    prepare_for_training(other, AdapterConfig(lora_rank=4), seed=0)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_merged_weights_are_an_ordinary_models() -> None:
    model, plain = adapted(), small_model()[0]
    before = logits(model)
    assert not torch.allclose(before, logits(plain), atol=1e-2)
    state = merged_state(model)
    assert state.keys() == plain.state_dict().keys()
    plain.load_state_dict(state)
    torch.testing.assert_close(logits(plain), before, atol=1e-5, rtol=1e-5)
    whole = without_adapters(model)
    assert has_adapters(model) and not has_adapters(whole) and without_adapters(whole) is whole
    torch.testing.assert_close(logits(whole), before, atol=1e-5, rtol=1e-5)
    merge_adapters(model)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_training_computes_with_the_adapter() -> None:
    """The fast forward pass of ShiftQwen3 reads weights by name: it must not read past an adapter."""
    model = adapted()
    found = hidden_where(model, IDS, EVERYWHERE)
    expected = model.model(input_ids=IDS).last_hidden_state[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@ASKED_BY_AN_OLD_NAME
def test_a_saved_adapter_opens_with_peft(tmp_path: Path) -> None:
    model = adapted()
    save_adapter(model.state_dict(), tmp_path / "adapter", AdapterConfig(lora_rank=4))
    opened = PeftModel.from_pretrained(small_model()[0], tmp_path / "adapter")
    torch.testing.assert_close(logits(opened), logits(model), atol=1e-5, rtol=1e-5)  # type: ignore[arg-type]


def test_frozen_weights_may_be_bfloat16_and_updates_are_not() -> None:
    model = adapted(lora_base_dtype="bfloat16")
    kinds = {parameter.dtype for name, parameter in model.named_parameters() if "lora_" in name}
    assert kinds == {torch.float32} and model.get_input_embeddings().weight.dtype == torch.bfloat16
    assert merged_state(model)["model.layers.0.self_attn.q_proj.weight"].dtype == torch.bfloat16
    assert logits(model).isfinite().all()


def test_layers_that_no_target_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="lora_targets w_nowhere match no layer of ShiftQwen3ForCausalLM"):
        prepare_for_training(small_model()[0], AdapterConfig(lora_rank=4, lora_targets=("w_nowhere",)))


def test_the_vision_tower_can_be_frozen() -> None:
    model, _ = tiny_vision_policy((), 0, num_hidden_layers=1)
    prepare_for_training(model, AdapterConfig(train_vision=False))
    frozen = {name.split(".")[1] for name, parameter in model.named_parameters() if not parameter.requires_grad}
    trained = {name.split(".")[1] for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert frozen == {"visual"} and "language_model" in trained and "visual" not in trained


def test_gradient_checkpointing_changes_no_gradient() -> None:
    def gradients(**fields: bool) -> list[torch.Tensor]:
        model = small_model()[0]
        prepare_for_training(model, AdapterConfig(**fields))
        model.train()
        hidden_where(model, IDS, EVERYWHERE).square().sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    for kept, computed_again in zip(gradients(), gradients(gradient_checkpointing=True), strict=True):
        torch.testing.assert_close(kept, computed_again, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@ASKED_BY_AN_OLD_NAME
def test_a_run_with_adapters_ends_in_a_whole_checkpoint_and_resumes_to_the_bit(seed_checkpoint: Path, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(progress: Any) -> None:
        if progress.step == 3:
            raise Cut

    def run(name: str, **more: Any) -> str:
        card = train_supervised(
            SupervisedConfig(**LORA), SAMPLES, init=seed_checkpoint, output=tmp_path / name, stage="sft_model", iteration="0001", **more
        )
        return card.checkpoint_id

    whole = run("whole")
    with pytest.raises(Cut):
        run("cut", on_progress=cut)
    assert run("cut") == whole
    assert not any("lora" in name for name in verify(tmp_path / "whole").files)
    described = json.loads((tmp_path / "whole" / "adapter" / "adapter_config.json").read_text())
    assert described["r"] == 4 and described["lora_alpha"] == 32.0
    seed, learned = load_policy(seed_checkpoint), load_policy(tmp_path / "whole")
    changed = {name for name, tensor in learned.state_dict().items() if not torch.equal(tensor, seed.state_dict()[name])}
    assert changed and all(name.rsplit(".", 2)[1].endswith("_proj") for name in changed)
    opened = PeftModel.from_pretrained(seed, tmp_path / "whole" / "adapter")
    torch.testing.assert_close(logits(opened), logits(learned), atol=1e-5, rtol=1e-5)  # type: ignore[arg-type]
