"""The k largest magnitudes of a stream that is too long to sort: the exact threshold, by counting. O(n), bounded memory, no sort.

A float's magnitude is its bits without the sign, and orders like an integer. A bracket of integers is known to hold the threshold; a
pass counts what lies above it and takes up what lies inside. If that is little, the threshold is found in it at once; else it is counted
in bins, and the bin that holds the k-th becomes the next bracket, until a bin is one value: from the full range, 31 bits take two passes
(their upper and lower halves) and 63 take four. A small sample guesses a narrow first bracket, so that one pass mostly does, in which
most values are only compared; where the guess is wrong the full range is taken, so the answer is exact either way.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.merging.dtype_codec import Floats, Scratch

Magnitudes = NDArray[np.unsignedinteger[Any]]

BIN_BITS = 16
MAX_HELD = 1 << 20
"""Magnitudes inside the bracket that are held before they are counted in bins."""
_SAMPLE_SIGMAS = 4.0
_SAMPLE_SLACK = 0.001


def magnitudes(values: Floats, out: NDArray[Any] | None = None) -> Magnitudes:
    """|v| as unsigned integers in the same order: the bits without the sign. In place, or in the memory of `out`."""
    bits = values.view("<u8" if values.dtype.itemsize == 8 else "<u4")
    mask = np.uint64((1 << 63) - 1) if values.dtype.itemsize == 8 else np.uint32((1 << 31) - 1)
    sizes: Magnitudes = np.bitwise_and(bits, mask, out=bits if out is None else out.view(bits.dtype))
    return sizes


class TopK:
    """Finds which magnitudes are the `num_kept` largest: call `count` on every value of a pass, then `end_pass`, until `is_found`.

    Then all above `threshold` are kept, and of those equal to it the first `num_equal`.
    """

    def __init__(self, num_kept: int, num_bits: int, sample: Magnitudes | None = None, num_values: int = 0) -> None:
        """`num_bits` is 31 for float32 and 63 for float64. `sample` is drawn from all `num_values`."""
        self._num_kept, self._num_bits = num_kept, num_bits
        self.is_found = False
        self.threshold = 0
        self.num_equal = 0
        self._low, self._high = 0, 1 << num_bits
        if sample is not None and len(sample):
            self._guess(np.sort(sample), num_kept / num_values)
        self._start_pass()

    def _guess(self, ordered: Magnitudes, share: float) -> None:
        margin = _SAMPLE_SIGMAS * math.sqrt(share * (1 - share) / len(ordered)) + _SAMPLE_SLACK
        last = len(ordered) - 1
        self._low = int(ordered[max(0, math.floor((1 - share - margin) * last))])
        self._high = int(ordered[min(last, math.ceil((1 - share + margin) * last))]) + 1

    def _start_pass(self) -> None:
        self._shift = max(0, (self._high - self._low - 1).bit_length() - BIN_BITS)
        self._num_above = 0
        self._counts: NDArray[np.int64] | None = None
        self._held: list[Magnitudes] = []
        self._num_held = 0

    def count(self, values: Magnitudes, scratch: Scratch) -> None:
        """Count some values of a pass, which are overwritten."""
        if self.is_found:
            return
        number = values.dtype.type
        if self._high - self._low < 1 << self._num_bits:
            chosen = np.greater_equal(values, number(self._high), out=scratch.like("chosen", values, np.bool_))
            self._num_above += int(np.count_nonzero(chosen))
            values -= number(self._low)  # what is below wraps around to the top
            inside = values[np.less(values, number(self._high - self._low), out=chosen)]
        else:
            inside = values.copy()
        self._held.append(inside)
        self._num_held += len(inside)
        if self._num_held > MAX_HELD:
            self._count_held()

    def _count_held(self) -> None:
        if not self._held:
            return
        if self._counts is None:
            self._counts = np.zeros(((self._high - self._low - 1) >> self._shift) + 1, dtype=np.int64)
        bins = [(values >> values.dtype.type(self._shift)).astype(np.int64) for values in self._held]
        self._counts += np.bincount(np.concatenate(bins), minlength=len(self._counts))
        self._held, self._num_held = [], 0

    def end_pass(self) -> None:
        """Find the threshold in what this pass took up, or narrow the bracket."""
        if self.is_found:
            return
        if self._counts is None:
            self._find_in_held()
        else:
            self._count_held()
            self._find_in_bins(self._counts)

    def _find_in_held(self) -> None:
        held = np.concatenate(self._held)
        wanted = self._num_kept - self._num_above
        if not 1 <= wanted <= len(held):
            self._start_over()
            return
        held.partition(len(held) - wanted)
        threshold = held[len(held) - wanted]
        self._found(int(threshold), wanted - int(np.count_nonzero(held > threshold)))

    def _find_in_bins(self, counts: NDArray[np.int64]) -> None:
        from_top = np.cumsum(counts[::-1])
        wanted = self._num_kept - self._num_above
        if not 1 <= wanted <= from_top[-1]:
            self._start_over()
            return
        place = int(np.searchsorted(from_top, wanted))
        chosen = len(counts) - 1 - place
        num_wanted = wanted - (int(from_top[place - 1]) if place else 0)
        if self._shift == 0 or num_wanted == counts[chosen]:
            self._found(chosen << self._shift, num_wanted)
            return
        self._low += chosen << self._shift
        self._high = self._low + (1 << self._shift)
        self._start_pass()

    def _found(self, above_low: int, num_equal: int) -> None:
        self.is_found, self.threshold, self.num_equal = True, self._low + above_low, num_equal

    def _start_over(self) -> None:
        """The guess was wrong."""
        self._low, self._high = 0, 1 << self._num_bits
        self._start_pass()
