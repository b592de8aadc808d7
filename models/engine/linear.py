"""Products with weight matrices on a CPU, in float32, by the library and from the order in memory that are fastest there.

PyTorch's own way is MKL on a matrix as training has it, row after row. Answers are a few rows at a time, for which MKL is 1.2 to 1.8 times
as fast where the matrix lies in memory column after column, on an Intel Xeon with AVX-512. On an AMD EPYC with AVX-512 MKL reaches half of
what oneDNN does; there products go through oneDNN, but the small ones, for a call of it costs a little more. benchmarks/generation.py
--part products measures it. Other types, other devices and a PyTorch without oneDNN go the ordinary way.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

SMALLEST_WORK = 800_000
"""Multiplications from which on oneDNN is the faster one."""
UNPACKED_ROWS = 64
"""Where weights are not kept in oneDNN's own order as well, they are reordered at each call: that pays from so many rows on."""
MOST_PACKED_BYTES = 2**30
"""Models with more weights than this are not kept twice."""


class Weight:
    """A matrix (out, in) to multiply with, and what is added then. They must not change afterwards. `pack`: keep a copy of the matrix in
    the order that is fastest to multiply with, where there is one."""

    __slots__ = ("_packed", "bias", "matrix")

    def __init__(self, matrix: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> None:
        self.matrix, self.bias = matrix, bias
        self._packed: Tensor | None = None
        if not is_arranged(matrix):
            return
        if is_intel():
            self.matrix = matrix.t().contiguous().t() if pack else matrix
        elif has_onednn():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(matrix) if pack else matrix

    def __call__(self, x: Tensor) -> Tensor:
        """x (…, in) times the matrix, plus the bias: (…, out)."""
        if self._packed is not None:
            num_rows = x.numel() // x.shape[-1]
            if num_rows * self.matrix.numel() >= SMALLEST_WORK and (self._packed is not self.matrix or num_rows >= UNPACKED_ROWS):
                product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
                return product
        return functional.linear(x, self.matrix, self.bias)


def is_arranged(matrix: Tensor) -> bool:
    """Whether products with this matrix may gain by another library or order than the ordinary ones."""
    return matrix.device.type == "cpu" and matrix.dtype == torch.float32


@cache
def is_intel() -> bool:
    """Whether MKL is on its own ground."""
    return "Intel" in str(torch.cpu.get_capabilities().get("cpu_name"))


@cache
def has_onednn() -> bool:
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


class _PackedLinear(nn.Linear):
    """A linear layer whose product goes through a Weight. Shares its parameters with the layer it stands for."""

    packed: Weight | None = None

    @classmethod
    def of(cls, layer: nn.Linear) -> _PackedLinear:
        made = cls(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        made.weight, made.bias = layer.weight, layer.bias
        return made.train(layer.training)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if self.packed is None else self.packed(input)


def pack_linears(model: nn.Module) -> None:
    """Have a model that is only evaluated multiply by Weights; again after its weights changed. Changes the model."""
    layers = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear) and type(child) in (nn.Linear, _PackedLinear) and is_arranged(child.weight)
    ]
    fits = sum(layer.weight.numel() * layer.weight.element_size() for _, _, layer in layers) <= MOST_PACKED_BYTES
    for parent, name, layer in layers:
        packed = layer if isinstance(layer, _PackedLinear) else _PackedLinear.of(layer)
        packed.packed = Weight(layer.weight.detach(), None if layer.bias is None else layer.bias.detach(), pack=fits)
        setattr(parent, name, packed)
