"""An episode that a policy has learned from, forgotten in a home with a real iteration: nothing of it is left in any byte, what
descends from it is marked, and Dagster is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from pipelines.forgetting.dagster_events import INSTEAD
from pipelines.orchestration.instance import open_instance
from pipelines.orchestration.reported_changes import CHANGED_BY
from tests.pipelines.forgetting_home import files_with, walked

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

OF_ONE = """
    select any_value(episode_id), instruction from episodes group by instruction
    having count(distinct episode_id) = 1 and any_value(stage) = ? and instruction like 'Enter %' order by 1 limit 1"""
SHOWN_ALONE = """
    select distinct i.data from steps s join screenshots i using (screenshot_id) where s.episode_id = ?
    and screenshot_id not in (select screenshot_id from steps where episode_id <> ? and screenshot_id is not null)"""


def test_an_episode_that_was_learned_from_is_forgotten(finished_home: Any, copy_of: Callable[..., Any]) -> None:
    workspace = copy_of(finished_home)
    for stage in ("seed_demonstrations", "rollouts"):
        ((episode_id, instruction),) = workspace.sql(OF_ONE, stage)
        wanted = [instruction, *(data for (data,) in workspace.sql(SHOWN_ALONE, episode_id, episode_id))]
        held = files_with(workspace.home.root, wanted)
        assert len(wanted) > 1 and all(any(table in found for found in held) for table in ("steps", "samples", "screenshots"))
        before = walked(workspace.warehouse, {episode_id})
        listed = json.loads(workspace.flywheel("forget", "--episode", episode_id, "--dry-run", "--json").stdout)
        assert {table: set(ids) for table, ids in listed["rows"].items()} == {table: before[table] for table in listed["rows"]}
        assert {one["dataset_id"] for one in listed["datasets"]} == before["datasets"]
        assert {one["checkpoint_id"] for one in listed["checkpoints"]} == before["checkpoints"]
        forgotten = workspace.flywheel("forget", "--episode", episode_id, "--yes")
        assert forgotten.returncode == 0, forgotten.stderr
        assert files_with(workspace.home.root, wanted) == []
        if stage == "seed_demonstrations":
            live = json.loads(workspace.flywheel("release", "list", "--json").stdout)
            assert (
                before["checkpoints"] and "learned from" in {one["checkpoint_id"]: one["tainted"] for one in live["releases"]}[live["live"]]
            )
            assert "flywheel release promote 0000/seed_policy" in forgotten.stdout
    assert "TAINTED" in workspace.flywheel("lineage", "released").stdout
    with open_instance(workspace.home) as instance:
        seed = instance.get_latest_materialization_event(dg.AssetKey("seed_demonstrations"))
        assert seed is not None and seed.asset_materialization is not None
        assert seed.asset_materialization.metadata[CHANGED_BY].value == "flywheel forget (episode)"
        runs = instance.fetch_materializations(dg.AssetKey("rollouts"), limit=10).records
        pictures = [
            made.metadata["screens"].value for record in runs if (made := record.asset_materialization) and "screens" in made.metadata
        ]
        assert set(pictures) <= {INSTEAD}
    assert workspace.flywheel("verify").returncode == 0
    assert workspace.flywheel("report").returncode == 0
    assert workspace.left_after(15) == []
