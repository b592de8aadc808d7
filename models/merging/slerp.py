"""Spherical interpolation of each tensor, taken as one long vector: between two parents (Shoemake 1985), among more their weighted mean on
the sphere.

θ = Σ_k c_k θ_k with coefficients that depend on the parents only through their inner products, so a tensor is read twice: once for the
k × k products, once for the sum. For two parents at an angle Ω, c = (sin((1 − t) Ω), sin(t Ω)) / sin Ω. Parents that are nearly parallel
(|cos Ω| > PARALLEL, nearly always so for specialists of one checkpoint) are interpolated linearly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.merging.config import MethodConfig
from models.merging.dtype_codec import Floats
from models.merging.io import TensorJob
from models.merging.linear import weighted_sum

PARALLEL = 0.9995
MAX_ROUNDS = 50
CONVERGED = 1e-12

Products = NDArray[np.float64]


def merge_tensor(job: TensorJob, weights: Sequence[float], config: MethodConfig) -> None:
    products: Products = np.zeros((len(weights), len(weights)))
    for piece in job.pieces():
        for arrays in job.decoded(piece):
            products += inner_products(arrays)
    factors = coefficients(products, weights)
    for piece in job.pieces():
        if not job.copied(piece):
            job.write(piece, tuple(weighted_sum(arrays, factors) for arrays in job.decoded(piece)))


def inner_products(values: Sequence[Floats]) -> Products:
    """⟨v_i, v_j⟩ of arrays of one shape, summed in float64."""
    found: Products = np.empty((len(values), len(values)))
    for i, first in enumerate(values):
        for j, second in enumerate(values[: i + 1]):
            found[i, j] = found[j, i] = np.sum(np.multiply(first, second), dtype=np.float64)
    return found


def coefficients(products: Products, weights: Sequence[float]) -> tuple[float, ...]:
    """c with θ = Σ c_k v_k, from the products ⟨v_i, v_j⟩ and weights that sum to 1.

    Two vectors: Shoemake's formula. More: the weighted Karcher mean of the directions, by its fixed-point iteration (Afsari et al. 2013,
    SIAM J. Control Optim. 51(3), with step 1): m ← exp_m(Σ w_k log_m u_k), which for two vectors has Shoemake's formula as its limit.
    A vector of length 0, or directions that are all but parallel or opposite, give the weights themselves.
    """
    shares = np.asarray(weights, dtype=np.float64)
    lengths = np.sqrt(np.diagonal(products))
    if not lengths.all():
        return tuple(shares)
    cosines = products / np.outer(lengths, lengths)
    if (np.abs(cosines) > PARALLEL).all() or (cosines < -PARALLEL).any():
        return tuple(shares)
    if len(shares) == 2:
        angle = math.acos(cosines[0, 1])
        return tuple(math.sin(share * angle) / math.sin(angle) for share in shares)
    return tuple(_karcher(cosines, shares))


def _karcher(cosines: Products, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean direction as coefficients on the unit vectors; `cosines` are their products."""
    mean = shares / math.sqrt(shares @ cosines @ shares)
    for _ in range(MAX_ROUNDS):
        dots = np.clip(cosines @ mean, -1, 1)
        angles = np.arccos(dots)
        sines = np.sin(angles)
        stretch = np.where(sines > 1e-9, angles / np.where(sines > 1e-9, sines, 1), 1.0) * shares
        tangent = stretch - (stretch @ dots) * mean
        step = math.sqrt(max(0.0, float(tangent @ cosines @ tangent)))
        if step < CONVERGED:
            break
        mean = math.cos(step) * mean + math.sin(step) / step * tangent
        mean /= math.sqrt(mean @ cosines @ mean)
    return mean
