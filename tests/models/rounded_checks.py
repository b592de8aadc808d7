"""What holds of models whose linear layers are rounded; test_quantised.py runs these where torchao is."""

from __future__ import annotations

import asyncio
import copy
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Qwen2ForCausalLM

from agent.policy.policy import Sampling
from benchmarks.generation import IdCodec, prompt_of
from benchmarks.quantised import model_of, weight_bytes
from models.engine.embedded import EmbeddedEngine
from models.engine.hf_backend import HuggingFaceBackend
from models.engine.quantised import QuantisedLinears
from models.engine.settings import EngineSettings, Quantisation
from models.families.tiny_vision import page_vision_policy
from warehouse.core.errors import ModelError

IDS = torch.randint(1, 8000, (2, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def full() -> Qwen2ForCausalLM:
    return model_of(128, 2)


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(IDS).logits
        return found


@pytest.mark.parametrize(("kind", "most"), [("int8", 1e-3), ("int4", 0.3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_handed_over_is_rounded_as_what_was_opened(full: Qwen2ForCausalLM, kind: Quantisation, most: float, dtype: Any) -> None:
    original = copy.deepcopy(full).to(dtype)  # type: ignore[arg-type]
    state = {name: tensor.clone() for name, tensor in original.state_dict().items()}
    expected = logits(original).float().log_softmax(dim=-1)
    backend = HuggingFaceBackend(original, frozenset([1]), kind)
    rounded = logits(original)
    away = (expected.exp() * (expected - rounded.float().log_softmax(dim=-1))).sum(dim=-1).mean()
    assert 0 < float(away) < most * (1 if dtype == torch.float32 else 10)
    backend.load({name: 2 * tensor for name, tensor in state.items()})
    assert not torch.equal(logits(original), rounded)
    for wrong in ({**state, "extra": IDS}, {**state, "model.layers.0.mlp.up_proj.weight": IDS}):
        with pytest.raises(ModelError, match="do not match"):
            backend.load(wrong)
    backend.load({name: tensor for name, tensor in state.items() if name != "lm_head.weight"})  # tied
    assert torch.equal(logits(original), rounded)


def test_the_engine_takes_a_byte_a_weight_and_takes_new_ones(full: Qwen2ForCausalLM) -> None:
    linear = sum(layer.weight.nbytes for layer in full.model.modules() if isinstance(layer, nn.Linear))
    rest = sum(parameter.nbytes for parameter in full.parameters()) - linear
    with closing(EmbeddedEngine(full, IdCodec(), "checkpoint-0", settings=EngineSettings(quantisation="int8"))) as engine:
        assert linear / 4 < weight_bytes(engine) - rest < 0.3 * linear
        engine.load_weights({name: 2 * tensor for name, tensor in full.state_dict().items()}, "checkpoint-1", version=1)
        assert (engine.policy_id, engine.version) == ("checkpoint-1", 1)
        [answer] = _act(engine)
    assert len(answer.token_ids) == 4 and answer.versions == (1,) * 4


def _act(engine: EmbeddedEngine) -> list[Any]:
    return asyncio.run(engine.act([prompt_of([5, 6, 7], Sampling(temperature=1.0, max_new_tokens=4, seed=0), None)]))


def test_a_vision_tower_and_what_four_bits_do_not_fit_stay_as_they_are() -> None:
    model, _ = page_vision_policy(("click",), 0)
    layer = model.model.language_model.layers[0].mlp
    layer.down_proj, layer.up_proj = nn.Linear(520, 192, bias=False), nn.Linear(192, 520, bias=False)
    HuggingFaceBackend(model, frozenset([1]), "int4")
    towers = [child.weight for child in model.model.visual.modules() if isinstance(child, nn.Linear)]
    assert towers and all(type(weight) is nn.Parameter for weight in (*towers, layer.down_proj.weight))
    assert type(layer.up_proj.weight) is not nn.Parameter, "rounded"


def test_a_model_without_layers_that_fit_is_refused() -> None:
    model = model_of(64, 1)
    for name, child in list(model.model.named_modules()):
        if isinstance(child, nn.Linear):
            parent = model.model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], nn.Linear(40, child.out_features))
    with pytest.raises(ModelError, match="no linear layers that int4 fits"):
        QuantisedLinears(model, "int4")
