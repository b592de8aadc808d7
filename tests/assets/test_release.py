"""The release gate as Dagster runs it: what it reads, which way it decides, and how much worse a candidate may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.iterations.partitions import ITERATIONS
from assets.release import _never_compared, build_evaluation_asset, released_policy
from assets.settings.profile import Profile
from assets.stages.resources import ProfileResource, WarehouseResource
from pipelines import profiles
from tests.assets.instances import emptied_instance
from tests.warehouse.judging import episode_row
from warehouse.core.home import Home
from warehouse.lineage.releases import hold, promote
from warehouse.storage.tables import Warehouse

INCUMBENT, CANDIDATE = "policy-before", "policy-merged"
NUM = 50
"""Instances of the one task, in either split."""


class Smoke(ProfileResource):
    changes: dict[str, float]

    def load(self) -> Profile:
        return profiles.load("smoke", self.changes)


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    found = Warehouse(Home(tmp_path))
    row = {"path": "p", "parents": [], "datasets": [], "config": "{}", "metrics": "{}", "note": ""}
    made = [
        ("0000", "released_policy", "earlier"),
        ("0001", "ct_model", "another"),
        ("0001", "released_policy", INCUMBENT),
        ("0001", "merged_policy", "another"),
        ("0003", "released_policy", "later"),
        ("0002", "merged_policy", CANDIDATE),
    ]
    for iteration, stage, checkpoint_id in made:
        found.replace_partition("checkpoints", [row | {"checkpoint_id": checkpoint_id}], iteration=iteration, stage=stage)
    yield found


def evaluated(warehouse: Warehouse, policy: str, solved: Mapping[str, int], *, crashed: int = 0, **rest: Any) -> None:
    """Episodes of a policy that solves the first `solved[split]` of NUM instances; of those that follow, the last `crashed` crashed. `rest`
    are columns of them all."""

    def ended(seed: int, num_solved: int) -> dict[str, Any]:
        if seed >= NUM - crashed:
            return {"outcome": "crashed", "reward": None, "error": "the browser went away"}
        return {"outcome": "success", "reward": 1.0} if seed < num_solved else {"outcome": "failure", "reward": 0.0}

    rows = [
        episode_row(
            f"{policy}-{split}-{seed}",
            purpose="evaluation",
            split=split,
            seed=place * NUM + seed,
            policy_id=policy,
            **ended(seed, num),
            **rest,
        )
        for place, (split, num) in enumerate(solved.items())
        for seed in range(NUM)
    ]
    bare = [{name: value for name, value in row.items() if name not in ("iteration", "stage")} for row in rows]
    warehouse.replace_partition("episodes", bare, iteration="0001" if policy == INCUMBENT else "0002", stage="evaluation")


def released(warehouse: Warehouse, **changes: float) -> tuple[str, str, Mapping[str, Any]]:
    """Which policy the gate releases, why, and what is reported to Dagster. `changes`: of the profile's part `evaluation`."""
    smoke = Smoke(changes={name if "." in name else f"evaluation.{name}": value for name, value in changes.items()})
    with emptied_instance() as instance:
        instance.add_dynamic_partitions(str(ITERATIONS.name), ["0002"])
        resources = {"tables": WarehouseResource(root=str(warehouse.home.root)), "profile": smoke}
        ran = dg.materialize([released_policy], partition_key="0002", instance=instance, resources=resources)
    (row,) = warehouse.read("checkpoints", iteration="0002", stage="released_policy").to_pylist()
    (reported,) = ran.asset_materializations_for_node("released_policy")
    return row["checkpoint_id"], row["note"], {name: value.value for name, value in reported.metadata.items()}


@pytest.mark.parametrize(("before", "after", "chosen"), [(30, 45, CANDIDATE), (45, 30, INCUMBENT)])
def test_the_gate_decides_by_eval_and_whatever_is_only_reported_says_the_contrary(
    warehouse: Warehouse, before: int, after: int, chosen: str
) -> None:
    """In either direction: an inverted gate, or one that reads the holdout rows, releases the other one."""
    evaluated(warehouse, INCUMBENT, {"eval": before, "holdout": NUM - before})
    evaluated(warehouse, CANDIDATE, {"eval": after, "holdout": NUM - after})
    found, why, reported = released(warehouse)
    assert found == chosen
    assert reported["gain"] == pytest.approx((after - before) / NUM) and (reported["p_worse"] < 0.05) == (chosen == INCUMBENT)
    assert f"{(after - before) / NUM:+.3f}" in why and f"on {NUM} pairs" in why


@pytest.mark.parametrize(("lost", "chosen"), [(1, CANDIDATE), (2, INCUMBENT)])
def test_a_candidate_may_be_worse_by_the_profiles_tolerance_and_no_more(warehouse: Warehouse, lost: int, chosen: str) -> None:
    """0.03: one of fifty is within it, two are not, and neither is anything that a test could prove."""
    assert profiles.load("smoke").evaluation.release_tolerance == 0.03
    evaluated(warehouse, INCUMBENT, {"eval": 40})
    evaluated(warehouse, CANDIDATE, {"eval": 40 - lost})
    assert released(warehouse)[0] == chosen


@pytest.mark.parametrize(
    ("change", "lost", "chosen"), [({"release_tolerance": 0.1}, 2, CANDIDATE), ({"release_significance": 0.75}, 1, INCUMBENT)]
)
def test_the_profile_says_what_losing_is(warehouse: Warehouse, change: dict[str, float], lost: int, chosen: str) -> None:
    """Two lost of fifty are within a tolerance of a tenth; one lost, for which the test says 8/11, is proof enough for 0.75."""
    evaluated(warehouse, INCUMBENT, {"eval": 40})
    evaluated(warehouse, CANDIDATE, {"eval": 40 - lost})
    assert released(warehouse, **change)[0] == chosen


