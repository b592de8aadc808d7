"""`flywheel release`: what it prints, what it refuses, and that each change is one line for a person or one object for a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.annotation_server.policy_source import ReleasedPolicies
from pipelines.cli.app import app
from pipelines.profiles import load
from tests.warehouse.test_releases import made, run_iteration
from tests.warehouse.test_releases import warehouse as warehouse
from warehouse.core.errors import ReleaseRefused, ReleasesChanged
from warehouse.lineage.release_ledger import changing
from warehouse.lineage.releases import decide
from warehouse.storage.tables import Warehouse

WHO = ("--by", "anna", "--reason", "fails at [checkout]")


def run(warehouse: Warehouse, *words: str) -> str:
    ran = CliRunner().invoke(app, ["release", *words, "--home", str(warehouse.home.root)], env={"COLUMNS": "400"})
    if ran.exception is not None:
        raise ran.exception
    return ran.output


def test_a_person_sees_and_changes_what_is_live(warehouse: Warehouse) -> None:
    run_iteration(warehouse, "0001", "one")
    run_iteration(warehouse, "0002", "two", "held")
    listed = run(warehouse, "list")
    assert "Releases, after change 2" in listed and "flywheel release promote POLICY" in listed
    assert listed.index("0002/merged_policy") < listed.index("0001/merged_policy")
    said = run(warehouse, "promote", "0002/merged_policy", *WHO)
    assert "change 3: 0002/merged_policy (two) was held and is live, in place of one. The next stage" in said
    assert "fails at [checkout]" in run(warehouse, "list") and "anna" in run(warehouse, "show", "released")
    assert json.loads(run(warehouse, "rollback", "--json", *WHO)) == {
        "number": 4,
        "checkpoint_id": "one",
        "release": "0001/merged_policy",
        "before": "superseded",
        "state": "live",
        "live": "one",
        "live_before": "two",
    }
    found = json.loads(run(warehouse, "list", "--json"))
    assert (found["live"], found["changes"]) == ("one", 4)
    assert {one["release"]: one["state"] for one in found["releases"]} == {
        "0001/merged_policy": "live",
        "0002/merged_policy": "rolled_back",
    }
    shown = json.loads(run(warehouse, "show", "two", "--json"))
    assert [entry["state"] for entry in shown["changes"]] == ["held", "live", "rolled_back"] and shown["state"] == "rolled_back"
    with pytest.raises(ReleasesChanged, match="you saw 3"):
        run(warehouse, "promote", "two", "--seen", "3", *WHO)
    with pytest.raises(ReleaseRefused, match="is live now"):
        run(warehouse, "rollback", "one", "--by", "bo", "--reason", "again")
    assert "change 4: 0001/merged_policy (one) is live already; nothing changed" in run(warehouse, "rollback", "one", *WHO)


def test_a_reason_that_begins_with_its_rule_does_not_repeat_it(warehouse: Warehouse) -> None:
    candidate = made(warehouse, "0001", "merged_policy", "one")
    with changing(warehouse) as ledger:
        decide(warehouse, ledger, "0001", candidate, "live", by="first release", reason="first release: nothing to compare with")
    assert run(warehouse, "show", "one").count("first release") == 1


def test_what_was_not_decided_on_is_a_candidate_and_may_be_held(warehouse: Warehouse, tmp_path: Path) -> None:
    assert "no iteration has made a candidate yet" in run(warehouse, "list")
    run_iteration(warehouse, "0001", "one")
    made(warehouse, "0002", "merged_policy", "two")
    assert {one["state"] for one in json.loads(run(warehouse, "list", "--json"))["releases"]} == {"live", "candidate"}
    assert "was candidate and is held; one stays live" in run(warehouse, "hold", "two", *WHO)


def test_an_annotation_server_follows_a_rollback_at_its_next_episode(warehouse: Warehouse) -> None:
    for number, id_ in enumerate(("one", "two"), start=1):
        run_iteration(warehouse, f"000{number}", id_)
    source = ReleasedPolicies(warehouse.home, load("smoke").acting)
    assert source._find("released").checkpoint_id == "two"
    run(warehouse, "rollback", *WHO)
    assert source._find("released").checkpoint_id == "one"
