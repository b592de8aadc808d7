"""A finished stage is believed only where its rows and its checkpoint are there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from assets.stages.requests import StageResult
from models.checkpoints import checkpoint
from pipelines.orchestration.work.finished_work import commits_of, find_loss
from warehouse.core.errors import CorruptTable
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.storage.log.table_log import TableLog
from warehouse.storage.tables import Warehouse

PLACE = {"iteration": "0001", "stage": "routing"}


def route(name: str) -> dict[str, Any]:
    return {"episode_id": name, "route": "ct", "reason": "V=0"}


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(Home(tmp_path))


@pytest.fixture
def result(warehouse: Warehouse) -> StageResult:
    """Of a stage that wrote rows and made a checkpoint."""
    folder = warehouse.home.checkpoints / "0001" / "routing" / "made"
    card = checkpoint.write(folder, lambda aside: (aside / "model.safetensors").write_bytes(b"weights"), stage="routing", iteration="0001")
    versions = {
        "routes": warehouse.replace_partition("routes", [route("a")], **PLACE),
        "checkpoints": registry.register(warehouse, **PLACE, checkpoint_id=card.checkpoint_id, folder=folder),
    }
    return StageResult(checkpoint_id=card.checkpoint_id, table_versions=versions, commits=commits_of(warehouse, versions))


def test_what_is_there_is_believed_whatever_came_after_it(warehouse: Warehouse, result: StageResult) -> None:
    assert set(result.commits) == {"routes", "checkpoints"} and find_loss(warehouse, result) is None
    warehouse.replace_partition("routes", [route("b")], iteration="0002", stage="routing")
    assert find_loss(warehouse, result) is None
    (path,) = warehouse.folder("routes").glob("iteration=0001/*/*.parquet")
    warehouse.replace_partition("routes", [route("c")], **PLACE)
    path.unlink()  # as a purge does: it belongs to no version that is read now
    assert find_loss(warehouse, result) is None


def test_rows_whose_file_is_damaged_or_gone_are_missed(warehouse: Warehouse, result: StageResult) -> None:
    (path,) = warehouse.folder("routes").glob("iteration=0001/*/*.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 4]) + content[-8:])
    assert "was changed" in str(find_loss(warehouse, result))
    path.unlink()
    assert "is missing" in str(find_loss(warehouse, result))


def test_a_commit_that_is_gone_or_another_one_is_missed(warehouse: Warehouse, result: StageResult) -> None:
    """As after a repair that ended the table before this commit."""
    log = TableLog(warehouse.home, "routes")
    log.file(1).unlink()
    log.commits.path.write_bytes(log.commits.lines(log.commits.records(0, 1)))
    log.checkpoints.path.unlink(missing_ok=True)
    assert find_loss(warehouse, result) == "version 1 of table routes is gone"
    assert warehouse.replace_partition("routes", [route("b")], iteration="0002", stage="routing") == 1
    assert find_loss(warehouse, result) == "version 1 of table routes is another commit now"


def test_a_table_that_is_gone_ends_the_stage_rather_than_working_it_again(warehouse: Warehouse, result: StageResult) -> None:
    shutil.rmtree(warehouse.folder("routes"))
    with pytest.raises(CorruptTable, match="is missing, though version 0 was committed"):
        find_loss(warehouse, result)


def test_a_damaged_checkpoint_is_missed(warehouse: Warehouse, result: StageResult) -> None:
    weights = warehouse.home.checkpoints / "0001" / "routing" / "made" / "model.safetensors"
    weights.write_bytes(b"weighty")
    assert "was truncated or changed" in str(find_loss(warehouse, result))
    shutil.rmtree(weights.parent)
    assert "card.json is missing" in str(find_loss(warehouse, result))
