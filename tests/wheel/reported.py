"""Makes what is only reported say the contrary: whoever chooses by it chooses otherwise."""

from __future__ import annotations

from typing import Any

from warehouse.evaluation.choosing import CHOICE_SPLITS
from warehouse.storage.tables import Warehouse

STAGE = "evaluation"


def poison(warehouse: Warehouse, iteration: str) -> int:
    """Turn every result of an iteration on a reported split around, episode by episode and count by count; returns how many episodes."""
    episodes = warehouse.read("episodes", iteration=iteration, stage=STAGE).to_pylist()
    reported = [row for row in episodes if row["split"] not in CHOICE_SPLITS]
    for row in reported:
        row.update(_contrary(row))
    counts = warehouse.read("evaluations", iteration=iteration, stage=STAGE).to_pylist()
    for row in counts:
        if row["split"] not in CHOICE_SPLITS:
            row["num_success"] = row["num_episodes"] - row["num_success"]
    for table, rows in (("episodes", episodes), ("evaluations", counts)):
        bare = [{name: value for name, value in row.items() if name not in ("iteration", "stage")} for row in rows]
        warehouse.replace_partition(table, bare, iteration=iteration, stage=STAGE)
    return len(reported)


def _contrary(row: dict[str, Any]) -> dict[str, Any]:
    if row["outcome"] == "crashed":
        return {}
    return {"outcome": "failure", "reward": 0.0} if row["outcome"] == "success" else {"outcome": "success", "reward": 1.0}
