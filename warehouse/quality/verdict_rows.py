"""Rows of `verdicts` from what was found out episode by episode: scores in a column a judge, reasons in a row a reason. What is scored and
why is SQL (*.sql); here it is only laid out, a dozen rows an episode, in numpy, where nothing needs to be sorted or parsed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warehouse.quality.config import QualityConfig

VERDICTS_SCHEMA = pa.schema(
    [
        ("episode_id", pa.string()),
        ("judge", pa.string()),
        ("judge_version", pa.string()),
        ("kind", pa.string()),
        ("origin", pa.string()),
        ("score", pa.float64()),
        ("threshold", pa.float64()),
        ("passed", pa.bool_()),
        ("reasons", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True)
class Judge:
    """A filter, or the environment's verifier, which alone gives V."""

    name: str
    version: str
    threshold: float
    kind: str = "filter"
    origin: str = "filter"


def judges(config: QualityConfig, extras: Iterable[Judge] = ()) -> list[Judge]:
    """Who is asked, in the order of their rows: first what gives V, then the filters by name."""
    verifier = Judge("verifier", "1", config.success_threshold, kind="verdict", origin="verifier")
    filters = (
        Judge("balance", "1", 1.0),
        Judge("contamination", "1", 1.0),
        Judge("contradiction", "4", config.min_consistent_fraction),
        Judge("duplicate", "3", config.min_novelty),
        Judge("format", "2", config.min_valid_fraction),
        Judge("leak", "2", 1.0),
        Judge("loop", "3", config.min_fresh_fraction),
        Judge("no_op", "2", config.min_effective_fraction),
        Judge("repeats", "2", 1.0),
        Judge("settled", "1", config.min_settled_fraction),
        Judge("too_long", "1", 1.0),
        Judge("too_short", "1", 1.0),
    )
    return [verifier, *sorted((*filters, *extras), key=lambda judge: judge.name)]


def verdict_rows(scores: pa.Table, reasons: pa.Table, asked: Sequence[Judge]) -> pa.Table:
    """VERDICTS_SCHEMA in the order of episodes and judges. `scores` has `n`, which numbers episodes without a gap, `episode_id`, and a
    column for each judge, null where it is not asked; `reasons` has (n, judge, place, reason), in any order, of judges that are."""
    grid = np.stack([scores[judge.name].cast(pa.float64()).to_numpy() for judge in asked], axis=1).reshape(-1)
    is_asked = np.stack([scores[judge.name].is_valid().to_numpy() for judge in asked], axis=1).reshape(-1)
    cells = np.flatnonzero(is_asked)
    row, by = np.divmod(cells, len(asked))
    score, threshold = grid[cells], np.array([judge.threshold for judge in asked])[by]
    of_judge = {name: _spread([getattr(judge, name) for judge in asked], by) for name in ("name", "version", "kind", "origin")}
    columns = {
        "episode_id": scores["episode_id"].combine_chunks().take(pa.array(row)),
        "judge": of_judge["name"],
        "judge_version": of_judge["version"],
        "kind": of_judge["kind"],
        "origin": of_judge["origin"],
        "score": score,
        "threshold": threshold,
        "passed": score >= threshold,
        "reasons": _lists(reasons, [judge.name for judge in asked], int(scores["n"][0].as_py()), is_asked),
    }
    return pa.table(columns, schema=VERDICTS_SCHEMA)


def _spread(values: Sequence[str], index: np.ndarray) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(index.astype(np.int32)), pa.array(values, pa.string())).cast(pa.string())


def _lists(reasons: pa.Table, names: Sequence[str], first: int, is_asked: np.ndarray) -> pa.ListArray:
    """The reasons of each cell that was asked, as lists."""
    by = pc.index_in(reasons["judge"], pa.array(names, pa.string())).to_numpy()
    cell = (reasons["n"].to_numpy().astype(np.int64) - first) * len(names) + by
    order = np.lexsort((reasons["place"].to_numpy(), cell))
    sizes = np.bincount(cell, minlength=len(is_asked))[is_asked]
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), reasons["reason"].combine_chunks().take(pa.array(order)))
