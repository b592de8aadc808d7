"""What commands change in the tables, as Dagster is notified of it: what was made from it counts as stale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from rich.console import Console

from assets.iterations.handoff import DATA_VERSION, INPUT, open_iteration
from assets.stages.stage_assets import ROW_COUNT
from models.checkpoints import checkpoint
from pipelines.cli.policies.merge import merge
from pipelines.orchestration import reported_changes
from pipelines.orchestration.reported_changes import CHANGED_BY, MERGED, OBSERVED_BY, reported
from tests.models.merge_helpers import write_family
from tests.pipelines.test_schedules_and_sensors import sample
from warehouse.core.home import Home
from warehouse.datasets.withdrawal import withdraw
from warehouse.lineage import registry
from warehouse.storage.tables import Warehouse

POLICY = {"checkpoint_id": "checkpoint-seed", "path": "p", "parents": [], "datasets": [], "config": "{}", "metrics": "{}", "note": ""}


def observations(place: Any, asset: str) -> list[dg.AssetObservation]:
    records = place.instance.fetch_observations(dg.AssetKey.from_user_string(asset), limit=10).records
    return [record.event_log_entry.asset_observation for record in records]


def materializations(place: Any, asset: str) -> list[dg.AssetMaterialization]:
    """Newest first."""
    records = place.instance.fetch_materializations(dg.AssetKey(asset), limit=10).records
    return [record.asset_materialization for record in records]


@pytest.fixture
def opened(place: Any) -> Any:
    """The seed and one closed iteration of two samples, with the inputs of 0001 and 0002."""
    warehouse = place.warehouse
    warehouse.replace_partition("checkpoints", [POLICY], iteration="0000", stage="seed_policy")
    warehouse.replace_partition("checkpoints", [POLICY], iteration="0001", stage="released_policy")
    warehouse.replace_partition("sft_samples", [sample(1)], iteration="0000", stage="seed_demonstrations")
    warehouse.replace_partition("sft_samples", [sample(2), sample(3)], iteration="0001", stage="routing")
    policy = registry.made_by(warehouse, "0000", "seed_policy")
    for key in ("0001", "0002"):
        open_iteration(place.instance, warehouse, key, policy)
    return place


def test_rows_that_were_taken_back_are_a_new_materialization_and_a_new_input(opened: Any) -> None:
    before = {one.partition: (one.tags or {})[DATA_VERSION] for one in materializations(opened, INPUT.to_user_string())}
    with reported(opened.warehouse, "flywheel withdraw", Console(quiet=True)):
        withdraw(opened.warehouse, "sft_samples", ["sample-2"], iteration="0001")
    (changes,) = materializations(opened, "sft_samples")
    assert changes.partition == "0001" and changes.metadata[CHANGED_BY].value == "flywheel withdraw"
    assert changes.metadata[ROW_COUNT].value == 2
    newest = materializations(opened, INPUT.to_user_string())
    assert [one.partition for one in newest] == ["0002", "0002", "0001"], "0001 learns from the seed alone, which stands"
    assert (newest[0].tags or {})[DATA_VERSION] != before["0002"]


def test_a_change_of_the_seed_is_one_of_its_asset_and_an_import_changes_every_input(opened: Any) -> None:
    with reported(opened.warehouse, "flywheel restore sft_samples", Console(quiet=True)):
        opened.warehouse.replace_partition("sft_samples", [sample(4)], iteration="0000", stage="seed_demonstrations")
    (changes,) = materializations(opened, "seed_demonstrations")
    assert changes.partition is None and changes.metadata[CHANGED_BY].value == "flywheel restore sft_samples"
    assert materializations(opened, "sft_samples") == []
    with reported(opened.warehouse, "flywheel import demonstrations", Console(quiet=True)):
        opened.warehouse.replace_partition("sft_samples", [sample(5)], iteration="0000", stage="import_mine")
    assert [one.partition for one in materializations(opened, INPUT.to_user_string())].count("0001") == 3


def test_nothing_is_reported_of_what_did_not_change_or_to_a_dagster_that_never_ran(opened: Any, tmp_path: Any) -> None:
    with reported(opened.warehouse, "flywheel verdict", Console(quiet=True)):
        pass
    assert len(materializations(opened, INPUT.to_user_string())) == 2
    elsewhere = Warehouse(Home(tmp_path / "bare"))
    with reported(elsewhere, "flywheel import", Console(quiet=True)):
        elsewhere.replace_partition("sft_samples", [sample(1)], iteration="0000", stage="import_mine")
    assert not (elsewhere.home.dagster / "history").exists()


def test_a_dagster_that_cannot_be_reached_costs_no_rows_and_hides_no_error(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError("the disk of Dagster's records is full")

    monkeypatch.setattr(reported_changes, "_report", fails)
    console = Console(record=True, width=200)
    with pytest.raises(KeyError), reported(opened.warehouse, "flywheel withdraw", console):
        withdraw(opened.warehouse, "sft_samples", ["sample-2"], iteration="0001")
        raise KeyError("of the command itself")
    assert "the tables are changed, and Dagster could not be notified: OSError: the disk" in console.export_text()
    assert opened.warehouse.read("sft_samples", stage="withdrawn").num_rows == 1


def test_a_merge_by_hand_is_observed_on_the_checkpoints_that_went_into_it(place: Any, tmp_path: Path) -> None:
    import torch

    warehouse, out = place.warehouse, tmp_path / "out"
    _, folders = write_family(place.home.checkpoints / "0001", torch.float32, num=3)
    for stage, folder in zip(("rl_pointing", "merged_policy"), folders[:2], strict=True):
        id_ = checkpoint.read_card(folder).checkpoint_id
        registry.register(warehouse, iteration="0001", stage=stage, checkpoint_id=id_, folder=folder)
    merge(["0001/rl_pointing", "0001/merged_policy", str(folders[2])], out, weights="0.5,0.25,0.25", home=place.home.root, dry_run=True)
    assert observations(place, "rl_model/pointing") == []
    merge(["0001/rl_pointing", "0001/merged_policy", str(folders[2])], out, weights="0.5,0.25,0.25", home=place.home.root)
    for asset, weight in (("rl_model/pointing", 0.5), ("merged_policy", 0.25)):
        (changes,) = observations(place, asset)
        assert changes.partition == "0001"
        assert {name: value.value for name, value in changes.metadata.items()} == {
            OBSERVED_BY: "flywheel merge",
            MERGED: str(out),
            "checkpoint": checkpoint.read_card(out).checkpoint_id,
            "method": "linear",
            "weight": weight,
        }


def test_a_merge_of_folders_tells_no_dagster_and_makes_no_home(tmp_path: Path) -> None:
    import torch

    _, folders = write_family(tmp_path, torch.float32, num=2)
    merge([str(folder) for folder in folders], tmp_path / "out", home=tmp_path / "nowhere")
    assert checkpoint.read_card(tmp_path / "out").parents and not (tmp_path / "nowhere").exists()
