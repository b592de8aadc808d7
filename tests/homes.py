"""Homes that tests of a module or of the whole run share, as each test may change them."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from warehouse.core.errors import CheckpointError
from warehouse.core.home import Home
from warehouse.core.store import Store
from warehouse.storage.remote.copying import to_store
from warehouse.storage.tables import Warehouse


def copied(made: Warehouse, to: Path) -> Warehouse:
    """A copy of a home on a disk; where the test's tables lie in an object store (the fixture `tables_place`), in there."""
    home = Home(made.home.root, None)
    shutil.copytree(home.root, to)
    if (store := Store.from_env()) is not None:
        for part in to_store(Home(to, None), store):
            with suppress(CheckpointError):  # tests register checkpoints that have no files
                part.copy()
        shutil.rmtree(to / "tables")
    return Warehouse(Home(to))
