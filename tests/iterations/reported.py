"""Makes what is only reported say the contrary: whoever chooses by it chooses otherwise."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from warehouse.evaluation.choosing import CHOICE_SPLITS
from warehouse.storage.tables import Warehouse

Row = dict[str, Any]
NEVER_PLAYED = "report"
"""No stage plays it, so its rows have to be planted."""


def poison(warehouse: Warehouse, iteration: str) -> int:
    """Turn everything of an iteration that is about a reported split around, whichever stage stored it: episodes and the verdicts on them,
    counts, agreement of judges. Returns how many episodes."""
    reported = {row["episode_id"] for row in _rows(warehouse, "episodes", iteration) if row["split"] not in CHOICE_SPLITS}
    for table in ("episodes", "evaluations", "judge_reports", "verdicts"):
        rows = _rows(warehouse, table, iteration)
        of_reported = [row for row in rows if (row["split"] not in CHOICE_SPLITS if "split" in row else row["episode_id"] in reported)]
        for row in of_reported:
            row.update(_CONTRARY[table](row))
        _put(warehouse, table, iteration, rows, {row["stage"] for row in of_reported})
    return len(reported)


def plant(warehouse: Warehouse, iteration: str) -> int:
    """Store what nothing may: copies of an iteration's reported episodes and counts on the split that no stage plays, and copies of those
    episodes in every other stage that has episodes. Returns how many episodes."""
    episodes = _rows(warehouse, "episodes", iteration)
    reported = [row for row in episodes if row["split"] not in CHOICE_SPLITS]
    stages = sorted({row["stage"] for row in episodes})
    copies = [
        {**row, "episode_id": f"{row['episode_id']}-{stage}-{split}", "seed": 10**9 + index, "content_id": None}
        | {"stage": stage, "split": split, **_contrary_episode(row)}
        for stage in stages
        for split in (NEVER_PLAYED, "holdout")
        for index, row in enumerate(reported)
    ]
    _put(warehouse, "episodes", iteration, [*episodes, *copies], set(stages))
    counts = _rows(warehouse, "evaluations", iteration)
    more = [{**row, "split": NEVER_PLAYED, **_contrary_count(row)} for row in counts if row["split"] not in CHOICE_SPLITS]
    _put(warehouse, "evaluations", iteration, [*counts, *more], {row["stage"] for row in more})
    return len(copies)


def _rows(warehouse: Warehouse, table: str, iteration: str) -> list[Row]:
    rows: list[Row] = warehouse.read(table, iteration=iteration).to_pylist()
    return rows


def _put(warehouse: Warehouse, table: str, iteration: str, rows: list[Row], stages: set[str]) -> None:
    by_stage: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_stage[row["stage"]].append({name: value for name, value in row.items() if name not in ("iteration", "stage")})
    for stage in sorted(stages):
        warehouse.replace_partition(table, by_stage[stage], iteration=iteration, stage=stage)


def _contrary_episode(row: Row) -> Row:
    if row["outcome"] == "crashed":
        return {}
    return {"outcome": "failure", "reward": 0.0} if row["outcome"] == "success" else {"outcome": "success", "reward": 1.0}


def _contrary_count(row: Row) -> Row:
    return {"num_success": row["num_episodes"] - row["num_success"]}


def _contrary_agreement(row: Row) -> Row:
    true, false = ("num_true_positive", "num_true_negative"), ("num_false_negative", "num_false_positive")
    return dict(zip((*true, *false), (row[name] for name in (*false, *true)), strict=True))


def _contrary_verdict(row: Row) -> Row:
    score = 1.0 - row["score"]
    return {"score": score, "passed": score >= row["threshold"]}


_CONTRARY = {
    "episodes": _contrary_episode,
    "evaluations": _contrary_count,
    "judge_reports": _contrary_agreement,
    "verdicts": _contrary_verdict,
}
