"""The pictures of docs/dagster.md show the graph as it is: made again by scripts/dagster_pictures.py when it changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.definitions import build_defs
from scripts.dagster_pictures import DRAWN, PICTURES

DOCS = Path(__file__).resolve().parents[2] / "docs"
MAX_BYTES = 150_000


def test_the_graph_is_the_one_that_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = json.loads((DOCS / DRAWN).read_text())
    monkeypatch.setenv("FLYWHEEL_PROFILE", drawn["profile"])
    now = {
        spec.key.to_user_string(): sorted(dep.asset_key.to_user_string() for dep in spec.deps)
        for spec in build_defs().resolve_all_asset_specs()
    }
    assert drawn["assets"] == now, "the graph has changed: python scripts/dagster_pictures.py HOME docs"


def test_every_picture_is_there_small_and_shown() -> None:
    shown = (DOCS / "dagster.md").read_text()
    for name in PICTURES:
        picture = DOCS / f"{name}.png"
        assert picture.stat().st_size < MAX_BYTES and f"({picture.name})" in shown, name
