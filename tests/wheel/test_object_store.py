"""An iteration whose tables and checkpoints lie in an object store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wheel.conftest import Turned
from warehouse.core.home import Home
from warehouse.core.store import STORE_VARIABLE, Store
from warehouse.lineage import registry
from warehouse.storage.content import content_digest
from warehouse.storage.tables import Warehouse

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]
REPEATABLE = {
    ("0000", "tasks"): ("tasks", "task_instances"),
    ("0000", "seed_demonstrations"): ("episodes", "steps", "sft_samples"),
    ("0000", "seed_tutorials"): ("ct_samples",),
    ("0001", "ct_dataset"): ("datasets",),
    ("0001", "sft_dataset"): ("datasets",),
    ("0001", "ct_model"): ("training_metrics",),
    ("0001", "sft_model"): ("training_metrics",),
}
"""Tables of the stages that give the same rows whenever they run with the same seed."""


def test_an_iteration_in_an_object_store_gives_what_it_gives_on_a_disk(
    turned_home: Turned, turned_with: Callable[[dict[str, str]], Turned], store: Store, tmp_path: Path
) -> None:
    far = turned_with({STORE_VARIABLE: store.url})
    on_disk, in_store = Warehouse(Home(turned_home.base / "home", None)), Warehouse(far.home)
    for (iteration, stage), tables in REPEATABLE.items():
        one, other = (content_digest(each, tables, iteration=iteration, stage=stage) for each in (on_disk, in_store))
        assert one == other, f"{iteration}/{stage}"
    made = [
        {stage: registry.made_by(each, "0001", stage).checkpoint_id for stage in ("ct_model", "sft_model")} for each in (on_disk, in_store)
    ]
    assert made[0] == made[1]
    assert not (far.base / "home" / "tables").exists()
    released = registry.released(Warehouse(Home(tmp_path / "another-host")))
    assert (released.folder / "card.json").is_file() and released.folder.is_relative_to(tmp_path)
    ran = far.flywheel("verify")
    assert ran.returncode == 0 and "as it was written" in ran.stdout, ran.stdout + ran.stderr
    again = far.flywheel("run", "--iterations", "1", timeout_s=600)
    assert again.returncode == 0 and "1 of 1 iterations are complete" in again.stdout, again.stdout + again.stderr
