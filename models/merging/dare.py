"""DARE: drop elements of each task vector at random, scale the rest by 1 / density, then merge by task arithmetic or by TIES' election.

Yu et al. 2024 (arXiv 2311.03099), equation 2: δ̃ = (1 − m) ⊙ δ / (1 − p), m ~ Bernoulli(p), with density = 1 − p.

Which elements are dropped is drawn from a generator that the content fixes: the seed of the settings and the first bytes of the tensor
in the base and in that parent. Repeating a merge gives the same bytes, the order of the parents changes no mask, and two tensors that
are one (tied weights, stored twice) stay one. Other programs draw differently: no two agree to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from models.merging import task_arithmetic, ties
from models.merging.config import MethodConfig
from models.merging.dtype_codec import Floats, Scratch
from models.merging.io import Piece, TensorJob
from warehouse.core.identity import bytes_id, stable_seed

HEAD_BYTES = 1 << 16

Combine = Callable[[Floats, Sequence[Floats], Sequence[float], MethodConfig, Scratch], Floats]


def merge_linear(job: TensorJob, weights: Sequence[float], config: MethodConfig) -> None:
    _merge(job, weights, config, lambda base, deltas, weights, config, scratch: task_arithmetic.added(base, deltas, weights, config))


def merge_ties(job: TensorJob, weights: Sequence[float], config: MethodConfig) -> None:
    _merge(job, weights, config, partial(ties.elected, normalize=False))


def _merge(job: TensorJob, weights: Sequence[float], config: MethodConfig, combine: Combine) -> None:
    seeds = tensor_seeds(job, config)
    for piece in job.pieces():
        if job.copied(piece):
            continue
        arrays = job.deltas(piece)
        kept = [_kept(piece, seed, len(arrays), len(arrays[0][0]), config.density) for seed in seeds]
        merged = []
        for index, (base, deltas) in enumerate(arrays):
            thinned = [rescaled(delta, mask[index], config.density) for delta, mask in zip(deltas, kept, strict=True)]
            merged.append(combine(base, thinned, weights, config, job.scratch))
        job.write(piece, tuple(merged))


def rescaled(delta: Floats, is_kept: NDArray[np.bool_], density: float) -> Floats:
    """The task vector without what is dropped, scaled so that its expectation is what it was. Writes over it; NaN stays."""
    delta *= is_kept
    delta *= delta.dtype.type(1 / density)
    return delta


def tensor_seeds(job: TensorJob, config: MethodConfig) -> list[int]:
    """One seed a parent, fixed by the content."""
    start = bytes_id("head", job.head(None, HEAD_BYTES))
    return [
        stable_seed("dare", config.seed, list(job.tensor.shape), start, bytes_id("head", job.head(parent, HEAD_BYTES)))
        for parent in range(job.num_parents)
    ]


def _kept(piece: Piece, seed: int, num_arrays: int, array_length: int, density: float) -> list[NDArray[np.bool_]]:
    """For each array, which elements are kept: 32 random bits below density · 2³²."""
    num_words = -(-num_arrays * array_length // 2)
    words = np.random.SFC64(np.random.SeedSequence([seed, piece.index])).random_raw(num_words).view("<u4")
    limit = min(round(density * 2**32), 2**32 - 1)
    return [words[index * array_length : (index + 1) * array_length] <= np.uint32(limit) for index in range(num_arrays)]
