"""Why an episode went where it went, what would change it, who learned from it; and routing history again under other rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.homes import copied
from tests.warehouse.judging import episode_row, step_row, verdicts_of
from warehouse.core.errors import ConfigError, UnknownId
from warehouse.core.home import Home
from warehouse.quality.overlap import repeated_by
from warehouse.routing.explain import connect_to_explain, explain
from warehouse.routing.reroute import reroute
from warehouse.routing.routed_samples import store_routed_samples
from warehouse.routing.routes import RoutingConfig, Rule, route
from warehouse.routing.samples import sample_row
from warehouse.storage.files.id_index import IdIndex
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

LAXER = RoutingConfig(rules={"loop": Rule(effect="demote", threshold=0.4)})


def without_place(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("iteration", "stage")}


@pytest.fixture
def warehouse(judged: Warehouse, tmp_path: Path) -> Warehouse:
    return copied(judged, tmp_path / "home")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Three episodes, judged and routed as the assets do it (a good one, one that loops, a failed one), and what followed."""
    house = Warehouse(Home(tmp_path_factory.mktemp("judged")))
    screens = {"episode-good": "ABC", "episode-looping": "XYXY", "episode-failed": "Z"}
    episodes = [episode_row(name, reward=float(name != "episode-failed"), instruction=name) for name in screens]
    steps = [step_row(i, name, observation=screen) for name, seen in screens.items() for i, screen in enumerate(seen)]
    house.replace_partition("episodes", [without_place(row) for row in episodes], iteration="0001", stage="rollouts")
    house.replace_partition("steps", [without_place(row) for row in steps], iteration="0001", stage="rollouts")
    house.replace_partition("verdicts", verdicts_of(house, "0001"), iteration="0001", stage="verdicts")
    with connect(house) as con:
        house.replace_partition("routes", route(con, iteration="0001"), iteration="0001", stage="routing")
    store_routed_samples(house, "0001")
    held = [
        {"dataset_id": "dataset-1", "kind": "sft", "sample_id": row["sample_id"], "component": "rollout", "weight": 1.0}
        for row in house.read("sft_samples").to_pylist()
    ]
    house.replace_partition("datasets", held, iteration="0002", stage="sft_dataset")
    trained = {
        "checkpoint_id": "policy-2",
        "path": "p",
        "parents": [],
        "datasets": ["dataset-1"],
        "config": "{}",
        "metrics": "{}",
        "note": "",
    }
    house.replace_partition("checkpoints", [trained], iteration="0002", stage="sft_model")
    return house


@pytest.mark.usefixtures("tables_place")
def test_it_says_who_decided_what_would_change_it_and_who_learned(warehouse: Warehouse) -> None:
    with connect(warehouse) as con:
        good, looping, failed = (explain(con, name) for name in ("episode-good", "looping", "episode-f"))
    assert (good.route, good.stored_route) == ("sft", "sft") and good.reason == good.stored_reason
    assert [reported.judge for reported in good.judgements if reported.decided] == ["verifier"]
    assert {use.checkpoints[0] for use in good.uses} == {"0002/sft_model policy-2"} and len(good.uses) == 3
    assert looping.route == "ct" and [reported.judge for reported in looping.judgements if reported.decided] == ["verifier", "loop"]
    assert looping.judgements[0].judge == "verifier", "those who decide speak first"
    assert [(change.judge, change.threshold, change.route) for change in looping.changes if change.route == "sft"] == [("loop", 0.5, "sft")]
    assert all(use.table == "ct_samples" and use.datasets == [] for use in looping.uses)
    assert [(change.judge, change.route) for change in failed.changes] == [("verifier", "sft")] and failed.route == "ct"


@pytest.mark.parametrize(
    ("who", "stage"),
    [
        ({"policy_id": "human"}, "rollouts"),
        ({"policy_id": "agent", "purpose": "gateway", "domain": "gateway"}, "rollouts"),
        ({"policy_id": "unknown", "purpose": "seed"}, "imported_logs"),
    ],
)
def test_it_says_why_no_dataset_takes_what_repeats_an_evaluated_instruction(tmp_path: Path, who: dict[str, str], stage: str) -> None:
    house = Warehouse(Home(tmp_path / "home"))
    asked = "Press the green button three times."
    person = episode_row("episode-person", **who, instruction=f"Please: {asked}")
    evaluated = episode_row("episode-evaluated", purpose="evaluation", split="eval", instruction=asked)
    sample = sample_row("sft", origin="demonstration", domain="d", messages=[], response="x", episode_id="episode-person", step_index=0)
    house.replace_partition("episodes", [without_place(person)], iteration="0000", stage=stage)
    house.replace_partition("episodes", [without_place(evaluated)], iteration="0001", stage="evaluation")
    house.replace_partition("sft_samples", [sample], iteration="0001", stage="routing")
    with connect_to_explain(house, "episode-person") as con:
        (use,) = explain(con, "episode-person").uses
    assert use.datasets == [] and use.left_out == f"it repeats an instruction that is evaluated on: {asked.lower()!r}"


