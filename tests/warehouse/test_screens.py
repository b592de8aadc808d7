"""The picture of a stage's screens: whole images, one of each task, and none where no screenshot was kept."""

from __future__ import annotations

import base64
import io
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from warehouse.reporting.screens import NUM_SHOWN, sample_screens
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (160, 210), (shade, shade, shade)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.usefixtures("tables_place")
def test_one_screen_of_each_task_is_shown(warehouse: Warehouse, make: Any) -> None:
    names = [f"task {number} <&>" for number in range(NUM_SHOWN + 2)]
    warehouse.add_screenshots([make.screenshot(f"shot-{index}", png(40 * index)) for index in (0, 1)])
    episodes = [make.episode(f"{name} {attempt}", task_name=name) for name in names for attempt in (0, 1)]
    place = {"iteration": "0001", "stage": "rollouts"}
    warehouse.replace_partition("episodes", episodes, **place)
    warehouse.replace_partition("steps", [make.step(episode["episode_id"], index) for episode in episodes for index in (0, 1)], **place)
    with connect(warehouse) as con:
        drawing = sample_screens(con, "0001", "rollouts")
        assert sample_screens(con, "0001", "evaluation") is None
    assert drawing is not None and ElementTree.fromstring(drawing).get("class") == "fw"
    images = re.findall(r'href="data:image/png;base64,([^"]+)"', drawing)
    assert len(images) == NUM_SHOWN
    for data in images:
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            assert image.size == (160, 210) and image.getpixel((0, 0)) == (40, 40, 40), "the last screen of an episode"
