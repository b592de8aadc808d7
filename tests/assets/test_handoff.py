"""The back edge: what enters an iteration is the same as long as the policy and the samples are, however often they were written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pytest

from assets.iterations.handoff import INPUT, open_iteration
from assets.iterations.opened import read_opened
from tests.assets.instances import emptied_instance
from warehouse.core.home import Home
from warehouse.lineage.registry import Registered
from warehouse.storage.tables import Warehouse


def write(warehouse: Warehouse, table: str, iteration: str, names: Sequence[str]) -> None:
    rows = [
        {
            "sample_id": name,
            "origin": "rollout",
            "domain": "pointing",
            "messages": [],
            "episode_id": None,
            "step_index": None,
            "annotation_id": None,
            "verdict": True,
            "withdrawn": False,
        }
        for name in names
    ]
    warehouse.replace_partition(table, rows, iteration=iteration, stage="routing")


def policy(name: str) -> Registered:
    home = Home(Path("unused"))
    return Registered(checkpoint_id=name, iteration="0001", stage="released_policy", home=home, path="", parents=(), note="")


@pytest.mark.usefixtures("tables_place")
def test_an_iteration_that_is_routed_again_to_the_same_samples_leaves_the_next_one_fresh(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path))
    with emptied_instance() as instance:

        def opened(released: str = "checkpoint-1") -> str:
            return open_iteration(instance, warehouse, "0002", policy(released))

        write(warehouse, "sft_samples", "0001", ["a", "b"])
        first = opened()
        before = warehouse.version("sft_samples")
        write(warehouse, "sft_samples", "0001", ["b", "a"])
        assert warehouse.version("sft_samples") > before and opened() == first
        write(warehouse, "sft_samples", "0002", ["of the iteration that reads"])
        assert opened() == first
        write(warehouse, "ct_samples", "0001", ["c"])
        assert len({first, opened(), opened("checkpoint-2")}) == 3
        (record,) = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=INPUT, asset_partitions=["0002"]), limit=1).records
        materialization = record.asset_materialization
        assert materialization is not None and materialization.metadata["ct_samples"].value == warehouse.version("ct_samples")
        assert instance.get_dynamic_partitions("iteration") == ["0002"] and read_opened(warehouse.home) == {"0002"}


def test_a_home_of_before_records_all_that_is_open(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path))
    with emptied_instance() as instance:
        instance.add_dynamic_partitions("iteration", ["0001"])
        open_iteration(instance, warehouse, "0002", policy("checkpoint-1"))
    assert read_opened(warehouse.home) == {"0001", "0002"}


def test_an_iteration_is_not_open_before_its_input_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed is not made again once iteration 0001 is open: killed in between, it would have left it without its input for good."""
    warehouse = Warehouse(Home(tmp_path))
    with emptied_instance() as instance, monkeypatch.context() as killed:

        def end(event: object) -> None:
            raise SystemExit

        killed.setattr(instance, "report_runless_asset_event", end)
        with pytest.raises(SystemExit):
            open_iteration(instance, warehouse, "0001", policy("checkpoint-0"))
        assert instance.get_dynamic_partitions("iteration") == [] and read_opened(warehouse.home) is None