def test_it_says_which_sample_of_a_harness_shows_another_evaluated_instance(tmp_path: Path) -> None:
    house = Warehouse(Home(tmp_path / "home"))
    other = "press the green button three times"
    means = {"purpose": "gateway", "domain": "pointing", "environment": "miniwob 1; DevTools; harness mine"}
    played = episode_row("episode-harness", policy_id="agent", **means, instruction="Press ok.")
    evaluated = episode_row("episode-evaluated", purpose="evaluation", split="eval", instruction=other)
    at: dict[str, Any] = {"origin": "rollout", "domain": "pointing", "response": "x", "episode_id": "episode-harness"}
    said = [[{"role": "user", "content": text, "screenshot_id": None, "loss": 0.0}] for text in ("Press ok.", f"It says: {other}")]
    samples = [sample_row("sft", **at, messages=messages, step_index=index) for index, messages in enumerate(said)]
    house.replace_partition("episodes", [without_place(row) for row in (played, evaluated)], iteration="0001", stage="rollouts")
    house.replace_partition("sft_samples", samples, iteration="0001", stage="routing")
    with connect_to_explain(house, "episode-harness") as con:
        first, second = explain(con, "episode-harness").uses
    assert first.left_out is None and second.left_out == f"it repeats an instruction that is evaluated on: {other!r}"


def test_a_harness_may_repeat_an_instruction_for_its_instance_is_known(tmp_path: Path) -> None:
    house = Warehouse(Home(tmp_path / "home"))
    asked = "Press the green button three times."
    harness = episode_row("episode-harness", policy_id="agent", purpose="gateway", domain="pointing", instruction=asked)
    evaluated = episode_row("episode-evaluated", purpose="evaluation", split="eval", instruction=asked)
    house.replace_partition("episodes", [without_place(row) for row in (harness, evaluated)], iteration="0001", stage="rollouts")
    with connect(house) as con:
        assert repeated_by(con, "episode-harness") is None


def test_a_judge_that_may_not_be_trusted_has_to_abstain(warehouse: Warehouse) -> None:
    said = {
        "episode_id": "episode-good",
        "judge": "judge",
        "judge_version": "1",
        "kind": "verdict",
        "origin": "judge",
        "score": 0.9,
        "threshold": 1.0,
        "passed": False,
        "reasons": [],
    }
    warehouse.append_partition("verdicts", [said], iteration="0001", stage="judgements")
    with connect(warehouse) as con:
        reported = explain(con, "episode-good", RoutingConfig(rules={"judge": Rule(effect="decide", precedence=0)}))
    assert (reported.route, [each.judge for each in reported.judgements if each.abstains]) == ("sft", ["judge"])


@pytest.mark.usefixtures("tables_place")
@pytest.mark.slow
def test_only_iterations_that_can_name_an_episode_are_read(warehouse: Warehouse) -> None:
    with connect(warehouse) as con:
        whole = {name: explain(con, name) for name in ("episode-good", "looping", "episode-failed")}
    for name, reported in whole.items():
        with connect_to_explain(warehouse, name) as con:
            assert explain(con, name) == reported
    new = without_place(episode_row("episode-new"))
    warehouse.replace_partition("episodes", [new], iteration="0003", stage="rollouts")
    verdict = {
        "episode_id": "episode-new",
        "judge": "verifier",
        "judge_version": "1",
        "kind": "verdict",
        "origin": "verifier",
        "score": 1.0,
        "threshold": 0.5,
        "passed": True,
        "reasons": [],
    }
    warehouse.replace_partition("verdicts", [verdict], iteration="0003", stage="verdicts")
    with connect(warehouse) as con:
        reported = explain(con, "episode-new")
    IdIndex(warehouse, "episodes")
    old = list(warehouse.home.tables.glob("*/iteration=000[12]/**/*.parquet"))
    assert len(old) > 5
    for path in old:
        path.rename(path.with_suffix(".away"))
    with connect_to_explain(warehouse, "episode-new") as con:
        assert explain(con, "episode-new") == reported and reported.route == "sft"


