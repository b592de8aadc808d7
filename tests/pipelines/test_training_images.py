"""Screenshots from the warehouse into the files that a training run reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.policy.policy import Message
from models.supervised.training_set import TrainingSample
from pipelines.stages.images import spooled_images
from warehouse.core.errors import UnknownId
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse


def sample(*names: str) -> TrainingSample:
    return TrainingSample(messages=tuple(Message(role="user", content="", screenshot_id=name) for name in names))


@pytest.mark.usefixtures("tables_place")
def test_images_are_written_once_and_a_missing_one_is_named(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path / "home"))
    row = {"format": "png", "width_px": 1, "height_px": 1}
    warehouse.add_screenshots([{"screenshot_id": name, "data": name.encode(), **row} for name in ("shot-a", "shot-b")])
    folder = tmp_path / "images"
    read = spooled_images(warehouse, [sample("shot-a"), sample("shot-b", "shot-a"), sample()], folder)
    assert (read("shot-a"), read("shot-b")) == (b"shot-a", b"shot-b")
    before = (folder / "shot-a").stat().st_mtime_ns
    assert spooled_images(warehouse, [sample("shot-a")], folder)("shot-a") == b"shot-a"
    assert (folder / "shot-a").stat().st_mtime_ns == before
    with pytest.raises(UnknownId, match="1 screenshots that samples show are not stored, the first is shot-c"):
        spooled_images(warehouse, [sample("shot-a", "shot-c")], folder)
