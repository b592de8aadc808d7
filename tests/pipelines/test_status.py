"""Where the wheel stands: an iteration is complete once Dagster has opened the next, whatever its rows look like before."""

from __future__ import annotations

from typing import Any

from pipelines.status import read_status
from warehouse import registry


def completes(place: Any) -> dict[str, bool]:
    status = read_status(place.warehouse, place.instance)
    return {iteration.iteration: iteration.complete for iteration in status.iterations}


def test_an_iteration_that_a_check_keeps_open_is_not_complete(place):
    assert completes(place) == {}
    for iteration, stage in (("0000", "seed_policy"), ("0001", "released_policy")):
        folder = place.home.checkpoints / iteration
        registry.register(place.warehouse, iteration=iteration, stage=stage, checkpoint_id="checkpoint-1", folder=folder)
    assert completes(place) == {"0000": False, "0001": False}
    place.open("0001")
    routes = [{"episode_id": "episode-1", "route": "sft", "reason": "V=1"}]
    place.warehouse.replace_partition("routes", routes, iteration="0001", stage="routing")
    assert completes(place) == {"0000": True, "0001": False}, "routed and released, but the gate behind may have failed"
    place.open("0002")
    assert completes(place) == {"0000": True, "0001": True}


def test_each_dataset_stage_names_its_own_snapshot(place):
    """The snapshot of the SFT stage holds samples of both kinds."""
    for stage, dataset, kinds in (("ct_dataset", "dataset-1", ["ct"]), ("sft_dataset", "dataset-2", ["sft", "ct"])):
        members = [{"dataset_id": dataset, "kind": kind, "sample_id": f"sample-{kind}", "component": "x", "weight": 1.0} for kind in kinds]
        place.warehouse.replace_partition("datasets", members, iteration="0001", stage=stage)
    registry.register(
        place.warehouse, iteration="0001", stage="ct_model", checkpoint_id="checkpoint-1", folder=place.home.checkpoints / "0001"
    )
    (status,) = read_status(place.warehouse, place.instance).iterations
    assert status.datasets == {"ct_dataset": "dataset-1", "sft_dataset": "dataset-2"}
