"""Stages: what they are called, their order, whose domain is whose; and evaluations in that order."""

from __future__ import annotations

from typing import Any

import pytest

from warehouse.evaluations import evaluations, success_by_domain
from warehouse.query import connect
from warehouse.stages import domain_of, is_rl, joint_name, rank, rl_stage, role_name
from warehouse.tables import Warehouse

IN_ORDER = [
    "seed_policy", "ct_dataset", "sft_dataset", "ct_model", "sft_model", "rl_forms", "rl_pointing", "rl_joint_forms_pointing",
    "merged_policy", "released_policy", "something_else",
]  # fmt: skip


def test_stages_sort_as_an_iteration_makes_them() -> None:
    assert sorted(sorted(IN_ORDER), key=rank) == IN_ORDER


def test_a_specialist_has_a_domain_and_a_joint_policy_has_none() -> None:
    joint = rl_stage(joint_name(("forms", "pointing")))
    assert joint == "rl_joint_forms_pointing" and is_rl(joint) and domain_of(joint) is None
    assert domain_of(rl_stage("forms")) == "forms" and domain_of("sft_model") is None and not is_rl("merged_policy")
    assert [role_name(stage) for stage in ("rl_forms", joint, "ct_model", "rollouts")] == [
        "RL forms", "RL joint forms pointing", "CT", "rollouts",
    ]  # fmt: skip


def of(domain: str) -> dict[str, str]:
    return {"domain": domain, "task_id": domain, "task_name": f"{domain}-task"}


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
