"""The formulas against published figures, and against what a real training of a tiny model allocates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen2VLForConditionalGeneration

from models.families.seed_policy import seed_policy
from models.families.shapes import KNOWN_CONFIGS, ModelShape, shape_of
from models.families.tiny_vision import tiny_vision_config, vision_tokenizer
from models.rl.value.critic import Critic
from models.training.adapter_config import AdapterConfig
from models.training.adapters import prepare_for_training
from models.training.estimates import (
    FLOAT32,
    MIXED_FLOAT32_GRADIENTS,
    activation_bytes,
    compute_seconds,
    critic_parameters,
    decode_step_seconds,
    forward_flops,
    kv_cache_bytes,
    model_states,
    policy_parameters,
    training_flops,
    training_memory,
)

UI_TARS = shape_of(KNOWN_CONFIGS["ByteDance-Seed/UI-TARS-1.5-7B"])
GB = 1e9


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_zero_as_in_its_papers_figure_one(stage: int, gigabytes: float) -> None:
    """7.5 billion parameters on 64 processes, mixed-precision Adam: 120, 31.4, 16.6 and 1.9 GB."""
    assert sum(model_states(7.5e9, stage=stage, num_processes=64)) / GB == pytest.approx(gigabytes, rel=0.01)


@pytest.mark.long
def test_deepspeeds_own_estimate_of_stage_three() -> None:
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

    largest = UI_TARS.vocab_size * UI_TARS.hidden_size
    _, gpu, _ = estimate_zero3_model_states_mem_needs(UI_TARS.num_parameters, largest, 8, 1, False, False, True)
    ours = sum(model_states(UI_TARS.num_parameters, stage=3, num_processes=8, bytes_each=MIXED_FLOAT32_GRADIENTS))
    assert ours + 4 * largest == pytest.approx(gpu, rel=1e-6), "it counts the largest layer once, in weights and gradients"


def test_a_low_rank_adapter_keeps_states_of_what_it_trains_alone() -> None:
    weights, gradients, optimizer = model_states(10e6, num_frozen=2e9, stage=0, num_processes=1)
    assert (weights, gradients, optimizer) == (2 * 2.01e9, 2 * 10e6, 12 * 10e6)
    with pytest.raises(ValueError, match="stage 4"):
        model_states(1, stage=4, num_processes=1)


def test_key_value_cache_of_opt_13b_as_paged_attention_tells_it() -> None:
    opt = ModelShape(
        model_type="opt",
        hidden_size=5120,
        intermediate_size=20480,
        num_layers=40,
        num_heads=40,
        num_kv_heads=40,
        head_dim=128,
        vocab_size=50272,
        is_tied=True,
        max_positions=2048,
        layer_parameters=0,
        other_parameters=0,
    )
    assert kv_cache_bytes(opt, 1) == 819_200
    assert kv_cache_bytes(UI_TARS, 1) == 57_344, "grouped queries: four of 28 heads"


def test_checkpointing_trades_memory_for_a_second_forward_pass() -> None:
    kept, recomputed = (activation_bytes(UI_TARS, 8192, checkpointing=on) for on in (False, True))
    assert recomputed < kept / 10
    assert training_flops(UI_TARS, 100, context=1000, checkpointing=True) == pytest.approx(
        4 / 3 * training_flops(UI_TARS, 100, context=1000)
    )


def test_operations_are_six_a_parameter_and_token() -> None:
    assert training_flops(UI_TARS, 1, context=0) == 6 * UI_TARS.matmul_parameters
    assert forward_flops(UI_TARS, 0, context=0, num_patches=4) == 2 * UI_TARS.vision.num_parameters * 4  # type: ignore[union-attr]
    assert compute_seconds(1e15, peak_flops=1e15, utilisation=0.5, num_devices=2) == 1.0


def test_one_sequence_is_bound_by_memory_and_many_by_arithmetic() -> None:
    card = {"bandwidth": 3.35e12, "peak_flops": 989e12, "utilisation": 0.5}
    alone = decode_step_seconds(UI_TARS, batch=1, context=1, **card)
    assert alone == pytest.approx(2 * UI_TARS.text_parameters / 3.35e12, rel=1e-3)
    assert decode_step_seconds(UI_TARS, batch=32, context=1, **card) == pytest.approx(alone, rel=0.01)
    assert decode_step_seconds(UI_TARS, batch=4096, context=1, **card) > 10 * alone


class Held:
    """Bytes that autograd keeps for a backward pass, each storage once."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self.storages[storage.data_ptr()] = storage.nbytes()
        return tensor


def test_activations_of_the_tiny_model_are_what_autograd_keeps() -> None:
    """Within a third: the formula counts the vectors of each layer; the token shift and Qwen3's norms of queries and keys come on top."""
    model, _ = seed_policy(("click", "button", "ok"), seed=0)
    shape = shape_of(model.config.to_dict())
    ids = torch.randint(5, 60, (4, 256))
    held = Held()
    with torch.autograd.graph.saved_tensors_hooks(held.pack, lambda tensor: tensor):
        hidden = model.model(input_ids=ids).last_hidden_state
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = sum(size for pointer, size in held.storages.items() if pointer not in own)
    del hidden
    estimate = activation_bytes(shape, ids.numel(), checkpointing=False, bytes_each=4)
    assert estimate < kept < estimate * 4 / 3, (kept, estimate)


def test_optimizer_and_gradients_of_the_tiny_model_are_counted_to_the_byte() -> None:
    model, _ = seed_policy(("click", "button", "ok"), seed=0)
    shape = shape_of(model.config.to_dict())
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.randint(5, 60, (1, 8))).logits.sum().backward()
    optimizer.step()
    memory = training_memory(shape, stage=0, num_processes=1, num_tokens=8, num_learned=8, checkpointing=False, bytes_each=FLOAT32)
    moments = [value for state in optimizer.state.values() for name, value in state.items() if name != "step"]
    assert sum(tensor.nbytes for tensor in moments) == memory.optimizer
    assert sum(parameter.nbytes for parameter in model.parameters()) == memory.weights
    assert sum(parameter.grad.nbytes for parameter in model.parameters() if parameter.grad is not None) == memory.gradients


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize(
    "settings", [{"lora_rank": 4, "train_vision": False}, {"lora_rank": 4, "lora_base_dtype": "bfloat16"}, {"train_vision": False}, {}]
)
def test_policy_and_critic_train_as_many_parameters_as_the_plan_counts(settings: dict[str, Any], is_tied: bool) -> None:
    described = tiny_vision_config(vision_tokenizer(()))
    described.tie_word_embeddings = is_tied
    model = Qwen2VLForConditionalGeneration(described)
    shape, config = shape_of(model.config.to_dict()), AdapterConfig(**settings)
    critic = Critic.of_policy(model, config)
    prepare_for_training(model, config)
    for module, planned in ((model, policy_parameters(shape, config)), (critic, critic_parameters(shape, config))):
        assert sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad) == planned
    trained = {id(p) for module in (model, critic) for p in module.parameters() if p.requires_grad}
    frozen = {p.data_ptr() for module in (model, critic) for p in module.parameters() if id(p) not in trained}
    assert len(frozen) == len([p for p in model.parameters() if not p.requires_grad]), "what is frozen is in memory once"
