"""Pictures by their content, and by nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from annotation.storage.blobs import PNG, Blobs
from warehouse.core.errors import ConfigError, UnknownSubject
from warehouse.core.identity import bytes_id


def test_a_picture_is_kept_once_under_its_content(tmp_path: Path):
    blobs, data = Blobs(tmp_path), PNG + b"pixels"
    screenshot_id = blobs.put(data)
    assert screenshot_id == bytes_id("screen", data) == blobs.put(data)
    assert blobs.get(screenshot_id) == data and blobs.has(screenshot_id)
    assert [path.name for path in tmp_path.rglob("*.png")] == [f"{screenshot_id}.png"]


def test_only_pictures_are_kept(tmp_path: Path):
    with pytest.raises(ConfigError, match="<html"):
        Blobs(tmp_path).put(b"<html>")


@pytest.mark.parametrize(
    "name",
    ["screen-0000000000000000", "../secret", "screen-../../secret", "screen-0000000000000000.png", "screen-0000000000000000\n", "", "\0"],
)
def test_a_name_is_never_a_path(tmp_path: Path, name: str):
    (tmp_path / "secret").write_bytes(b"hidden")
    blobs = Blobs(tmp_path / "screens")
    assert not blobs.has(name)
    with pytest.raises(UnknownSubject):
        blobs.get(name)
