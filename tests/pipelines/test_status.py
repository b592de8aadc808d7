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
