"""How the policy stands, read from real tables: what it is weak at, the newest pool, and what nobody may learn from."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from annotation.service.campaigns.choosing import FIRST_SEED, fresh_seeds, next_instances
from annotation.service.campaigns.task_priorities import UNKNOWN, TaskPriorities, TaskPriorityReader
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Split
from tests.warehouse.conftest import Make
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

TASKS = tasks_of("miniwob:quickstart")[:3]


def evaluated(warehouse: Warehouse, solved: Mapping[str, int], iteration: str) -> None:
    """Of 8 episodes each, by the policy that the iteration released."""
    rows = [
        {
            "checkpoint_id": "c",
            "checkpoint_role": "merged_policy",
            "task_id": task_id,
            "task_name": task_id,
            "domain": "d",
            "split": "eval",
            "num_episodes": 8,
            "num_success": num,
            "num_crashed": 0,
        }
        for task_id, num in solved.items()
    ]
    warehouse.replace_partition("evaluations", rows, iteration=iteration, stage="evaluation")
    warehouse.replace_partition("checkpoints", [Make.checkpoint("c")], iteration=iteration, stage="released_policy")


def pooled(warehouse: Warehouse, task_ids: list[str], iteration: str, *, split: str = "train", content: str = "i") -> None:
    rows = [
        {
            "task_id": task_id,
            "seed": index,
            "split": split,
            "content_id": f"{content}-{task_id}",
            "instruction": None,
            "difficulty": None,
            "provenance": "{}",
            "why": "seed",
        }
        for index, task_id in enumerate(task_ids)
    ]
    stage = "task_pool" if split == "train" else "tasks"
    warehouse.replace_partition("task_instances", rows, iteration=iteration, stage=stage)


def test_an_empty_home_tells_nothing(tmp_path: Path) -> None:
    for home in (None, Home(tmp_path)):
        priorities = TaskPriorityReader(home).read()
        assert priorities == TaskPriorities() and priorities.of("anything") == UNKNOWN
    assert not (tmp_path / "tables").exists(), "looking makes nothing"


def test_a_running_server_follows_new_iterations(tmp_path: Path) -> None:
    warehouse, reader = Warehouse(Home(tmp_path)), TaskPriorityReader(Home(tmp_path))
    strong, weak, _ = (task.task_id for task in TASKS)
    evaluated(warehouse, {strong: 8, weak: 0}, "0001")
    pooled(warehouse, [strong, weak], "0001")
    first = reader.read()
    assert first.of(strong) == 1 - 9 / 10 and first.of(weak) == 1 - 1 / 10 and first.task_pool == {strong, weak}
    assert reader.read() is first, "nothing is read again while nothing changed"
    evaluated(warehouse, {strong: 0, weak: 8}, "0002")
    pooled(warehouse, [weak], "0002")
    second = reader.read()
    assert second.task_pool == {weak}
    assert second.of(strong) > first.of(strong) and second.of(weak) < first.of(weak) and second.of(strong) > second.of(weak)


def test_contents_that_are_evaluated_on_are_never_asked_for(tmp_path: Path) -> None:
    task = tasks_of("browsing")[0]
    facts = SOURCES["browsing"].facts
    seeds = list(islice(fresh_seeds(task, TaskPriorities(), ()), 4))
    assert seeds[0] >= FIRST_SEED and all(task.split(seed) is Split.TRAIN for seed in seeds)
    reported = facts(task, seeds[0])
    assert reported is not None
    rest = list(islice(fresh_seeds(task, TaskPriorities(closed=frozenset({reported.content_id})), ()), 3))
    assert seeds[0] not in rest and rest[0] in seeds


def test_each_instance_is_asked_for_once_and_the_weak_ones_more_often() -> None:
    tasks = {task.task_id: task for task in TASKS}
    first, second, third = tasks
    priorities = TaskPriorities(weakness={first: 0.8, second: 0.4, third: 0.0})
    chosen = next_instances(tasks, priorities, {}, 50)
    counts = {task_id: sum(task.task_id == task_id for task, _ in chosen) for task_id in tasks}
    assert len({(task.task_id, seed) for task, seed in chosen}) == 50
    assert counts[first] == 2 * counts[second] and 0 < counts[third] < 4
    asked = {(task.task_id, seed): "finished" for task, seed in chosen}
    more = next_instances(tasks, priorities, asked, 10)
    assert not {(task.task_id, seed) for task, seed in more} & set(asked)
