"""Dtype codec: the bytes of a float tensor to numpy float arrays, and back. numpy alone; bfloat16 handled by hand.

A piece becomes one or two float32 arrays (float64 for F64) whose elements together are the piece's. BF16 has two, the elements at even and
at odd places, because two bfloat16 in one 32-bit word come apart with a shift and a mask: half the work of converting each. The methods
work elementwise, so it makes no difference to them. Arrays are reused and overwritten: otherwise most of the time would go into fresh
memory, which the kernel has to clear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Floats = NDArray[np.floating[Any]]
FloatArrays = tuple[Floats, ...]
Bytes = NDArray[np.uint8]

FLOAT_TYPES = frozenset({"F64", "F32", "F16", "BF16"})
"""Types that can be merged; a tensor of any other must be equal in all parents."""
_UPPER_HALF = np.uint32(0xFFFF0000)
_HALF_WORD = np.uint32(16)


class Scratch:
    """Arrays of one thread by name, kept from piece to piece. Asking for a name again hands out the same memory."""

    def __init__(self) -> None:
        self._memory: dict[str, Bytes] = {}

    def array(self, name: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """`size` elements of any content."""
        kind = np.dtype(dtype)
        memory = self._memory.get(name)
        if memory is None or len(memory) < size * kind.itemsize:
            memory = self._memory[name] = np.empty(size * kind.itemsize, dtype=np.uint8)
        return memory[: size * kind.itemsize].view(kind)

    def like(self, name: str, array: NDArray[Any], dtype: DTypeLike | None = None) -> NDArray[Any]:
        return self.array(name, len(array), array.dtype if dtype is None else dtype)


def decode(piece: Bytes, dtype: str, scratch: Scratch, name: str) -> FloatArrays:
    """A piece as arrays, exactly. Its length is a multiple of 8 bytes (pad it with zeros). The arrays may be written to; they lie in
    `scratch` under `name` and in the piece itself, which is overwritten."""
    if dtype == "BF16":
        words = piece.view("<u4")
        even = np.left_shift(words, _HALF_WORD, out=scratch.like(name, words))
        return even.view("<f4"), np.bitwise_and(words, _UPPER_HALF, out=words).view("<f4")
    if dtype == "F16":
        halves = piece.view("<f2")
        floats = scratch.like(name, halves, "<f4")
        floats[:] = halves
        return (floats,)
    return (piece.view("<f8" if dtype == "F64" else "<f4"),)


def encode(arrays: FloatArrays, dtype: str, scratch: Scratch) -> Bytes:
    """Arrays, which are overwritten, back to a piece of the tensor's own type: rounded to nearest, ties to even. The caller excludes
    NaN."""
    if dtype == "BF16":
        even, odd = (_round(array, scratch) for array in arrays)
        even >>= _HALF_WORD
        odd &= _UPPER_HALF
        even |= odd
        return even.view(np.uint8)
    stored = arrays[0].astype({"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype], copy=False)
    return stored.view(np.uint8)


def _round(values: Floats, scratch: Scratch) -> NDArray[np.uint32]:
    """Bits of float32 values, in place, the upper halves rounded to the nearest bfloat16, ties to even; the lower halves are left over."""
    bits: NDArray[np.uint32] = values.view("<u4")
    carry = np.right_shift(bits, _HALF_WORD, out=scratch.like("carry", bits))
    carry &= np.uint32(1)
    carry += np.uint32(0x7FFF)
    bits += carry
    return bits


def interleave(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The arrays' values as one array, in the order in which the elements lie in the tensor."""
    return arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=-1).ravel()


def has_nan(arrays: Sequence[Floats]) -> bool:
    return any(np.isnan(array.max()) for array in arrays if array.size)
