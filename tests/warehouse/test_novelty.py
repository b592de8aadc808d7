"""Which of the instances that were evaluated are new: by first screen, by instruction, and in homes that did not keep what screens said.
What is noted of earlier iterations says the same as their rows, and only what has changed is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.warehouse.conftest import Make
from warehouse.evaluation.novelty import TaskNovelty, novel_counts, novelty
from warehouse.evaluation.statistics import TaskCount
from warehouse.storage.tables import Warehouse


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
        trained("ep-1", "Click Ok", "s1", purpose="seed"),
        trained("ep-2", "Click No", "s2", outcome="failure"),
        trained("ep-3", "Count", "s5", task_id="task-c", task_name="count"),
        trained("ep-4", "Press", "s9", outcome="crashed", num_steps=0),
    ]
    later = [trained("ep-9", "Click Up", "s3", seed=4)]
    played = [
        evaluated(11, "Click Ok", "s1"),
        evaluated(12, "Click Ok", "s4", "failure"),
        evaluated(13, "Click Up", "s3"),
        evaluated(14, "Press", "s9", task_id="task-b", task_name="press"),
        evaluated(15, "Count", "s5", task_id="task-c", task_name="count"),
    ]
    for iteration, stage, rows in (("0000", "seed", learned), ("0002", "rollouts", later), ("0001", "evaluation", played)):
        steps = [Make.step(row["episode_id"], 0, observation=row["content_id"]) for row in rows]
        if not keeps_contents:
            rows = [row | {"content_id": None} for row in rows]
        warehouse.replace_partition("episodes", rows, iteration=iteration, stage=stage)
        warehouse.replace_partition("steps", steps, iteration=iteration, stage=stage)
    figures = [
        {
            "checkpoint_id": "ckpt-1",
            "checkpoint_role": "merged_policy",
            "task_id": task_id,
            "task_name": name,
            "domain": "pointing",
            "split": "holdout",
            "num_episodes": num,
            "num_success": num - 1,
            "num_crashed": 0,
        }
        for task_id, name, num in (("task-a", "click-button", 3), ("task-b", "press", 1), ("task-c", "count", 1))
    ]
    warehouse.replace_partition("evaluations", figures, iteration="0001", stage="evaluation")


@pytest.mark.usefixtures("tables_place")
@pytest.mark.parametrize("keeps_contents", [True, False])
def test_an_instance_is_novel_where_nobody_learned_from_its_first_screen(warehouse: Warehouse, keeps_contents: bool) -> None:
    fill(warehouse, keeps_contents=keeps_contents)
    found, counts = novelty(warehouse, "0001"), novel_counts(warehouse, "0001")
    assert found is not None and found.tasks == (
        TaskNovelty(task="click-button", num_instances=3, num_novel=2, num_new_instruction=1),
        TaskNovelty(task="count", num_instances=1, num_novel=1, num_new_instruction=0),
        TaskNovelty(task="press", num_instances=1, num_novel=1, num_new_instruction=1),
    ), "a terminal's instances differ in their files; what a crashed episode would have shown was not learned from; nor what came later"
    assert (found.num_instances, found.num_novel, found.num_new_instruction) == (5, 4, 2)
    assert "4 (80%) are novel" in found.summary and "| click-button | 3 | 2 | 1 |" in found.table
    assert counts == {
        "merged_policy": [
            TaskCount(task="click-button", num_success=1, num_episodes=2),
            TaskCount(task="count", num_success=1, num_episodes=1),
            TaskCount(task="press", num_success=1, num_episodes=1),
        ]
    }


def test_a_source_says_whether_its_first_screens_are_its_instances(warehouse: Warehouse) -> None:
    fill(warehouse, keeps_contents=True)
    tasks = [Make.task("task-a"), Make.task("task-c", source="mine", is_known_by_first_screen=True)]
    warehouse.replace_partition("tasks", tasks, iteration="0000", stage="tasks")
    found = novelty(warehouse, "0001")
    assert found is not None and {each.task: each.num_novel for each in found.tasks} == {"click-button": 2, "count": 0, "press": 1}


def test_nothing_is_said_of_an_iteration_that_evaluated_nothing(warehouse: Warehouse) -> None:
    fill(warehouse, keeps_contents=True)
    assert novelty(warehouse, "0002") is None and novelty(warehouse, "0001", "eval") is None


def notes(warehouse: Warehouse) -> dict[str, Path]:
    return {path.name: path for path in (warehouse.home.root / "cache" / "learned").iterdir()}


def reported(warehouse: Warehouse, iteration: str) -> tuple[Any, ...]:
    found = novelty(warehouse, iteration)
    assert found is not None
    return found.tasks, novel_counts(warehouse, iteration)


@pytest.mark.usefixtures("tables_place")
@pytest.mark.parametrize("keeps_contents", [True, False])
def test_a_new_iteration_reads_no_episode_of_an_old_one(warehouse: Warehouse, keeps_contents: bool) -> None:
    """The files of all others are away when its turn comes."""
    fill(warehouse, keeps_contents=keeps_contents)
    novelty(warehouse, "0002")
    old = [path for table in ("episodes", "steps") for path in warehouse.folder(table).glob("iteration=000[02]/**/*.parquet")]
    assert len(old) == 4
    rows = [evaluated(21, "Click Ok", "s1"), evaluated(22, "Click Up", "s4"), evaluated(23, "Click Up", "s3")]
    steps = [Make.step(row["episode_id"], 0, observation=row["content_id"]) for row in rows]
    rows = rows if keeps_contents else [row | {"content_id": None} for row in rows]
    warehouse.replace_partition("episodes", rows, iteration="0003", stage="evaluation")
    warehouse.replace_partition("steps", steps, iteration="0003", stage="evaluation")
    for path in old:
        path.rename(path.with_suffix(".away"))
    found = novelty(warehouse, "0003")
    assert found is not None
    assert found.tasks == (TaskNovelty(task="click-button", num_instances=3, num_novel=1, num_new_instruction=0),)


@pytest.mark.usefixtures("tables_place")
def test_notes_are_made_again_of_what_has_changed_alone(warehouse: Warehouse) -> None:
    fill(warehouse, keeps_contents=True)
    before, made = reported(warehouse, "0001"), {name: path.stat().st_ino for name, path in notes(warehouse).items()}
    warehouse.replace_partition("episodes", [trained("ep-5", "Click Up", "s3")], iteration="0000", stage="seed")
    after = reported(warehouse, "0001")
    assert after != before and after[0][0] == TaskNovelty(task="click-button", num_instances=3, num_novel=2, num_new_instruction=2)
    assert {name for name, path in notes(warehouse).items() if path.stat().st_ino != made.get(name)} == {"0000.notes"}
    for path in notes(warehouse).values():
        path.unlink()
    assert reported(warehouse, "0001") == after, "deleting them loses nothing"


@pytest.mark.slow
def test_notes_of_older_rows_or_damaged_ones_are_not_believed(warehouse: Warehouse) -> None:
    fill(warehouse, keeps_contents=True)
    before = reported(warehouse, "0001")
    seed = notes(warehouse)["0000.notes"]
    whole = seed.read_bytes()
    warehouse.replace_partition("episodes", [trained("ep-5", "Click Up", "s3")], iteration="0000", stage="seed")
    after = reported(warehouse, "0001")
    seed.write_bytes(whole)
    assert reported(warehouse, "0001") == after != before
    whole = seed.read_bytes()
    for place in range(3, len(whole), len(whole) // 10):
        seed.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert novelty(warehouse, "0001").tasks == after[0], place  # type: ignore[union-attr]
    seed.write_bytes(whole[:40])
    assert reported(warehouse, "0001") == after


def test_one_iteration_without_contents_has_all_known_by_their_text(warehouse: Warehouse) -> None:
    fill(warehouse, keeps_contents=True)
    before = reported(warehouse, "0001")
    older = trained("ep-8", "Click Up", "s3") | {"content_id": None}
    warehouse.replace_partition("episodes", [older], iteration="0000", stage="older")
    warehouse.replace_partition("steps", [Make.step("ep-8", 0, observation="s3")], iteration="0000", stage="older")
    assert before[0][0].num_novel == 2 and reported(warehouse, "0001")[0][0].num_novel == 1
