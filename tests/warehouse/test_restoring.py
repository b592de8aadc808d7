"""Putting a table back: rows, types and what `as_of` finds; what was purged stays so."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from warehouse.core.errors import UnknownTable
from warehouse.datasets.withdrawal import purge, withdraw
from warehouse.storage.repair.restoring import restore
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.usefixtures("tables_place")

ROUTED = {"iteration": "0001", "stage": "routing"}


def test_rows_and_types_are_as_they_were_and_nothing_is_lost(warehouse: Warehouse, make: Any) -> None:
    rows = [{"episode_id": name, "route": "ct", "reason": "V=0"} for name in "ab"]
    good = warehouse.replace_partition("routes", rows, **ROUTED)
    assert restore(warehouse, "routes", good) == good, "it is as it was"
    delta = warehouse.delta("routes")
    assert delta is not None
    stored = delta.to_pyarrow_dataset().to_table()
    wrong = stored.set_column(stored.schema.get_field_index("route"), "route", pa.array([1, 2])).slice(0, 1)
    write_deltalake(delta, wrong, mode="overwrite", schema_mode="overwrite", partition_by=["iteration", "stage"])
    damaged = warehouse.version("routes")
    assert restore(warehouse, "routes", good) == damaged + 1 == warehouse.version("routes", as_of="0001")
    assert sorted(warehouse.read("routes").column("route").to_pylist()) == ["ct", "ct"]
    assert warehouse.read("routes").schema == stored.schema
    assert warehouse.replace_partition("routes", rows[:1], **ROUTED) == damaged + 2, "the flywheel writes on"
    assert warehouse.read("routes", version=good).num_rows == 2, "every version stays readable"


def test_what_there_is_not_or_was_purged_cannot_be_put_back(warehouse: Warehouse, make: Any) -> None:
    with pytest.raises(UnknownTable, match="none yet"):
        restore(warehouse, "sft_samples", 0)
    version = warehouse.replace_partition("sft_samples", [make.sample("a"), make.sample("b")], **ROUTED)
    with pytest.raises(UnknownTable, match="has no version 9: it has 0 to"):
        restore(warehouse, "sft_samples", 9)
    withdraw(warehouse, "sft_samples", ["a"], iteration="0001")
    purge(warehouse)
    with pytest.raises(UnknownTable, match="a purge erased version"):
        restore(warehouse, "sft_samples", version)
