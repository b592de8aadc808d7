"""Which of the instances that were evaluated are new: by first screen, by instruction, and in homes that did not keep what screens said."""

from __future__ import annotations

from typing import Any

import pytest

from tests.warehouse.conftest import Make
from warehouse.novelty import TaskNovelty, novel_counts, novelty
from warehouse.query import connect
from warehouse.statistics import TaskCount
from warehouse.tables import Warehouse


def trained(episode_id: str, instruction: str, screen: str, **rest: Any) -> dict[str, Any]:
    return Make.episode(episode_id, instruction=instruction, content_id=screen, **rest)


def evaluated(seed: int, instruction: str, screen: str, outcome: str = "success", **rest: Any) -> dict[str, Any]:
    row = {"purpose": "evaluation", "split": "holdout", "seed": seed, "policy_id": "ckpt-1", "outcome": outcome}
    return Make.episode(f"eval-{seed}-{rest.get('task_id')}-{outcome}", instruction=instruction, content_id=screen, **row | rest)


def fill(warehouse: Warehouse, *, keeps_contents: bool) -> None:
    """Two tasks of pages and one of a terminal. Of `task-a`, seed 11 is a page that was learned from, seed 12 its words before another."""
    tasks = [Make.task("task-a"), Make.task("task-b"), Make.task("task-c", source="terminal")]
    warehouse.replace_partition("tasks", tasks, iteration="0000", stage="tasks")
    learned = [
        trained("ep-1", "Click Ok", "s1", purpose="seed"), trained("ep-2", "Click No", "s2", outcome="failure"),
        trained("ep-3", "Count", "s5", task_id="task-c", task_name="count"),
        trained("ep-4", "Press", "s9", outcome="crashed", num_steps=0),
    ]  # fmt: skip
    later = [trained("ep-9", "Click Up", "s3", seed=4)]
    played = [
        evaluated(11, "Click Ok", "s1"), evaluated(12, "Click Ok", "s4", "failure"), evaluated(13, "Click Up", "s3"),
        evaluated(14, "Press", "s9", task_id="task-b", task_name="press"),
        evaluated(15, "Count", "s5", task_id="task-c", task_name="count"),
    ]  # fmt: skip
    for iteration, stage, rows in (("0000", "seed", learned), ("0002", "rollouts", later), ("0001", "evaluation", played)):
        steps = [Make.step(row["episode_id"], 0, observation=row["content_id"]) for row in rows]
        if not keeps_contents:
            rows = [row | {"content_id": None} for row in rows]
        warehouse.replace_partition("episodes", rows, iteration=iteration, stage=stage)
        warehouse.replace_partition("steps", steps, iteration=iteration, stage=stage)
    figures = [
        {"checkpoint_id": "ckpt-1", "checkpoint_role": "merged_policy", "task_id": task_id, "task_name": name, "domain": "pointing",
         "split": "holdout", "num_episodes": num, "num_success": num - 1, "num_crashed": 0}
        for task_id, name, num in (("task-a", "click-button", 3), ("task-b", "press", 1), ("task-c", "count", 1))
    ]  # fmt: skip
    warehouse.replace_partition("evaluations", figures, iteration="0001", stage="evaluation")


@pytest.mark.parametrize("keeps_contents", [True, False])
def test_an_instance_is_novel_where_nobody_learned_from_its_first_screen(warehouse: Warehouse, keeps_contents: bool) -> None:
    fill(warehouse, keeps_contents=keeps_contents)
    with connect(warehouse) as con:
        found = novelty(con, "0001")
        counts = novel_counts(con, "0001")
    assert found is not None and found.tasks == (
        TaskNovelty(task="click-button", num_instances=3, num_novel=2, num_new_instruction=1),
        TaskNovelty(task="count", num_instances=1, num_novel=1, num_new_instruction=0),
        TaskNovelty(task="press", num_instances=1, num_novel=1, num_new_instruction=1),
    ), "a terminal's instances differ in their files; what a crashed episode would have shown was not learned from; nor what came later"
    assert (found.num_instances, found.num_novel, found.num_new_instruction) == (5, 4, 2)
    assert "4 (80%) are novel" in found.told and "| click-button | 3 | 2 | 1 |" in found.table
    assert counts == {
        "merged_policy": [
            TaskCount(task="click-button", num_success=1, num_episodes=2), TaskCount(task="count", num_success=1, num_episodes=1),
            TaskCount(task="press", num_success=1, num_episodes=1),
        ]
    }  # fmt: skip


def test_nothing_is_said_of_an_iteration_that_evaluated_nothing(warehouse: Warehouse) -> None:
    fill(warehouse, keeps_contents=True)
    with connect(warehouse) as con:
        assert novelty(con, "0002") is None and novelty(con, "0001", "eval") is None
