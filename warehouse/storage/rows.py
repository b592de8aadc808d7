"""Rows to Arrow, exactly as the catalogue says or not at all: types, nulls, closed sets, bounds, keys. Nothing here touches a disk.

Arrow by itself is lenient (1.5 becomes 1, "abc" becomes three strings, an unknown key is dropped); a table that later stages trust is not.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warehouse.core.errors import SchemaMismatch
from warehouse.storage.catalogue import MESSAGES, ROLES, Column, Table

LONGEST_VALUE_SHOWN = 80


def to_arrow(table: Table, rows: Sequence[Mapping[str, Any]] | pa.Table, *, iteration: str = "", stage: str = "") -> pa.Table:
    """The rows as an Arrow table of the catalogue's schema, with `iteration` and `stage` filled in for a partitioned table.

    Missing nullable columns become null; keys are check_key's business. Raises SchemaMismatch naming column, row and value where
    anything does not fit.
    """
    fixed = {"iteration": iteration, "stage": stage} if table.partitioned else {}
    _check_names(table, rows, fixed)
    columns = [
        _fixed_column(table, rows, column, fixed[column.name]) if column.name in fixed else _column(table, rows, column)
        for column in table.columns
    ]
    result = pa.table(columns, schema=table.schema)
    for column in table.columns:
        _check_values(table, column, result.column(column.name))
    return result


def check_key(table: Table, rows: pa.Table) -> None:
    """Raise SchemaMismatch where two rows share the table's key."""
    counts = rows.select(list(table.key)).group_by(list(table.key)).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts.column("count_all"), 1))
    if repeated.num_rows:
        first = repeated.slice(0, 1).to_pylist()[0]
        count = first.pop("count_all")
        key = ", ".join(f"{name}={_show(value)}" for name, value in first.items())
        raise SchemaMismatch(
            f"{table.name}: {count} rows share the key {key} ({repeated.num_rows} keys are repeated): "
            f"({', '.join(table.key)}) must be unique inside a partition; drop or merge the repeated rows"
        )


def _check_names(table: Table, rows: Sequence[Mapping[str, Any]] | pa.Table, fixed: Mapping[str, str]) -> None:
    allowed = {column.name for column in table.columns}
    required = {column.name for column in table.columns if not column.nullable} - fixed.keys()
    is_arrow = isinstance(rows, pa.Table)
    for index, names in enumerate(map(set, [rows.column_names] if isinstance(rows, pa.Table) else rows)):
        if names <= allowed and required <= names:
            continue
        where = table.name if is_arrow else f"{table.name} row {index}"
        unknown, missing = sorted(names - allowed), sorted(required - names)
        what = "; ".join(part for part in (unknown and f"unknown columns {unknown}", missing and f"missing columns {missing}") if part)
        raise SchemaMismatch(f"{where}: {what}. The columns are {sorted(allowed)}: fix the rows or warehouse/storage/catalogue.py")


def _fixed_column(table: Table, rows: Sequence[Mapping[str, Any]] | pa.Table, column: Column, value: str) -> pa.ChunkedArray:
    given: Sequence[Any]
    if isinstance(rows, pa.Table):
        given = rows.column(column.name).to_pylist() if column.name in rows.column_names else ()
    else:
        given = [row.get(column.name, value) for row in rows]
    for index, other in enumerate(given):
        if other != value:
            _fail(table, column, index, other, f"the partition being written says {value!r}")
    return pa.chunked_array([pa.repeat(pa.scalar(value, column.type), len(rows))])


def _column(table: Table, rows: Sequence[Mapping[str, Any]] | pa.Table, column: Column) -> pa.ChunkedArray:
    if not isinstance(rows, pa.Table):
        return _from_values(table, column, [row.get(column.name) for row in rows])
    if column.name not in rows.column_names:
        return pa.chunked_array([pa.nulls(len(rows), column.type)])
    given = rows.column(column.name)
    return given if given.type == column.type else _from_values(table, column, given.to_pylist())


def _from_values(table: Table, column: Column, values: list[Any]) -> pa.ChunkedArray:
    if not _fits(values, column.type):
        index = next(i for i, value in enumerate(values) if not _fits([value], column.type))
        _fail(table, column, index, values[index], f"the type is {column.type}")
    try:
        return pa.chunked_array([pa.array(values, type=column.type)])
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        for index, value in enumerate(values):
            try:
                pa.array([value], type=column.type)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                _fail(table, column, index, value, f"the type is {column.type}: {error}")
        raise


