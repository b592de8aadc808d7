"""No flipped bit of a table's files, or of the chain beside them, is read as other data. A thousand: `python -m benchmarks.damage`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.damage import NOTICED, SAME, flips

NUM_FLIPS = 100


@pytest.mark.slow
def test_no_flipped_bit_is_silent(tmp_path: Path) -> None:
    results = flips(tmp_path, NUM_FLIPS, seed=7)
    assert [result for result in results if result["outcome"] not in (NOTICED, SAME)] == []
    counts = Counter((result["kind"], result["outcome"]) for result in results)
    assert counts["data", SAME] == counts["checkpoint of a log", SAME] == 0 and counts["log", NOTICED] > 0
