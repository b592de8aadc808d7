"""Digests of what stages wrote, which data versions are made of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.warehouse.conftest import Make
from warehouse.core.errors import UnknownTable
from warehouse.datasets.withdrawal import withdraw
from warehouse.storage.content import content_digest
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.usefixtures("tables_place")

PLACE = {"iteration": "0001", "stage": "rollouts"}


def digest(warehouse: Warehouse, *, changes: dict[str, Any] | None = None, is_turned: bool = False) -> str:
    """Of two episodes, one solved and one not, `changes` to the first step; whichever way round they were stored."""
    episodes = [Make.episode("ep-a"), Make.episode("ep-b", outcome="failure", reward=0.0)]
    steps = [Make.step("ep-a", 0, **(changes or {})), Make.step("ep-b", 0)]
    for table, rows in (("episodes", episodes), ("steps", steps)):
        warehouse.replace_partition(table, rows[::-1] if is_turned else rows, **PLACE)
    return content_digest(warehouse, ("episodes", "steps"), **PLACE)


def test_the_same_rows_are_the_same_in_any_order_and_however_long_they_took(warehouse: Warehouse) -> None:
    first = digest(warehouse)
    assert digest(warehouse, is_turned=True) == first and digest(warehouse, changes={"latency_ms": 99.0}) == first
    warehouse.replace_partition("episodes", [Make.episode("ep-other")], iteration="0001", stage="annotations")
    warehouse.replace_partition("episodes", [Make.episode("ep-next")], iteration="0002", stage="rollouts")
    assert content_digest(warehouse, ("steps", "episodes"), **PLACE) == first, "of no other stage or iteration"
    slow = [Make.episode("ep-a", duration_ms=1e6, num_retries=2), Make.episode("ep-b", outcome="failure", reward=0.0)]
    warehouse.replace_partition("episodes", slow, **PLACE)
    assert content_digest(warehouse, ("episodes", "steps"), **PLACE) == first


@pytest.mark.parametrize(
    "changes",
    [
        {"response": "Action wait"},
        {"screenshot_id": None},
        {"messages": Make.messages("other")},
        {"response_token_ids": [4]},
        {"observation": ""},
        {"reward": 1.0},
    ],
)
def test_other_content_is_other_though_there_is_as_much_of_it(warehouse: Warehouse, changes: dict[str, Any]) -> None:
    assert digest(warehouse, changes=changes) != digest(warehouse)


def test_episodes_that_change_places_are_others_with_the_same_counts(warehouse: Warehouse) -> None:
    first = digest(warehouse)
    turned = [Make.episode("ep-a", outcome="failure", reward=0.0), Make.episode("ep-b")]
    warehouse.replace_partition("episodes", turned, **PLACE)
    assert content_digest(warehouse, ("episodes", "steps"), **PLACE) != first


def test_what_is_withdrawn_later_changes_nothing_of_what_was_written(warehouse: Warehouse) -> None:
    place = {"iteration": "0001", "stage": "routing"}
    warehouse.replace_partition("sft_samples", [Make.sample("a"), Make.sample("b")], **place)
    first = content_digest(warehouse, ["sft_samples"], **place)
    withdraw(warehouse, "sft_samples", ["a"], iteration="0002")
    assert content_digest(warehouse, ["sft_samples"], **place) == first
    assert content_digest(warehouse, ["ct_samples"], **place) != first, "of no rows at all"
    with pytest.raises(UnknownTable, match="'screenshots'"):
        content_digest(warehouse, ["screenshots"], **place)


def test_a_column_that_another_program_gave_another_type_is_other_content_and_no_error(warehouse: Warehouse) -> None:
    """The stage that wrote the rows ends well; its gate stops the run, and names them."""
    before = digest(warehouse)
    delta = warehouse.delta("steps")
    rows = delta.to_pyarrow_dataset().to_table()
    index = rows.schema.get_field_index("step_index")
    changed = rows.set_column(index, "step_index", pa.array(["first", "0"]))
    write_deltalake(delta, changed, mode="overwrite", schema_mode="overwrite", partition_by=delta.metadata().partition_columns)
    assert content_digest(warehouse, ("episodes", "steps"), **PLACE) != before
