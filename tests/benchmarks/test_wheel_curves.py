"""What benchmarks/wheel_curves.py reports: the reported split alone, and the last merged policy, whichever was the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.wheel_curves import Point, gain, points_of
from warehouse.home import Home
from warehouse.tables import Warehouse


def point(iteration: str, role: str, mean: float) -> Point:
    return Point(
        variant="wheel", seed=0, iteration=iteration, role=role, tasks="trained on", mean=mean, standard_error=0.0, low=mean, high=mean,
        num_episodes=10,
    )  # fmt: skip


def test_the_gain_is_that_of_the_last_merge_and_not_of_the_best() -> None:
    """The second of three merges is the best, the rows are in no order, and later SFT policies are not the seed's."""
    rows = [("0003", "merged_policy", 0.6), ("0001", "merged_policy", 0.5), ("0002", "merged_policy", 0.9), ("0002", "sft_model", 0.1),
            ("0001", "sft_model", 0.4), ("0003", "released_policy", 0.9)]  # fmt: skip
    found = gain([point(*row) for row in rows])
    assert found is not None
    assert (found["seed_sft"], found["last"], found["gain"]) == (0.4, 0.6, pytest.approx(0.2))
    assert gain([point("0001", "merged_policy", 0.5)]) is None and gain([point("0001", "sft_model", 0.5)]) is None


def evaluation(role: str, split: str, solved: int, **more: Any) -> dict[str, Any]:
    return {
        "checkpoint_id": role, "checkpoint_role": role, "task_id": "task-a", "task_name": "click-button", "domain": "pointing",
        "split": split, "num_episodes": 10, "num_success": solved, "num_crashed": 0,
    } | more  # fmt: skip


def test_points_are_of_the_reported_split_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    rows = [evaluation("merged_policy", "eval", 9), evaluation("merged_policy", "holdout", 3), evaluation("sft_model", "eval", 8),
            evaluation("sft_model", "holdout", 2)]  # fmt: skip
    Warehouse(home).replace_partition("evaluations", rows, iteration="0001", stage="evaluation")
    found = {(each.role, each.mean, each.num_episodes) for each in points_of("wheel", 0, home)}
    assert found == {("merged_policy", 0.3, 10), ("sft_model", 0.2, 10)}
