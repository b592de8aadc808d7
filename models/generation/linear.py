"""Products with weight matrices on a CPU, in float32, by oneDNN where there is enough to do.

PyTorch's own way is MKL, which on an AMD EPYC with AVX-512 reaches half of what oneDNN does (benchmarks/generation.py --part products).
A call of oneDNN's costs a little more, so small products stay where they are; other types, other devices and a PyTorch without oneDNN go
the ordinary way.
"""

from __future__ import annotations

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
    """A matrix (out, in) to multiply with, and what is added then. They must not change afterwards."""

    __slots__ = ("_packed", "bias", "matrix")

    def __init__(self, matrix: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> None:
        self.matrix, self.bias = matrix, bias
        self._packed: Tensor | None = None
        if has_onednn(matrix):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(matrix) if pack else matrix

    def __call__(self, x: Tensor) -> Tensor:
        """x (…, in) times the matrix, plus the bias: (…, out)."""
        if self._packed is not None:
            num_rows = x.numel() // x.shape[-1]
            if num_rows * self.matrix.numel() >= SMALLEST_WORK and (self._packed is not self.matrix or num_rows >= UNPACKED_ROWS):
                product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
                return product
        return functional.linear(x, self.matrix, self.bias)


def has_onednn(matrix: Tensor) -> bool:
    """Whether a product with this matrix can go through oneDNN."""
    return (
        matrix.device.type == "cpu"
        and matrix.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
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
        if isinstance(child, nn.Linear) and type(child) in (nn.Linear, _PackedLinear) and has_onednn(child.weight)
    ]
    fits = sum(layer.weight.numel() * layer.weight.element_size() for _, _, layer in layers) <= MOST_PACKED_BYTES
    for parent, name, layer in layers:
        packed = layer if isinstance(layer, _PackedLinear) else _PackedLinear.of(layer)
        packed.packed = Weight(layer.weight.detach(), None if layer.bias is None else layer.bias.detach(), pack=fits)
        setattr(parent, name, packed)
