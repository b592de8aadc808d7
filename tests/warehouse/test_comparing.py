"""Two policies on the same instances: which episodes count, and figures by task and domain beside a calculation by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.warehouse.judging import episode_row
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.evaluation.comparing import compare, only, played
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.usefixtures("tables_place")


def store(warehouse: Warehouse, iteration: str, *rows: dict[str, object]) -> None:
    bare = [{name: value for name, value in row.items() if name not in ("iteration", "stage")} for row in rows]
    warehouse.replace_partition("episodes", bare, iteration=iteration, stage="evaluation")


def row(policy: str, task: str, seed: int, solved: bool, **changes: object) -> dict[str, object]:
    domain = {"a": "forms", "b": "forms", "c": "pointing"}[task]
    outcome = {"outcome": "success" if solved else "failure", "purpose": "evaluation", "split": "holdout", "policy_id": policy}
    named = {"task_id": f"task-{task}", "task_name": task, "domain": domain, "seed": seed}
    return episode_row(**{"episode_id": f"{policy}-{task}-{seed}", **named, **outcome, **changes})


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    found = Warehouse(Home(tmp_path))
    store(
        found,
        "0001",
        *(row("one", "a", seed, seed < 5) for seed in range(10)),
        *(row("one", "b", seed, True) for seed in range(4)),
        *(row("one", "c", seed, False) for seed in range(2)),
        row("one", "a", 90, True),
        row("one", "a", 91, True, outcome="crashed"),
        row("one", "a", 92, True, split="eval"),
        row("one", "a", 93, True, purpose="rollout"),
    )
    store(
        found,
        "0002",
        *(row("two", "a", seed, seed in (0, 1, 2, 7, 8, 9)) for seed in range(10)),
        *(row("two", "b", seed, seed > 0) for seed in range(4)),
        *(row("two", "c", seed, True) for seed in range(2)),
        *(row("two", "c", seed, True) for seed in (50, 51)),
    )
    return found


def test_only_what_both_have_played_of_the_split_is_compared(warehouse: Warehouse) -> None:
    first, second = (played(warehouse, policy, "holdout") for policy in ("one", "two"))
    found = compare(first, second)
    assert (found.num_first_only, found.num_second_only) == (1, 2)
    assert [(part.name, part.first, part.second) for part in found.tasks] == [("a", 0.5, 0.6), ("b", 1.0, 0.75), ("c", 0.0, 1.0)]
    counts = [(part.paired.num_pairs, part.paired.candidate_only, part.paired.incumbent_only) for part in found.tasks]
    assert counts == [(10, 3, 2), (4, 0, 1), (2, 2, 0)]
    gains = {part.name: part.paired.difference.mean for part in (*found.domains, found.total)}
    assert gains == pytest.approx({"forms": (0.1 - 0.25) / 2, "pointing": 1.0, "all tasks": (0.1 - 0.25 + 1) / 3})
    assert [(one.task, one.seed) for one in found.partings if not one.second_solves] == [("a", 3), ("a", 4), ("b", 0)]
    assert all(one.first_episode.startswith("one-") and one.second_episode.startswith("two-") for one in found.partings)


def test_of_an_instance_that_was_played_twice_the_newest_counts(warehouse: Warehouse) -> None:
    store(warehouse, "0003", row("one", "c", 0, True, episode_id="again"))
    assert played(warehouse, "one", "holdout")["task-c", 0].episode_id == "again"


def test_tasks_and_domains_are_chosen_by_name(warehouse: Warehouse) -> None:
    found = played(warehouse, "two", "holdout")
    assert {one.task for one in only(found, ["forms"]).values()} == {"a", "b"} and only(found, []) == found
    assert {one.task for one in only(found, ["a", "pointing"]).values()} == {"a", "c"}
    with pytest.raises(ConfigError, match="called clicking, zed; there are a, b, c, forms, pointing"):
        only(found, ["zed", "clicking", "a"])
    with pytest.raises(ValueError, match="no instance in common"):
        compare(found, {})
