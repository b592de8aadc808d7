"""Samples whose prompt is another episode's than their answer: both are named, found by a walk, and kept to the rules of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from assets.gates.invariants import INVARIANTS
from assets.people import _take_back
from tests.homes import copied
from tests.warehouse.conftest import Make
from tests.warehouse.test_routed_samples import EVERYTHING, act, run_iteration
from warehouse.core.errors import ContaminatedDataset
from warehouse.core.home import Home
from warehouse.datasets.mixing import MixtureConfig, SamplePool, mixed
from warehouse.datasets.withdrawal import withdrawn_ids
from warehouse.lineage.walk import trace, trace_back
from warehouse.routing.explain import connect_to_explain, explain
from warehouse.routing.routed_samples import store_routed_samples
from warehouse.storage.catalogue import TABLES
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """What `corrected` is copied from."""
    warehouse = Warehouse(Home(tmp_path_factory.mktemp("routed")))
    warehouse.replace_partition("tasks", [Make.task("task-a")], iteration="0000", stage="tasks")
    act(warehouse, "0001", "solved", "ABC", "xyz", is_solved=True)
    act(warehouse, "0002", "failed", "ABC", "xqr", is_solved=False)
    for iteration in ("0001", "0002"):
        run_iteration(warehouse, iteration)
    return warehouse


@pytest.fixture
def corrected(routed: Warehouse, tmp_path: Path) -> Warehouse:
    """A failed episode of iteration 0002 and the solved one of 0001 that corrects it at step 1 and leads on at step 2."""
    return copied(routed, tmp_path / "corrected")


def pairs(warehouse: Warehouse) -> list[dict[str, Any]]:
    rows = warehouse.read("sft_samples", iteration="0002", stage="routing").to_pylist()
    return sorted((row for row in rows if row["origin"] in ("correction", "reflection")), key=lambda row: row["origin"])


def of_split(warehouse: Warehouse, episode_id: str, split: str) -> None:
    iteration = "0002" if episode_id == "failed" else "0001"
    (row,) = warehouse.read("episodes", iteration=iteration, stage="rollouts").to_pylist()
    warehouse.replace_partition("episodes", [row | {"split": split}], iteration=iteration, stage="rollouts")


@pytest.mark.usefixtures("tables_place")
def test_a_pair_names_the_episode_and_step_of_its_prompt_beside_those_of_its_answer(corrected: Warehouse) -> None:
    named = [(row["episode_id"], row["step_index"], row["prompt_episode_ids"], row["prompt_step_indices"]) for row in pairs(corrected)]
    assert named == [("solved", 1, ["failed"], [1]), ("solved", 2, ["failed"], [2])]
    others = [row for row in corrected.read("sft_samples").to_pylist() if row["origin"] == "rollout"]
    assert others and all(row["prompt_episode_ids"] is None for row in others)


def test_lineage_goes_to_both_episodes_and_back_from_either(corrected: Warehouse) -> None:
    correction = pairs(corrected)[0]["sample_id"]
    with connect(corrected, lineage=True) as con:
        up = trace(con, correction, direction="up", depth=1)
        assert {(edge.parent.id, edge.relation) for edge in up.edges} == {
            ("solved", "cut from"),
            ("solved#1", "cut from"),
            ("failed", "prompted by"),
            ("failed#1", "prompted by"),
        }
        for episode_id in ("solved", "failed"):
            down = trace(con, episode_id, direction="down", depth=1, limit_per_relation=None)
            assert correction in {edge.child.id for edge in down.edges}
    assert {edge.parent.id for edge in trace_back(corrected, correction, depth=1).edges} == {"solved", "solved#1", "failed", "failed#1"}
    with connect_to_explain(corrected, "failed") as con:
        used = {use.sample_id for use in explain(con, "failed").uses}
    assert {row["sample_id"] for row in pairs(corrected)} <= used


@pytest.mark.usefixtures("tables_place")
@pytest.mark.parametrize("episode_id", ["solved", "failed"])
def test_who_takes_back_either_episode_takes_back_the_pair(corrected: Warehouse, episode_id: str) -> None:
    _take_back(corrected, lambda row: row["episode_id"] == episode_id, "0003")
    assert {row["sample_id"] for row in pairs(corrected)} <= withdrawn_ids(corrected, "sft_samples")


def test_a_wrong_step_takes_back_the_pair_that_is_prompted_by_it_alone(corrected: Warehouse) -> None:
    correction, reflection = (row["sample_id"] for row in pairs(corrected))
    _take_back(corrected, lambda row: (row["episode_id"], row["step_index"]) == ("failed", 1), "0003")
    assert correction in (gone := withdrawn_ids(corrected, "sft_samples")) and reflection not in gone


@pytest.mark.parametrize("episode_id", ["solved", "failed"])
def test_neither_episode_may_be_evaluated_on(corrected: Warehouse, episode_id: str) -> None:
    correction = pairs(corrected)[0]["sample_id"]
    with connect(corrected, sealed=False) as con:
        dataset = mixed(con, "sft", "0003", MixtureConfig(correction=SamplePool()))
    assert correction in dataset.rows["sample_id"].to_pylist()
    corrected.replace_partition("datasets", dataset.rows, iteration="0003", stage="sft_dataset")
    of_split(corrected, episode_id, "holdout")
    with connect(corrected, sealed=False) as con:
        with pytest.raises(ContaminatedDataset, match=f"its episode {episode_id} was run on an instance of the holdout split"):
            mixed(con, "sft", "0003", MixtureConfig(correction=SamplePool()))
        for name, iteration in (("sft_trains_on_train_only", "0002"), ("sft_dataset_trains_on_train_only", "0003")):
            (rule,) = (each for each in INVARIANTS if each.name == name)
            rows = con.sql(rule.sql, params={"iteration": iteration}).to_arrow_table().to_pylist()
            assert (correction, episode_id) in {(row["sample_id"], row["episode_id"]) for row in rows}, name


@pytest.mark.slow
def test_a_home_from_before_is_read_and_named_when_it_is_routed_again(corrected: Warehouse, tmp_path: Path) -> None:
    before = corrected.read("sft_samples", iteration="0002", stage="routing").sort_by("sample_id")
    home = Warehouse(Home(tmp_path / "old"))
    for table in ("episodes", "steps", "verdicts", "routes", "ct_samples"):
        write_deltalake(home.folder(table), corrected.read(table), partition_by=TABLES[table].partition_by)
    old = corrected.read("sft_samples").drop_columns(["prompt_episode_ids", "prompt_step_indices"])
    write_deltalake(home.folder("sft_samples"), old, partition_by=TABLES["sft_samples"].partition_by)
    assert all(row["prompt_episode_ids"] is None for row in pairs(home))
    assert {edge.parent.id for edge in trace_back(home, pairs(home)[0]["sample_id"], depth=1).edges} == {"solved", "solved#1"}
    assert store_routed_samples(home, "0002", EVERYTHING)["sft_samples"].is_written
    assert home.read("sft_samples", iteration="0002", stage="routing").sort_by("sample_id") == before
    assert not store_routed_samples(home, "0002", EVERYTHING)["sft_samples"].is_written
