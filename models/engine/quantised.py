"""Linear layers with weights of 8 or 4 bits and activations of 8, by torchao, for a model that only answers: W8A8, and the W4A8 that
UI-TARS-2 serves with (arXiv 2509.02544, section 2.5).

Weights are rounded once, when they are loaded, with a scale for each output (8 bits) or each 32 inputs (4 bits); activations at each call,
with a scale for each token. Embeddings, the output layer, norms and convolutions stay as they are. What is handed over later is rounded
the same way. benchmarks/quantised.py measures speed, memory and what it does to answers.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.engine.backend import copy_weight, load_whole
from models.engine.settings import Quantisation
from warehouse.core.errors import ConfigError, ModelError, missing_extra

GROUP = 32
"""Inputs that share a scale at 4 bits."""


class QuantisedLinears:
    """The linear layers of a model, which it changes; the model is the caller's own."""

    def __init__(self, model: PreTrainedModel, quantisation: Quantisation) -> None:
        """Raises ModelError for a model that has none, or whose layers 4 bits do not fit, and ConfigError where torchao is not
        installed."""
        self._model, self._config = model, _config(quantisation)
        head = model.get_output_embeddings()
        self._layers = {name: child for name, child in model.named_modules() if type(child) is nn.Linear and child is not head}
        if not self._layers:
            raise ModelError(f"{type(model).__name__} has no linear layers to quantise: set engine.settings.quantisation to none")
        odd = [f"{name} ({layer.in_features})" for name, layer in self._layers.items() if layer.in_features % GROUP]
        if quantisation == "int4" and odd:
            raise ModelError(f"int4 shares scales over {GROUP} inputs, and of {len(odd)} layers as {odd[0]} they are no multiple: use int8")
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
        with _quietly():
            from torchao.quantization import quantize_

            quantize_(layer, self._config)


def weight_bytes(model: nn.Module) -> int:
    """What the parameters take in memory, rounded ones among them; shared ones once."""
    return sum(part.nbytes for parameter in model.parameters() for part in _parts(parameter))


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    names = getattr(type(tensor), "tensor_data_names", None)
    if names is None:
        yield tensor
        return
    optional = getattr(type(tensor), "optional_tensor_data_names", [])
    for name in (*names, *optional):
        part = getattr(tensor, name)
        if isinstance(part, Tensor):
            yield from _parts(part)


def _config(quantisation: Quantisation) -> Any:
    try:
        with _quietly():
            from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8DynamicActivationIntxWeightConfig
            from torchao.quantization.granularity import PerGroup
    except ModuleNotFoundError as error:
        raise ConfigError(missing_extra(error.name, "quantised")) from error
    if quantisation == "int8":
        return Int8DynamicActivationInt8WeightConfig()
    four_bits: Any = torch.int4  # type: ignore[attr-defined]
    return Int8DynamicActivationIntxWeightConfig(weight_dtype=four_bits, weight_granularity=PerGroup(GROUP))


@contextmanager
def _quietly() -> Iterator[None]:
    """torchao logs each of its GPU libraries that does not load here, and warns of names of its own that are old."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
