"""Evaluations as everybody reads them: which policies, in which order, and their success by domain."""

from __future__ import annotations

from typing import Any

import pytest

from warehouse.evaluation.evaluations import evaluations, success_by_domain
from warehouse.evaluation.statistics import TaskCount
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.usefixtures("tables_place")


def of(domain: str, task: str = "task") -> dict[str, str]:
    return {"domain": domain, "task_id": f"{domain}-{task}", "task_name": f"{domain}-{task}"}


def test_evaluations_are_read_once_for_all_who_ask(warehouse: Warehouse, make: Any) -> None:
    rows = [
        make.evaluation(f"c-{role}", role, split=split, num_success=num) | of(domain)
        for role, num in (("merged_policy", 9), ("rl_forms", 8), ("sft_model", 5))
        for split in ("eval", "holdout")
        for domain in ("pointing", "forms")
    ]
    warehouse.replace_partition("evaluations", rows, iteration="0001", stage="evaluation")
    with connect(warehouse) as con:
        found = evaluations(con, iteration="0001", split="holdout")
        assert [one.role for one in found] == ["sft_model", "rl_forms", "merged_policy"] and found == evaluations(con, split="holdout")
        assert len(evaluations(con)) == 6 and evaluations(con, iteration="0002") == []
        by_domain = success_by_domain(con, "0001")
    assert list(found[0].counts) == ["forms", "pointing"] and [count.task for count in found[0].tasks] == ["forms-task", "pointing-task"]
    assert found[1].success.mean == by_domain["rl_forms", "pointing"].mean == pytest.approx(8 / found[1].tasks[0].num_episodes)


def test_each_policy_of_each_iteration_and_split_is_apart(warehouse: Warehouse, make: Any) -> None:
    """Two tasks of one domain and one of another, of which nothing counts for one policy; a policy without any episode that counts; and two
    roles that share weights."""
    for iteration, solved in (("0002", 6), ("0001", 4)):
        rows = [
            make.evaluation(f"c-{role}", role, split=split, num_success=solved - (split == "eval"), num_episodes=8) | of("web", task)
            for role in ("merged_policy", "sft_model")
            for split in ("holdout", "eval")
            for task in ("b", "a")
        ]
        rows += [make.evaluation("c-merged_policy", "merged_policy", num_success=1, num_episodes=1) | of("apps")]
        rows += [make.evaluation("c-sft_model", "sft_model", num_success=0, num_episodes=0, num_crashed=8) | of("apps")]
        rows += [make.evaluation("c-gone", "rl_web", num_success=0, num_episodes=0, num_crashed=8) | of("web")]
        rows += [make.evaluation("c-merged_policy", "rl_apps", num_success=0, num_episodes=1) | of("apps")]
        warehouse.replace_partition("evaluations", rows, iteration=iteration, stage="evaluation")
    with connect(warehouse) as con:
        found = evaluations(con)
        by_domain = [success_by_domain(con, "0001"), success_by_domain(con, "0001", "eval")]
    order = [
        ("sft_model", "eval"),
        ("sft_model", "holdout"),
        ("rl_apps", "holdout"),
        ("merged_policy", "eval"),
        ("merged_policy", "holdout"),
    ]
    assert [(one.iteration, one.role, one.split) for one in found] == [(of, *key) for of in ("0001", "0002") for key in order]
    merged = found[4]
    assert [one.checkpoint_id for one in (merged, found[2], found[0])] == ["c-merged_policy", "c-merged_policy", "c-sft_model"]
    counts = [TaskCount(task=f"web-{task}", num_success=4, num_episodes=8) for task in "ab"]
    assert merged.counts == {"apps": (TaskCount(task="apps-task", num_success=1, num_episodes=1),), "web": tuple(counts)}
    assert merged.tasks == (*merged.counts["apps"], *counts) and found[1].counts == {"web": tuple(counts)}
    assert merged.success.mean == pytest.approx((1 + 0.5 + 0.5) / 3) and found[9].success.mean == pytest.approx((1 + 0.75 + 0.75) / 3)
    means = [{key: estimate.mean for key, estimate in each.items()} for each in by_domain]
    assert means == [
        {("sft_model", "web"): 0.5, ("rl_apps", "apps"): 0.0, ("merged_policy", "apps"): 1.0, ("merged_policy", "web"): 0.5},
        {("sft_model", "web"): 0.375, ("merged_policy", "web"): 0.375},
    ]
    assert list(means[0]) == [("sft_model", "web"), ("rl_apps", "apps"), ("merged_policy", "apps"), ("merged_policy", "web")]
