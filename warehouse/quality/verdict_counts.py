"""Counts of an iteration's verdicts, taken while they are written into the table."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class VerdictCounter:
    """Counts of rows and of failures by judge, and a digest of who judged what how, which does not depend on how rows come in parts."""

    def __init__(self) -> None:
        self._num = 0
        self._failed: Counter[str] = Counter()
        self._content = hashlib.sha256()

    def counting(self, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The parts themselves."""
        for part in parts:
            self._num += part.num_rows
            failures = part.select(["judge", "passed"]).group_by("judge").aggregate([("passed", "count"), ("passed", "sum")])
            for row in failures.to_pylist():
                self._failed[row["judge"]] += row["passed_count"] - row["passed_sum"]
            numbers = [pc.cast(part[name], pa.string()) for name in ("score", "threshold")]
            lines = pc.binary_join_element_wise(part["episode_id"], part["judge"], *numbers, "\n", "\t")
            for chunk in lines.chunks:
                _, ends, texts = chunk.buffers()
                self._content.update(memoryview(texts)[: np.frombuffer(ends, np.int32)[len(chunk)]])
            yield part

    @property
    def counts(self) -> dict[str, int]:
        return {"verdicts": self._num} | {f"failed/{judge}": num for judge, num in sorted(self._failed.items())}

    @property
    def digest(self) -> str:
        return self._content.hexdigest()
