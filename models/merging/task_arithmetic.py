"""Task arithmetic: θ = θ_0 + λ Σ_k w_k (θ_k − θ_0), with θ_0 the checkpoint that all parents were trained from.

Ilharco et al. 2023 (arXiv 2212.04089). With weights that sum to 1 and λ = 1 it is linear interpolation; weights of 1 each add the
specialists' task vectors up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.merging.config import MethodConfig
from models.merging.dtype_codec import Floats
from models.merging.io import TensorJob
from models.merging.linear import weight_sum, weighted_sum

NEGLIGIBLE = 1e-8
"""Weights whose sum is smaller are not divided by it."""


def merge_tensor(job: TensorJob, weights: Sequence[float], config: MethodConfig) -> None:
    for piece in job.pieces():
        if not job.copied(piece):
            job.write(piece, tuple(added(base, deltas, weights, config) for base, deltas in job.deltas(piece)))


def added(base: Floats, deltas: Sequence[Floats], weights: Sequence[float], config: MethodConfig) -> Floats:
    """θ_0 + λ Σ_k w_k δ_k, divided by Σ_k w_k where `config.normalize` says so. Writes over the deltas."""
    mixed = weighted_sum(deltas, weights)
    divisor = weight_sum(weights, base.dtype.type)
    if config.normalize and abs(divisor) >= NEGLIGIBLE and divisor != 1:
        mixed /= divisor
    return on_base(base, mixed, config)


def on_base(base: Floats, mixed: Floats, config: MethodConfig) -> Floats:
    """θ_0 + λ δ. Writes over δ."""
    if config.scale != 1:
        mixed *= base.dtype.type(config.scale)
    np.add(base, mixed, out=mixed)
    return mixed
