"""An iteration whose tables and checkpoints lie in an object store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.iterations.conftest import Finished
from tests.iterations.repeatable import assert_same_rows
from warehouse.core.home import Home
from warehouse.core.store import STORE_VARIABLE, Store
from warehouse.lineage import registry
from warehouse.storage.tables import Warehouse

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]


def test_an_iteration_in_an_object_store_gives_what_it_gives_on_a_disk(
    finished_home: Finished, finished_with: Callable[[dict[str, str]], Finished], store: Store, tmp_path: Path
) -> None:
    far = finished_with({STORE_VARIABLE: store.url})
    assert_same_rows(Warehouse(Home(finished_home.base / "home", None)), Warehouse(far.home))
    assert not (far.base / "home" / "tables").exists()
    released = registry.released(Warehouse(Home(tmp_path / "another-host")))
    assert (released.folder / "card.json").is_file() and released.folder.is_relative_to(tmp_path)
    ran = far.flywheel("verify")
    assert ran.returncode == 0 and "as it was written" in ran.stdout, ran.stdout + ran.stderr
    again = far.flywheel("run", "--iterations", "1", timeout_s=600)
    assert again.returncode == 0 and "1 of 1 iterations are complete" in again.stdout, again.stdout + again.stderr
