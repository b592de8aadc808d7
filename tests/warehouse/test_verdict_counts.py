"""What is told of verdicts does not depend on the parts in which they come."""

from __future__ import annotations

import pyarrow as pa

from tests.warehouse.judging import episode_row, judged, steps_of
from warehouse.quality.verdict_counts import VerdictCounter
from warehouse.quality.verdict_rows import VERDICTS_SCHEMA


def counter_of(*parts: pa.Table) -> VerdictCounter:
    counter = VerdictCounter()
    assert list(counter.counting(parts)) == list(parts)
    return counter


def test_counts_and_digest() -> None:
    episodes = [episode_row("e1"), episode_row("e2"), episode_row("e3", reward=0.0)]
    rows = pa.Table.from_pylist(judged(episodes, [step for row in episodes for step in steps_of(row)]), schema=VERDICTS_SCHEMA)
    whole = counter_of(rows)
    assert whole.counts["verdicts"] == 36 and whole.counts["failed/verifier"] == 1 and whole.counts["failed/duplicate"] == 2
    parted = counter_of(rows.slice(0, 12), rows.slice(12))
    assert (parted.counts, parted.digest) == (whole.counts, whole.digest)
    assert counter_of(rows.slice(0, 12)).digest != whole.digest