def ledger(warehouse: Warehouse) -> list[tuple[str, str, str | None]]:
    """(policy, state, which is live) of every row that was written, in their order."""
    rows = sorted(warehouse.read("releases").to_pylist(), key=lambda row: (row["number"], row["state"]))
    return [(row["checkpoint_id"], row["state"], row["live_id"]) for row in rows]


def test_a_stage_that_is_worked_again_writes_its_decision_once(warehouse: Warehouse) -> None:
    evaluated(warehouse, INCUMBENT, {"eval": 30})
    evaluated(warehouse, CANDIDATE, {"eval": 45})
    assert released(warehouse)[0] == CANDIDATE == released(warehouse)[0]
    assert ledger(warehouse) == [(CANDIDATE, "live", CANDIDATE), (INCUMBENT, "superseded", CANDIDATE)]
    (row,) = (row for row in warehouse.read("releases").to_pylist() if row["state"] == "live")
    assert (row["compared_with"], row["num_pairs"], row["num_won"], row["num_lost"]) == (INCUMBENT, NUM, 15, 0)
    assert row["gain"] == pytest.approx(0.3) and (row["decided_by"], row["origin"]) == ("release gate", "rule")


def test_where_a_person_has_to_approve_the_candidate_is_held_and_the_live_release_goes_on(warehouse: Warehouse) -> None:
    evaluated(warehouse, INCUMBENT, {"eval": 30})
    evaluated(warehouse, CANDIDATE, {"eval": 45})
    found, why, _ = released(warehouse, **{"release.needs_approval": True})
    assert found == INCUMBENT and "flywheel release promote 0002/merged_policy" in why
    assert ledger(warehouse) == [(CANDIDATE, "held", INCUMBENT)]
    evaluated(warehouse, CANDIDATE, {"eval": 10})
    found, why, _ = released(warehouse, **{"release.needs_approval": True})
    assert found == INCUMBENT and "loses" in why and ledger(warehouse)[-1] == (CANDIDATE, "refused", INCUMBENT)


def test_the_gate_does_not_overrule_a_person(warehouse: Warehouse) -> None:
    """Of a candidate that a person has promoted, held or rolled back the stage says so, whatever it measures."""
    warehouse.replace_partition("checkpoints", [], iteration="0003", stage="released_policy")
    for policy, solved in ((INCUMBENT, 30), (CANDIDATE, 45)):
        evaluated(warehouse, policy, {"eval": solved})
        folder = warehouse.home.root / "p"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").touch()
        (folder / "model.safetensors").touch()
    who = {"by": "anna", "reason": "fails at checkout"}
    hold(warehouse, CANDIDATE, **who)
    found, why, _ = released(warehouse)
    assert found == INCUMBENT and why == "anna has held the candidate: fails at checkout"
    promote(warehouse, CANDIDATE, **who)
    evaluated(warehouse, CANDIDATE, {"eval": 0})
    found, why, _ = released(warehouse)
    assert found == CANDIDATE and why == "anna has promoted the candidate: fails at checkout"


def test_a_candidate_that_was_refused_is_released_by_proof_and_not_by_another_look(warehouse: Warehouse) -> None:
    evaluated(warehouse, INCUMBENT, {"eval": 40})
    evaluated(warehouse, CANDIDATE, {"eval": 30})
    assert released(warehouse)[0] == INCUMBENT
    evaluated(warehouse, CANDIDATE, {"eval": 41})
    found, why, _ = released(warehouse)
    assert found == INCUMBENT and "an earlier look refused the candidate" in why
    assert [state for _, state, _ in ledger(warehouse)] == ["refused", "refused"], "each look is kept"
    evaluated(warehouse, CANDIDATE, {"eval": NUM})
    assert released(warehouse)[0] == CANDIDATE


def test_a_live_release_that_nothing_was_played_with_holds_the_candidate(warehouse: Warehouse) -> None:
    evaluated(warehouse, CANDIDATE, {"eval": 45})
    assert _never_compared(warehouse, "0002") == INCUMBENT, "the next evaluation plays it too"
    found, why, _ = released(warehouse)
    assert found == INCUMBENT and "the live release has no outcome on the eval split" in why
    evaluated(warehouse, INCUMBENT, {"eval": 30})
    assert _never_compared(warehouse, "0002") is None and released(warehouse)[0] == CANDIDATE


def test_every_specialist_is_evaluated() -> None:
    found = build_evaluation_asset(("pointing", "forms"), (("pointing", "forms"),))
    upstream = {key.to_user_string() for key in found.keys_by_input_name.values()}
    specialists = {f"rl_model/{name}" for name in ("pointing", "forms", "joint_pointing_forms")}
    assert upstream == {"ct_model", "sft_model", "merged_policy"} | specialists


def test_episodes_that_crashed_are_no_pairs(warehouse: Warehouse) -> None:
    """The candidate solves all that it could play; were its crashed episodes failures, it would lose by a fifth."""
    evaluated(warehouse, INCUMBENT, {"eval": NUM})
    evaluated(warehouse, CANDIDATE, {"eval": NUM}, crashed=10)
    found, why, _ = released(warehouse)
    assert found == CANDIDATE and f"on {NUM - 10} pairs (0 won, 0 lost" in why


def test_a_release_of_before_another_rule_of_splits_cannot_be_compared_with(warehouse: Warehouse) -> None:
    """Its tasks have other ids: the run goes on, and says so."""
    evaluated(warehouse, INCUMBENT, {"eval": NUM})
    evaluated(warehouse, CANDIDATE, {"eval": 0}, task_id="task-of-now")
    found, why, _ = released(warehouse)
    assert found == CANDIDATE and "older rule of splits" in why