def _fits(values: Iterable[Any], type_: pa.DataType) -> bool:
    """Whether every value is of a Python type that holds this Arrow type without loss; None always is (nulls are checked later)."""
    present = [value for value in values if value is not None]
    if pa.types.is_list(type_):
        if not all(issubclass(kind, (list, tuple, np.ndarray)) for kind in set(map(type, present))):
            return False
        return _fits(chain.from_iterable(present), type_.value_type)
    if pa.types.is_struct(type_):
        names = {field.name for field in type_}
        if not all(isinstance(value, Mapping) and value.keys() <= names for value in present):
            return False
        return all(_fits((value.get(field.name) for value in present), field.type) for field in type_)
    return all(_is_scalar_kind(kind, type_) for kind in set(map(type, present)))


def _is_scalar_kind(kind: type, type_: pa.DataType) -> bool:
    is_bool = issubclass(kind, (bool, np.bool_))
    if pa.types.is_boolean(type_):
        return is_bool
    if pa.types.is_integer(type_):
        return issubclass(kind, numbers.Integral) and not is_bool
    if pa.types.is_floating(type_):
        return issubclass(kind, numbers.Real) and not is_bool
    if pa.types.is_binary(type_):
        return issubclass(kind, (bytes, bytearray, memoryview))
    return issubclass(kind, str)


def _check_values(table: Table, column: Column, values: pa.ChunkedArray) -> None:
    if not column.nullable and values.null_count:
        _fail(table, column, _first(pc.is_null(values)), None, "null is not allowed")
    if column.values is not None:
        known = pc.or_(pc.is_in(values, value_set=pa.array(column.values, column.type)), pc.is_null(values))
        _fail_where(table, column, values, pc.invert(known), f"allowed are {', '.join(column.values)}")
    if column.minimum is not None:
        # `not >=` rather than `<`: it also catches NaN.
        _fail_where(table, column, values, pc.invert(pc.greater_equal(values, column.minimum)), f"the least is {column.minimum:g}")
    if column.maximum is not None:
        _fail_where(table, column, values, pc.invert(pc.less_equal(values, column.maximum)), f"the most is {column.maximum:g}")
    if column.type == MESSAGES:
        _check_messages(table, column, values)


def _check_messages(table: Table, column: Column, values: pa.ChunkedArray) -> None:
    """Every message has a role of the closed set, a content, and a loss weight of at least zero."""
    messages, parents = pc.list_flatten(values), pc.list_parent_indices(values)
    bad_role = pc.invert(pc.is_in(pc.struct_field(messages, "role"), value_set=pa.array(ROLES)))
    bad_content = pc.is_null(pc.struct_field(messages, "content"))
    bad_loss = pc.invert(pc.fill_null(pc.greater_equal(pc.struct_field(messages, "loss"), 0.0), False))
    for wrong, allowed in (
        (bad_role, f"a message's role is one of {', '.join(ROLES)}"),
        (bad_content, "a message's content is a text, never null"),
        (bad_loss, "a message's loss is a weight of at least 0"),
    ):
        if pc.any(wrong).as_py():
            index = _first(wrong)
            _fail(table, column, parents[index].as_py(), messages[index].as_py(), allowed)


def _fail_where(table: Table, column: Column, values: pa.ChunkedArray, wrong: pa.ChunkedArray, allowed: str) -> None:
    if pc.any(wrong).as_py():
        index = _first(wrong)
        _fail(table, column, index, values[index].as_py(), allowed)


def _first(mask: pa.ChunkedArray) -> int:
    return int(pc.index(mask, True).as_py())


def _fail(table: Table, column: Column, index: int, value: Any, allowed: str) -> NoReturn:
    raise SchemaMismatch(
        f"{table.name} row {index}: column `{column.name}` ({column.meaning}) has {_show(value)}; {allowed}. "
        "Fix the row, or the column in warehouse/storage/catalogue.py"
    )


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE_SHOWN else f"{text[:LONGEST_VALUE_SHOWN]}… ({len(text)} characters)"
