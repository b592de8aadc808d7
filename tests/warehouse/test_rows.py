"""Rows become Arrow exactly as the catalogue says, or are refused with their row, column and value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warehouse.core.errors import SchemaMismatch
from warehouse.storage.catalogue import TABLES, Column, Table
from warehouse.storage.rows import check_key, to_arrow

EPISODES, STEPS, SAMPLES = TABLES["episodes"], TABLES["steps"], TABLES["sft_samples"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def _value(column: Column) -> st.SearchStrategy[Any]:
    if column.values is not None:
        strategy: st.SearchStrategy[Any] = st.sampled_from(column.values)
    elif column.type == pa.string():
        strategy = TEXT
    elif column.type == pa.int64():
        strategy = st.integers(int(column.minimum or 0), int(column.maximum or 2**62))
    elif column.type == pa.float64():
        strategy = st.floats(column.minimum or 0.0, column.maximum if column.maximum is not None else 1e9)
    elif column.type == pa.bool_():
        strategy = st.booleans()
    elif column.type == pa.binary():
        strategy = st.binary(max_size=8)
    elif column.type == pa.list_(pa.string()):
        strategy = st.lists(TEXT, max_size=3)
    elif column.type == pa.list_(pa.int64()):
        strategy = st.lists(st.integers(0, 50_000), max_size=5)
    elif column.type == pa.list_(pa.float32()):
        strategy = st.lists(st.floats(-50, 0, width=32), max_size=5)
    else:
        message = st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant"]), "content": TEXT, "loss": st.sampled_from([0.0, 0.5, 1.0])},
            optional={"screenshot_id": st.none() | TEXT},
        )
        strategy = st.lists(message, max_size=3)
    return st.none() | strategy if column.nullable else strategy


def _rows(table: Table) -> st.SearchStrategy[list[dict[str, Any]]]:
    own = [column for column in table.columns if column.name not in table.partition_by]
    return st.lists(st.fixed_dictionaries({column.name: _value(column) for column in own}), max_size=4)


@given(data=st.data(), table=st.sampled_from(sorted(TABLES)))
def test_what_fits_comes_back_as_it_went_in(data: st.DataObject, table: str) -> None:
    spec, rows = TABLES[table], data.draw(_rows(TABLES[table]))
    result = to_arrow(spec, rows, iteration="0001", stage="rollouts")
    assert result.schema.equals(spec.schema)
    for row, back in zip(rows, result.to_pylist(), strict=True):
        for name, value in row.items():
            if spec.column(name).type in (pa.list_(pa.float32()),):
                assert np.array_equal(np.float32(value), np.float32(back[name]))
            elif isinstance(value, list) and value and isinstance(value[0], dict):
                assert back[name] == [{"screenshot_id": None} | message for message in value]
            else:
                assert back[name] == value
        if spec.partitioned:
            assert (back["iteration"], back["stage"]) == ("0001", "rollouts")
    assert to_arrow(spec, result, iteration="0001", stage="rollouts").equals(result)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("seed", 1.5, "int64"),
        ("seed", True, "int64"),
        ("seed", "1", "int64"),
        ("seed", 2**70, "int64"),
        ("seed", -1, "the least is 0"),
        ("temperature", True, "double"),
        ("temperature", math.nan, "the least is 0"),
        ("reward", 1.5, "the most is 1"),
        ("outcome", "sucess", "allowed are success, failure"),
        ("outcome", None, "null is not allowed"),
        ("instruction", b"bytes", "string"),
        ("instruction", "\ud800", "string"),
        ("task_id", 7, "string"),
    ],
)
def test_what_does_not_fit_is_named(make: Any, column: str, value: object, said: str) -> None:
    rows = [make.episode("ep-0"), make.episode("ep-1", **{column: value})]
    with pytest.raises(SchemaMismatch) as caught:
        to_arrow(EPISODES, rows, iteration="0001", stage="rollouts")
    message = str(caught.value)
    assert "episodes row 1" in message and f"`{column}`" in message and said in message and "Fix" in message
    if value is not None and column != "instruction":
        assert repr(value)[:60] in message


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("prompt_token_ids", [1, 2.5]),
        ("prompt_token_ids", "12"),
        ("response_logprobs", ["-1"]),
        ("messages", [{"role": "user", "content": "hi", "loss": 0.0, "colour": "red"}]),
        ("messages", [{"role": "robot", "content": "hi", "loss": 0.0}]),
        ("messages", [{"role": "user", "content": None, "loss": 0.0}]),
        ("messages", [{"role": "user", "content": "hi"}]),
        ("messages", [{"role": "user", "content": "hi", "loss": -1.0}]),
    ],
)
def test_lists_and_messages_are_looked_into(make: Any, column: str, value: object) -> None:
    rows = [make.step("ep", 0), make.step("ep", 1, **{column: value})]
    with pytest.raises(SchemaMismatch, match=f"steps row 1: column `{column}`"):
        to_arrow(STEPS, rows, iteration="0001", stage="rollouts")


def test_numpy_values_and_tuples_are_fine(make: Any) -> None:
    row = make.step("ep", np.int64(0), prompt_token_ids=np.array([1, 2]), response_logprobs=(np.float32(-0.5),), reward=np.float32(0.5))
    back = to_arrow(STEPS, [row], iteration="0001", stage="rollouts").to_pylist()[0]
    assert (back["prompt_token_ids"], back["response_logprobs"], back["reward"]) == ([1, 2], [-0.5], 0.5)


def test_unknown_and_missing_columns_are_named_both(make: Any) -> None:
    row = make.episode("ep", colour="red")
    del row["outcome"], row["instruction"]  # `instruction` may be null: it is not missed
    with pytest.raises(SchemaMismatch, match=r"episodes row 0: unknown columns \['colour'\]; missing columns \['outcome'\]"):
        to_arrow(EPISODES, [row], iteration="0001", stage="rollouts")
    table = pa.table({"episode_id": ["a"], "colour": ["red"]})
    with pytest.raises(SchemaMismatch, match=r"episodes: unknown columns \['colour'\]; missing columns"):
        to_arrow(EPISODES, table, iteration="0001", stage="rollouts")


def test_arrow_columns_of_other_types_are_converted_only_without_loss(make: Any) -> None:
    good = to_arrow(EPISODES, [make.episode("ep")], iteration="0001", stage="rollouts")
    index = good.schema.get_field_index("seed")
    small = good.set_column(index, "seed", pa.array([7], pa.int16()))
    assert to_arrow(EPISODES, small, iteration="0001", stage="rollouts").column("seed").to_pylist() == [7]
    with pytest.raises(SchemaMismatch, match=r"`seed`.*has 7\.0"):
        to_arrow(EPISODES, good.set_column(index, "seed", pa.array([7.0])), iteration="0001", stage="rollouts")


def test_rows_of_another_partition_are_refused(make: Any) -> None:
    with pytest.raises(SchemaMismatch, match="the partition being written says '0001'"):
        to_arrow(EPISODES, [make.episode("ep", iteration="0002")], iteration="0001", stage="rollouts")
    to_arrow(EPISODES, [make.episode("ep", iteration="0001")], iteration="0001", stage="rollouts")


def test_repeated_keys_are_counted_and_shown(make: Any) -> None:
    rows = [make.step("ep", 0), make.step("ep", 1), make.step("ep", 1)]
    with pytest.raises(SchemaMismatch, match="2 rows share the key episode_id='ep', step_index=1"):
        check_key(STEPS, to_arrow(STEPS, rows, iteration="0001", stage="rollouts"))
    check_key(STEPS, to_arrow(STEPS, rows[:2], iteration="0001", stage="rollouts"))


def test_a_long_value_is_cut_in_the_message(make: Any) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        to_arrow(EPISODES, [make.episode("ep", outcome="x" * 5000)], iteration="0001", stage="rollouts")
    assert len(str(caught.value)) < 500
