"""A home in which a small policy with random weights is released, for the annotation server's tests."""

from __future__ import annotations

from pathlib import Path

from models.checkpoints.checkpoint import save
from tests.models.conftest import small_model
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.storage.tables import Warehouse


def release(home: Home, iteration: str, seed: int) -> str:
    """The checkpoint's id."""
    model, tokenizer = small_model(seed)
    folder = home.checkpoints / iteration / "released_policy" / f"seed-{seed}"
    card = save(folder, model, tokenizer, stage="released_policy", iteration=iteration)
    registry.register(Warehouse(home), iteration=iteration, stage="released_policy", checkpoint_id=card.checkpoint_id, folder=folder)
    return card.checkpoint_id


def small_home(folder: Path) -> tuple[Home, str]:
    home = Home(folder)
    return home, release(home, "0001", 0)
