"""Linear interpolation: θ = Σ_k α_k θ_k / Σ_k α_k.

UI-TARS-2 (arXiv 2509.02544), section on parameter interpolation; model soups (arXiv 2203.05482). The weighted sum is taken in float32
(float64 for F64) in the order of the parents, divided by the sum of the weights, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.merging.config import MethodConfig
from models.merging.dtype_codec import Floats, Scratch
from models.merging.io import TensorJob


def merge_tensor(job: TensorJob, weights: Sequence[float], config: MethodConfig) -> None:
    for piece in job.pieces():
        if not job.copied(piece):
            arrays = job.decoded(piece)
            if config.fused:
                job.write(piece, tuple(fused_mean(array, weights, job.scratch) for array in arrays))
            else:
                job.write(piece, tuple(weighted_mean(array, weights) for array in arrays))


def weighted_mean(values: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """Σ w_k v_k / Σ w_k over arrays of one shape, in their own precision, one rounding an operation, in the order given. Writes over the
    values.

    The division comes after the sum and is left out where the weights sum to exactly 1 in that precision, as dividing by 1 changes nothing.
    """
    return _divided(weighted_sum(values, weights), weight_sum(weights, values[0].dtype.type))


def weighted_sum(values: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """Σ w_k v_k in the values' own precision. Writes over the values."""
    number = values[0].dtype.type
    for value, weight in zip(values, weights, strict=True):
        value *= number(weight)
    total = values[0]
    for value in values[1:]:
        total += value
    return total


def fused_mean(values: Sequence[Floats], weights: Sequence[float], scratch: Scratch) -> Floats:
    """`weighted_mean` with each product added by one fused multiply-add, as torch's `addcmul_` is compiled on a CPU, and with it mergekit.

    numpy has no such operation: product and sum are taken in float64, where the product of two float32 is exact, and rounded to float32
    after each. Values that were BF16 or F16 come out as fused; of those that were F32 one in about 2²⁹ is rounded twice.
    """
    number = values[0].dtype.type
    total, wide = values[0], scratch.like("wide", values[0], np.float64)
    total *= number(weights[0])
    for value, weight in zip(values[1:], weights[1:], strict=True):
        np.multiply(value, np.float64(number(weight)), out=wide)
        wide += total
        total[:] = wide
    return _divided(total, weight_sum(weights, number))


def _divided(total: Floats, divisor: Any) -> Floats:
    if divisor != 1:
        total /= divisor
    return total


def weight_sum(weights: Sequence[float], number: type[np.floating[Any]]) -> Any:
    """The sum of the weights in the precision of the values."""
    total = number(0)
    for weight in weights:
        total += number(weight)
    return total