@pytest.mark.slow
def test_what_would_change_the_route_does_change_it(warehouse: Warehouse) -> None:
    with connect(warehouse) as con:
        for name in ("episode-good", "episode-looping", "episode-failed"):
            for change in explain(con, name).changes:
                effect = next(reported.effect for reported in explain(con, name).judgements if reported.judge == change.judge)
                rule = Rule.model_validate({"effect": effect, "threshold": change.threshold, "precedence": 1})
                assert explain(con, name, RoutingConfig(rules={change.judge: rule})).route == change.route


def test_ids_that_mean_nothing_or_too_much_are_named(warehouse: Warehouse) -> None:
    with connect(warehouse) as con:
        with pytest.raises(UnknownId, match="may be episode-failed, episode-good, episode-looping: give more"):
            explain(con, "episode-")
        with pytest.raises(UnknownId, match="the nearest are episode-good"):
            explain(con, "xpisode-good")


@pytest.mark.usefixtures("tables_place")
@pytest.mark.slow
def test_other_rules_move_episodes_and_their_samples_and_the_old_version_stays(warehouse: Warehouse) -> None:
    before = {table: warehouse.version(table) for table in ("routes", "ct_samples", "sft_samples", "datasets")}
    (dry,) = reroute(warehouse, LAXER, ["0001"], dry_run=True)
    assert [(move.episode_id, move.before, move.after) for move in dry.moves] == [("episode-looping", "ct", "sft")]
    assert {table: warehouse.version(table) for table in before} == before, "nothing was written"
    (done,) = reroute(warehouse, LAXER, ["0001"])
    assert done.moves == dry.moves and done.samples == {"ct_samples": (0, 4), "sft_samples": (4, 0)}
    assert done.versions.keys() == {"routes", "ct_samples", "sft_samples"} and warehouse.version("datasets") == before["datasets"]
    with connect(warehouse) as con:
        explained = explain(con, "episode-looping", LAXER)
        assert (explained.route, explained.stored_route) == ("sft", "sft")
        assert {(use.table, use.withdrawn) for use in explained.uses} == {("ct_samples", True), ("sft_samples", False)}
        assert explain(con, "episode-looping").route == "ct", "the default rules still say so"
    old = warehouse.read("routes", version=before["routes"])
    assert dict(zip(old["episode_id"].to_pylist(), old["route"].to_pylist(), strict=True))["episode-looping"] == "ct"


@pytest.mark.slow
def test_rerouting_is_idempotent_and_can_be_taken_back(warehouse: Warehouse) -> None:
    first = {table: warehouse.read(table).sort_by("sample_id") for table in ("ct_samples", "sft_samples")}
    (same,) = reroute(warehouse, RoutingConfig(), ["0001"])
    assert same.moves == () and same.versions == {}
    reroute(warehouse, LAXER, ["0001"])
    (again,) = reroute(warehouse, LAXER, ["0001"])
    assert again.moves == () and again.versions == {}
    reroute(warehouse, RoutingConfig(), ["0001"])
    assert warehouse.read("ct_samples").sort_by("sample_id") == first["ct_samples"]
    standing = warehouse.read("sft_samples").to_pylist()
    assert {row["sample_id"] for row in standing if not row["withdrawn"]} == set(first["sft_samples"]["sample_id"].to_pylist())
    assert sum(row["withdrawn"] for row in standing) == 4, "what had joined and left stays, withdrawn"


def test_a_verdict_that_turns_turns_in_the_samples_that_stay(warehouse: Warehouse) -> None:
    """Demoted with V=1 before, V=0 now: CT both times."""

    def verdicts() -> set[bool]:
        rows = warehouse.read("ct_samples").to_pylist()
        return {row["verdict"] for row in rows if row["episode_id"] == "episode-looping" and not row["withdrawn"]}

    assert verdicts() == {True}
    said = {
        "episode_id": "episode-looping",
        "judge": "human",
        "judge_version": "1",
        "kind": "verdict",
        "origin": "human",
        "score": 0.0,
        "threshold": 0.5,
        "passed": False,
        "reasons": ["it was not"],
    }
    warehouse.append_partition("verdicts", [said], iteration="0001", stage="human")
    (done,) = reroute(warehouse, RoutingConfig(), ["0001"])
    assert done.moves == () and done.samples["ct_samples"] == (0, 0) and done.versions.keys() == {"routes", "ct_samples"}
    assert verdicts() == {False}


def test_an_iteration_that_was_never_routed_is_refused(warehouse: Warehouse) -> None:
    with pytest.raises(ConfigError, match="0007 was never routed: the routed ones are 0001"):
        reroute(warehouse, RoutingConfig(), ["0007"])
