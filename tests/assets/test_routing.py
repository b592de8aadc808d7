"""The assets of judgement and routing, materialized by Dagster on small tables."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from assets.iterations.partitions import ITERATIONS
from assets.routing import routing, verdicts
from assets.settings.profile import Profile
from assets.stages.resources import ProfileResource, WarehouseResource
from pipelines import profiles
from tests.assets.instances import emptied_instance
from tests.warehouse.judging import episode_row, step_row
from warehouse.core.home import Home
from warehouse.core.identity import content_id
from warehouse.storage.tables import Warehouse


class Smoke(ProfileResource):
    def load(self) -> Profile:
        return profiles.load("smoke")


@pytest.mark.usefixtures("tables_place")
def test_every_episode_is_judged_routed_and_cut_into_samples(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path))
    screens = {"good": "ABC", "looping": "XYXY", "copied": "ABC"}
    rows = [episode_row(name, instruction="same" if name != "looping" else name) for name in screens]
    steps = [step_row(i, name, observation=screen) for name, seen in screens.items() for i, screen in enumerate(seen)]
    for table, content in (("episodes", rows), ("steps", steps)):
        bare = [{name: value for name, value in row.items() if name not in ("iteration", "stage")} for row in content]
        warehouse.replace_partition(table, bare, iteration="0001", stage="rollouts")
    with emptied_instance() as instance:
        instance.add_dynamic_partitions(str(ITERATIONS.name), ["0001"])
        resources = {"tables": WarehouseResource(root=str(tmp_path)), "profile": Smoke()}
        result = dg.materialize([verdicts, routing], partition_key="0001", instance=instance, resources=resources)
    assert result.success
    routes = warehouse.read("routes").to_pylist()
    assert {row["episode_id"]: row["route"] for row in routes} == {"good": "withheld", "looping": "ct", "copied": "sft"}
    assert "1.00 like copied" in next(row["reason"] for row in routes if row["episode_id"] == "good"), "ids order what is alike"
    assert warehouse.read("sft_samples").num_rows == 3 and warehouse.read("ct_samples").num_rows == 4
    (judged,) = result.asset_materializations_for_node("verdicts")
    assert judged.metadata["failed/loop"].value == 1 and judged.metadata["failed/duplicate"].value == 1
    reported = {event.asset_key.to_user_string(): event for event in result.asset_materializations_for_node("routing")}
    for table, origins in (("ct_samples", {"samples/rollout": 4}), ("sft_samples", {"samples/rollout": 3})):
        ids = sorted(warehouse.read(table)["sample_id"].to_pylist())
        assert (reported[table].tags or {})["dagster/data_version"] == content_id("data", [ids])
        counts = {"samples": len(ids), **origins}
        assert {name: reported[table].metadata[name].value for name in counts} == counts
