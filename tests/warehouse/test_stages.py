"""Stages: what they are called, their order, whose domain is whose."""

from __future__ import annotations

from warehouse.core.stages import domain_of, is_rl, joint_name, rank, rl_stage, role_name

IN_ORDER = [
    "seed_policy",
    "ct_dataset",
    "sft_dataset",
    "ct_model",
    "sft_model",
    "rl_forms",
    "rl_pointing",
    "rl_joint_forms_pointing",
    "merged_policy",
    "released_policy",
    "something_else",
]


def test_stages_sort_as_an_iteration_makes_them() -> None:
    assert sorted(sorted(IN_ORDER), key=rank) == IN_ORDER


def test_a_specialist_has_a_domain_and_a_joint_policy_has_none() -> None:
    joint = rl_stage(joint_name(("forms", "pointing")))
    assert joint == "rl_joint_forms_pointing" and is_rl(joint) and domain_of(joint) is None
    assert domain_of(rl_stage("forms")) == "forms" and domain_of("sft_model") is None and not is_rl("merged_policy")
    assert [role_name(stage) for stage in ("rl_forms", joint, "ct_model", "rollouts")] == [
        "RL forms",
        "RL joint forms pointing",
        "CT",
        "rollouts",
    ]
