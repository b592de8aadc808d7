"""How the work of a function grows with its input, whatever the speed of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

FACTOR = 8
LEAST_S = 0.02
"""Less processor time than this cannot be told from chance."""


def growth(work: Callable[[int], object], small: int) -> float:
    """Processor time for FACTOR times the input over that for `small`, the least of three each: about FACTOR where work is linear, its
    square where it is quadratic. What is linear at once is not measured again."""
    once_s = _took_s(work, small, LEAST_S)
    return _took_s(work, small * FACTOR, FACTOR * once_s) / once_s


def _took_s(work: Callable[[int], object], size: int, enough_s: float) -> float:
    took: list[float] = []
    while len(took) < 3 and min(took, default=float("inf")) > enough_s:
        started_s = time.process_time()
        work(size)
        took.append(time.process_time() - started_s)
    return max(LEAST_S, min(took))
