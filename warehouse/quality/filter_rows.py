"""Results of filters that need more than the steps of one episode, on their way into `verdicts`: one row an episode and judge."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

EXTRAS_SCHEMA = pa.schema(
    [
        ("n", pa.int32()),
        ("judge", pa.string()),
        ("judge_version", pa.string()),
        ("score", pa.float64()),
        ("threshold", pa.float64()),
        ("reasons", pa.list_(pa.string())),
    ]
)


def filter_rows(judge: str, version: str, threshold: float, results: Iterable[tuple[int, float, list[str]]]) -> pa.Table:
    """Rows of EXTRAS_SCHEMA from (n, score, reasons)."""
    rows = list(results)
    return pa.table(
        [
            pa.array([n for n, _, _ in rows], pa.int32()),
            pa.array([judge] * len(rows), pa.string()),
            pa.array([version] * len(rows), pa.string()),
            pa.array([score for _, score, _ in rows], pa.float64()),
            pa.array([threshold] * len(rows), pa.float64()),
            pa.array([reasons for *_, reasons in rows], pa.list_(pa.string())),
        ],
        schema=EXTRAS_SCHEMA,
    )
