"""What a long session keeps in memory of its pictures: those that are still needed, with what is secret in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from annotation.recorder.browser.page_events import PageSnapshots
from annotation.recorder.screen import screens
from annotation.recorder.screen.camera import Frame
from annotation.recorder.store import store
from annotation.recordings.bundle import Box
from annotation.recordings.redaction import Redactor

SNAPSHOT = {"elements": [{"role": "input", "text": "x", "states": [], "x": 5, "y": 5, "width": 4, "height": 4}], "secrets": [[3, 3, 4, 4]]}


def frame(number: int) -> Frame:
    return Frame(number=number, since_s=0.0, until_s=0.0, pixels=np.full((10, 10, 3), number % 256, np.uint8))


def test_the_elements_of_a_page_are_known_for_as_long_as_its_picture_is_needed():
    snapshots = PageSnapshots(Redactor())
    held = frame(1)
    snapshots.learn(held, SNAPSHOT, 0.0)
    for number in range(2, 1000):
        snapshots.learn(frame(number), SNAPSHOT, 0.0)
    assert list(snapshots.found) == [1] and snapshots.black(held) == (Box(x=3, y=3, width=4, height=4),)


def test_a_frame_is_stored_once_and_what_was_stored_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(screens, "ASKED_KEPT", 3)
    kept = store.create(tmp_path, "one")
    keeping = screens.Screens(kept, PageSnapshots(Redactor()), Redactor(), None)
    for number in (1, 1, 2, 3, 3, 2, 1, 4, 5, 6, 1):
        assert keeping.keep(frame(number)) == number
    keeping.start()
    keeping.finish()
    kept.close()
    assert [record["frame"] for record in kept.journal()] == [1, 2, 3, 4, 5, 6, 1] and len(kept.screen_ids()) == 6
