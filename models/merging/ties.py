"""TIES: trim each task vector to its largest elements, elect a sign for each element, average the parents that agree with it.

Yadav et al. 2023 (arXiv 2306.01708), section 4 and algorithm 1: keep the top-k % of |δ_k|; γ = sgn(Σ_k w_k δ_k); the mean over
{k : sgn(w_k δ_k) = γ}, weighted; λ times that is added to the base. Which elements are the largest is found exactly, by counting
(models/merging/selection.py); of equal ones the first in the tensor are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.merging.config import MethodConfig
from models.merging.dtype_codec import Floats, Scratch, interleave
from models.merging.io import TensorJob
from models.merging.selection import Magnitudes, TopK, magnitudes
from models.merging.task_arithmetic import on_base

SAMPLE_CHUNKS = 16
SAMPLE_CHUNK_BYTES = 8192
_LEAST_FOR_SAMPLE = 1 << 18
"""Tensors of fewer elements are counted without a guess."""


def merge_tensor(job: TensorJob, weights: Sequence[float], config: MethodConfig) -> None:
    trims = [Trim(kept) for kept in _kept_of_each(job, config.density)] if config.density < 1 else None
    for piece in job.pieces():
        if job.copied(piece):  # all task vectors are 0 there: whether zeros are among the largest changes nothing
            continue
        arrays = job.deltas(piece)
        if trims is not None:
            for trim, of_parent in zip(trims, zip(*(deltas for _, deltas in arrays), strict=True), strict=True):
                trim.apply(of_parent, job.scratch)
        job.write(piece, tuple(elected(base, deltas, weights, config, job.scratch) for base, deltas in arrays))


def _kept_of_each(job: TensorJob, density: float) -> list[TopK]:
    """For each parent, which magnitudes are its largest: at least one element is kept of any tensor that has some."""
    if not job.num_elements:
        return []
    num_kept = max(1, int(density * job.num_elements))
    num_bits = 63 if job.tensor.dtype == "F64" else 31
    samples: list[Magnitudes | None] = [None] * job.num_parents
    if job.num_elements >= _LEAST_FOR_SAMPLE:
        samples = _samples(job)
    found = [TopK(num_kept, num_bits, sample, job.num_elements) for sample in samples]
    while not all(top.is_found for top in found):
        for piece in job.pieces():
            for _, deltas in job.deltas(piece):
                for top, delta in zip(found, deltas, strict=True):
                    top.count(magnitudes(delta), job.scratch)
        for top in found:
            top.end_pass()
    return found


def _samples(job: TensorJob) -> list[Magnitudes | None]:
    """Magnitudes at even distances, by parent."""
    chunks: list[list[Magnitudes]] = [[] for _ in range(job.num_parents)]
    for piece in job.sample(SAMPLE_CHUNKS, SAMPLE_CHUNK_BYTES):
        for _, deltas in job.deltas(piece):
            for of_parent, delta in zip(chunks, deltas, strict=True):
                of_parent.append(magnitudes(delta).copy())
    return [np.concatenate(of_parent) for of_parent in chunks]


class Trim:
    """Sets to zero what is not among the largest of one task vector, piece after piece in the tensor's order."""

    def __init__(self, kept: TopK) -> None:
        self._threshold, self._num_equal_left = kept.threshold, kept.num_equal

    def apply(self, arrays: Sequence[Floats], scratch: Scratch) -> None:
        """Trim one piece's arrays in place."""
        sizes = [magnitudes(array, scratch.like(f"size {number}", array)) for number, array in enumerate(arrays)]
        least = sizes[0].dtype.type(self._threshold)
        keeps: list[NDArray[np.bool_]] = [scratch.like(f"keep {number}", array, np.bool_) for number, array in enumerate(arrays)]
        if not self._num_equal_left:
            for size, keep in zip(sizes, keeps, strict=True):
                np.greater(size, least, out=keep)
        else:
            for size, keep in zip(sizes, keeps, strict=True):
                np.equal(size, least, out=keep)
            num_equal = sum(int(np.count_nonzero(keep)) for keep in keeps)
            if num_equal > self._num_equal_left:
                keeps = self._with_the_first(sizes, keeps, least)
            else:
                for size, keep in zip(sizes, keeps, strict=True):
                    np.greater_equal(size, least, out=keep)
            self._num_equal_left = max(0, self._num_equal_left - num_equal)
        for array, keep in zip(arrays, keeps, strict=True):
            array *= keep

    def _with_the_first(
        self, sizes: Sequence[Magnitudes], equal: Sequence[NDArray[np.bool_]], least: np.unsignedinteger[Any]
    ) -> list[NDArray[np.bool_]]:
        first = interleave(tuple(equal))
        first &= np.cumsum(first) <= self._num_equal_left
        return [(size > least) | first[index :: len(sizes)] for index, size in enumerate(sizes)]


def elected(
    base: Floats, deltas: Sequence[Floats], weights: Sequence[float], config: MethodConfig, scratch: Scratch, *, normalize: bool = True
) -> Floats:
    """θ_0 + λ · the (weighted) mean of the task vectors that agree with the elected sign. Writes over the deltas.

    The sign of an element is that of Σ_k w_k δ_k, positive where the sum is 0. Without `normalize` (the settings' own, where they say) the
    sum of those that agree is taken, not their mean.
    """
    number = base.dtype.type
    for delta, weight in zip(deltas, weights, strict=True):
        delta *= number(weight)
    sign = np.add(deltas[0], number(0), out=scratch.like("sign", base))  # never -0, so that a sum of 0 counts as positive
    for delta in deltas[1:]:
        sign += delta
    np.copysign(number(1), sign, out=sign)
    is_mean = normalize if config.normalize is None else config.normalize
    divisor, share, agrees = scratch.like("divisor", base), scratch.like("share", base), scratch.like("agrees", base, np.bool_)
    divisor.fill(0)
    for delta, weight in zip(deltas, weights, strict=True):
        delta *= sign
        np.greater(delta, number(0), out=agrees)
        np.maximum(delta, number(0), out=delta)
        if is_mean:
            divisor += np.multiply(agrees, number(weight), out=share)
    mixed = deltas[0]
    for delta in deltas[1:]:
        mixed += delta
    if is_mean:
        divisor += np.equal(divisor, number(0), out=agrees)
        mixed /= divisor
    mixed *= sign
    return on_base(base, mixed, config)
