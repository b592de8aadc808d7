"""Low-rank adapters, frozen parts and gradient checkpointing: what an AdapterConfig does to a model, and how its weights come out again as
an ordinary checkpoint's, so that serving and merging never see an adapter.

Adapters are put into the model's own layers (peft); its class, its names and its forward stay.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from models.training.adapter_config import AdapterConfig
from warehouse.core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADAPTER_FOLDER = "adapter"
"""In a checkpoint's folder: what was learned alone, as peft reads it."""
VISION_TOWERS = ("visual", "vision_model", "vision_tower")
_NAME = "default"


def prepare_for_training(model: PreTrainedModel, config: AdapterConfig, *, seed: int = 0) -> None:
    """Put adapters into the model, freeze what is not trained, and switch gradient checkpointing on, all in place. `seed` gives the
    adapters' first weights; their updates are zero at first. Raises ConfigError when no layer has a name of `lora_targets`."""
    if config.lora_rank:
        _insert_adapters(model, config, seed)
    if not config.train_vision:
        for name, parameter in model.named_parameters():
            if is_vision(name):
                parameter.requires_grad_(False)
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})


def _insert_adapters(model: PreTrainedModel, config: AdapterConfig, seed: int) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    if config.lora_base_dtype == "bfloat16":
        model.to(dtype=torch.bfloat16)  # type: ignore[call-arg]
    described = LoraConfig(**_described(config))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(described, model, adapter_name=_NAME)
        except ValueError as error:
            raise ConfigError(f"lora_targets {', '.join(config.lora_targets)} match no layer of {type(model).__name__}: {error}") from error
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()


def is_frozen(name: str, config: AdapterConfig) -> bool:
    """Whether a weight of the model as it is before `prepare_for_training` stays what it is in training."""
    return bool(config.lora_rank) or (not config.train_vision and is_vision(name))


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """What an optimizer is given: all but the frozen weights."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def is_vision(name: str) -> bool:
    """Whether a weight or module of that name is of the vision tower."""
    return bool(set(name.split(".")) & set(VISION_TOWERS))


def has_adapters(model: nn.Module) -> bool:
    """Whether a layer's weight is not all that it computes with."""
    return any(True for _ in _adapted(model))


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The model's weights as if it had been trained without adapters: names and shapes of an ordinary checkpoint, updates added in. Without
    adapters it is `state_dict()`. The model is left as it is."""
    return {name: compute() for name, _, compute in merged_parts(model)}


Part = tuple[str, list[Tensor], Callable[[], Tensor]]
"""A name, the model's tensors that are needed, and what it stands for, computed from them."""


def merged_parts(model: nn.Module) -> list[Part]:
    """The same, part by part."""
    layers, found = dict(_adapted(model)), list[Part]()
    for name, tensor in model.state_dict(keep_vars=True).items():
        owner, _, rest = name.rpartition(".base_layer.")
        if owner and owner in layers and rest == "weight":
            found.append((f"{owner}.{rest}", list(layers[owner].parameters()), partial(_merged, layers[owner], tensor)))
        elif owner and owner in layers:
            found.append((f"{owner}.{rest}", [tensor], tensor.detach))
        elif not any(part.startswith("lora_") for part in name.split(".")):
            found.append((name, [tensor], tensor.detach))
    return found


def _merged(layer: Any, weight: Tensor) -> Tensor:
    merged: Tensor = weight + layer.get_delta_weight(_NAME).to(weight.dtype)
    return merged.detach()


def adapter_parts(model: nn.Module) -> list[Part]:
    """The tensors of the adapters, by their names in the model."""
    return [(name, [tensor], tensor.detach) for name, tensor in model.state_dict(keep_vars=True).items() if "lora_" in name]


def merge_adapters(model: nn.Module) -> None:
    """Add the updates to the weights and take the adapters out of the model again, in place."""
    for name, layer in list(_adapted(model)):
        layer.merge()
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, layer.get_base_layer())
    if hasattr(model, "peft_config"):
        del model.peft_config


def without_adapters(model: PreTrainedModel) -> PreTrainedModel:
    """The model itself where it has none; else a copy with the updates added in."""
    if not has_adapters(model):
        return model
    whole = copy.deepcopy(model)
    merge_adapters(whole)
    return whole


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Within, the model computes as if nothing had been learned, in evaluation mode; what is trained and its gradients stay."""
    layers, was_training = [layer for _, layer in _adapted(model)], model.training
    model.eval()
    for layer in layers:
        layer._disable_adapters = True  # enable_adapters(False) would also freeze them, and thaw frozen ones afterwards
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
        model.train(was_training)


def save_adapter(state: Mapping[str, Tensor], folder: Path, config: AdapterConfig) -> None:
    """Write the adapters alone, as peft reads them, given a model's state of before `merge_adapters`."""
    from peft import LoraConfig
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    learned = {
        f"base_model.model.{name.replace(f'.{_NAME}', '')}": tensor.detach().cpu().contiguous()
        for name, tensor in state.items()
        if "lora_" in name
    }
    save_file(learned, folder / "adapter_model.safetensors")
    LoraConfig(**_described(config)).save_pretrained(str(folder))


def _described(config: AdapterConfig) -> dict[str, Any]:
    targets = list(config.lora_targets)
    return {"r": config.lora_rank, "lora_alpha": config.lora_alpha, "lora_dropout": config.lora_dropout, "target_modules": targets}


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """(name, layer) of each layer that an adapter was put into."""
    if "peft" not in sys.modules:  # nobody has put one in
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            yield name, module
