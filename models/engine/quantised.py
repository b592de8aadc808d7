"""Linear layers with weights of 8 or 4 bits and activations of 8, by torchao, for a model that only answers: W8A8, and the rounding of the
W4A8 that UI-TARS-2 serves with (arXiv 2509.02544, section 2.5).

Weights are rounded once, when they are loaded, with a scale for each output (8 bits) or each 32 inputs (4 bits); activations at each call,
with a scale for each token. The decoder's linear layers are rounded; a vision tower, embeddings, the output layer and norms stay as they
are, and so does at 4 bits a layer whose inputs are not a multiple of 32. What is handed over later is rounded the same way.

torchao multiplies 8-bit weights as integers. Its 4-bit layers outside a few GPUs only round: each weight takes a byte, and the product is
one of full precision, so they say what 4 bits do to answers and save no time. benchmarks/quantised.py measures both.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.engine.backend import copy_weight, load_whole
from models.engine.settings import Quantisation
from models.training.adapters import is_vision
from warehouse.core.errors import ConfigError, ModelError, missing_extra

GROUP = 32
"""Inputs that share a scale at 4 bits."""


class QuantisedLinears:
    """The linear layers of a model, which it changes; the model is the caller's own."""

    def __init__(self, model: PreTrainedModel, quantisation: Quantisation) -> None:
        """Raises ModelError for a model without layers to round, and ConfigError where torchao is not installed."""
        self._model, self._config = model, _config(quantisation)
        head = model.get_output_embeddings()
        self._layers = {
            name: layer
            for name, layer in model.named_modules()
            if type(layer) is nn.Linear
            and layer is not head
            and not is_vision(name)
            and (quantisation == "int8" or not layer.in_features % GROUP)
        }
        if not self._layers:
            raise ModelError(f"{type(model).__name__} has no linear layers that {quantisation} fits: leave quantisation out")
        for layer in self._layers.values():
            self._round(layer)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """As `load_whole`."""

        def store(name: str, own: Tensor, given: Tensor) -> None:
            layer = self._layers.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
            if layer is None:
                copy_weight(name, own, given)
                return
            # `own` is rounded: it has the type, shape and place of what it was made of
            layer.weight = nn.Parameter(given.detach().to(own.device, own.dtype, copy=True), requires_grad=False)
            self._round(layer)

        load_whole(cast("nn.Module", self._model), state, store)

    def _round(self, layer: nn.Linear) -> None:
        from torchao.quantization import quantize_

        quantize_(layer, self._config)


def _config(quantisation: Quantisation) -> Any:
    logging.getLogger("torchao").setLevel(logging.ERROR)  # it warns of each of its GPU libraries that does not load
    try:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8DynamicActivationIntxWeightConfig
        from torchao.quantization.granularity import PerGroup
    except ModuleNotFoundError as error:
        raise ConfigError(missing_extra(error.name, "quantised")) from error
    if quantisation == "int8":
        return Int8DynamicActivationInt8WeightConfig()
    four_bits: Any = torch.int4  # type: ignore[attr-defined]
    return Int8DynamicActivationIntxWeightConfig(weight_dtype=four_bits, weight_granularity=PerGroup(GROUP))
