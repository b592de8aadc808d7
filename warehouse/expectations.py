"""Great Expectations suites made from the catalogue, run on one iteration of one table. The pages a person reads are data_docs.py's.

A suite checks columns, types, nulls, closed sets, bounds, keys, and that every reference names a row. Great Expectations costs seconds to
import, so it is imported when a suite first runs; it sends nothing anywhere.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from warehouse.catalogue import TABLES, Column, Table
from warehouse.data_docs import build_data_docs as build_data_docs
from warehouse.errors import UnknownTable
from warehouse.query import connect
from warehouse.tables import Warehouse, row_filter

ROWS_SHOWN = 20
_PRESENT = "present"
"""Stands for the content of a column too heavy to load (images, token ids, messages): only its presence is checked."""
_PYTHON_TYPE = {pa.string(): "str", pa.int64(): "int", pa.float64(): "float", pa.bool_(): "bool"}
"""How Great Expectations names the type of an Arrow-backed column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One expectation that did not hold. `rows` are the first failing rows: their key and the unexpected value."""

    expectation: str
    column: str | None
    num_unexpected: int
    rows: tuple[Mapping[str, Any], ...]
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """What one suite found. `result` is Great Expectations' own result, for its pages."""

    table: str
    iteration: str
    stage: str | None
    success: bool
    num_rows: int
    num_expectations: int
    failures: tuple[Failure, ...]
    result: Any = field(repr=False, compare=False)


def validate(warehouse: Warehouse, table: str, iteration: str, stage: str | None = None) -> ValidationReport:
    """Run the table's suite on the rows of one iteration, or of one of its stages. A table without iterations is checked whole.

    Never raises for bad rows: they are failures of the report.
    """
    if table not in TABLES:
        raise UnknownTable(f"no table {table!r}: the tables are {', '.join(TABLES)}")
    spec = TABLES[table]
    rows = _with_reference_columns(warehouse, spec, _load(warehouse, spec, iteration, stage))
    result = _run(spec, rows)
    failures = tuple(_failure(entry) for entry in result.results if not entry.success)
    return ValidationReport(
        table=table, iteration=iteration, stage=stage, success=bool(result.success), num_rows=rows.num_rows,
        num_expectations=len(result.results), failures=failures, result=result,
    )  # fmt: skip


def _load(warehouse: Warehouse, spec: Table, iteration: str, stage: str | None) -> pa.Table:
    """The rows as they are stored, whatever the catalogue says of their columns; heavy columns as `present` or null."""
    delta = warehouse.delta(spec.name)
    dataset = pads.dataset(spec.schema.empty_table()) if delta is None else delta.to_pyarrow_dataset()
    columns = {name: _expression(name, dataset.schema.field(name).type) for name in dataset.schema.names}
    return dataset.to_table(columns=columns, filter=row_filter(spec, iteration=iteration, stage=stage))


def _expression(name: str, type_: pa.DataType) -> pc.Expression:
    if not pa.types.is_nested(type_) and not pa.types.is_binary(type_):
        return pc.field(name)
    if pa.types.is_list(type_) and pa.types.is_string(type_.value_type):
        return pc.field(name)
    return pc.if_else(pc.field(name).is_valid(), _PRESENT, pa.scalar(None, pa.string()))


def _with_reference_columns(warehouse: Warehouse, spec: Table, rows: pa.Table) -> pa.Table:
    """For each reference a column that holds the values which name no row, and null elsewhere; string lists become `present`."""
    references = [column for column in spec.columns if column.checked_reference is not None and column.name in rows.column_names]
    if references and rows.num_rows:
        with connect(warehouse) as con:
            con.register("rows_to_check", rows)
            for column in references:
                parent, _, parent_key = str(column.references).partition(".")
                value = f"unnest({column.name})" if pa.types.is_list(column.type) else column.name
                dangling = con.execute(
                    f"SELECT DISTINCT value FROM (SELECT {value} AS value FROM rows_to_check) WHERE value IS NOT NULL "
                    f"AND NOT list_contains(?, value) AND value NOT IN (SELECT {parent_key} FROM {parent})",
                    [list(column.names_nothing)],
                ).fetchall()
                values = _dangling_of(rows.column(column.name), {value for (value,) in dangling})
                rows = rows.append_column(reference_column(column), values)
    else:
        for column in references:
            rows = rows.append_column(reference_column(column), pa.nulls(rows.num_rows, pa.string()))
    for index, field_ in enumerate(rows.schema):
        if pa.types.is_list(field_.type):
            present = pc.if_else(pc.is_valid(rows.column(index)), _PRESENT, pa.scalar(None, pa.string()))
            rows = rows.set_column(index, field_.name, present)
    return rows


def _dangling_of(values: pa.ChunkedArray, dangling: set[str]) -> pa.Array:
    if not pa.types.is_list(values.type):
        return pc.if_else(pc.is_in(values, value_set=pa.array(sorted(dangling), pa.string())), values, pa.scalar(None, pa.string()))
    named = (", ".join(value for value in row or () if value in dangling) for row in values.to_pylist())
    return pa.array([text or None for text in named], pa.string())


def reference_column(column: Column) -> str:
    """Name of the column that holds the dangling values of a reference."""
    return f"{column.name} that names no {column.references}"


def expectations_of(spec: Table) -> Iterator[Any]:
    """The table's expectations, as objects of Great Expectations."""
    gxe = _great_expectations().expectations
    columns = [column.name for column in spec.columns]
    references = [reference_column(column) for column in spec.columns if column.checked_reference is not None]
    yield gxe.ExpectTableColumnsToMatchSet(column_set=columns + references, exact_match=True)
    key, notes = _key(spec), "the key, inside a partition"
    if len(key) == 1:
        yield gxe.ExpectColumnValuesToBeUnique(column=key[0], notes=notes)
    else:
        yield gxe.ExpectCompoundColumnsToBeUnique(column_list=key, notes=notes)
    if spec.partitioned:
        yield gxe.ExpectColumnValuesToMatchRegex(column="iteration", regex=r"^\d{4}$")
    for column in spec.columns:
        if not column.nullable:
            yield gxe.ExpectColumnValuesToNotBeNull(column=column.name, notes=column.meaning)
        if column.type in _PYTHON_TYPE:
            yield gxe.ExpectColumnValuesToBeOfType(column=column.name, type_=_PYTHON_TYPE[column.type], notes=column.meaning)
        if column.values is not None:
            yield gxe.ExpectColumnValuesToBeInSet(column=column.name, value_set=list(column.values), notes=column.meaning)
        if column.minimum is not None or column.maximum is not None:
            yield gxe.ExpectColumnValuesToBeBetween(
                column=column.name, min_value=column.minimum, max_value=column.maximum, notes=column.meaning
            )
        if column.checked_reference is not None:
            yield gxe.ExpectColumnValuesToBeNull(column=reference_column(column), notes=f"{column.name} names a row of {column.references}")


def _great_expectations() -> Any:
    """The library, quiet: its analytics off, and the warnings of what it imports left out."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import great_expectations as gx
        import great_expectations.expectations
    return gx


def _key(spec: Table) -> list[str]:
    return list(dict.fromkeys([*spec.partition_by, *spec.key]))


def _run(spec: Table, rows: pa.Table) -> Any:
    """The suite's result on an Arrow-backed pandas batch. (Great Expectations' DuckDB path closes its connection before it fetches.)"""
    gx = _great_expectations()
    import pandas as pd

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    asset = context.data_sources.add_pandas("warehouse").add_dataframe_asset(spec.name)
    frame = rows.to_pandas(types_mapper=pd.ArrowDtype)
    batch = asset.add_batch_definition_whole_dataframe("rows").get_batch({"dataframe": frame})
    suite = gx.ExpectationSuite(name=spec.name, expectations=list(expectations_of(spec)))
    shown: Any = {"result_format": "SUMMARY", "unexpected_index_column_names": _key(spec), "partial_unexpected_count": ROWS_SHOWN}
    return batch.validate(suite, result_format=shown)


def _failure(entry: Any) -> Failure:
    config, result = entry.expectation_config, entry.result or {}
    rows = result.get("partial_unexpected_index_list") or [{"value": value} for value in result.get("partial_unexpected_list", ())]
    errors = [info["exception_message"] for info in _exceptions(entry.exception_info) if info.get("exception_message")]
    observed = result.get("observed_value")
    detail = "; ".join([*errors, *([f"observed {observed}"] if observed is not None else ())])
    return Failure(
        expectation=config.type,
        column=config.kwargs.get("column"),
        num_unexpected=int(result.get("unexpected_count", 0)),
        rows=tuple(rows[:ROWS_SHOWN]),
        detail=detail,
    )


def _exceptions(info: Any) -> list[dict[str, Any]]:
    """Great Expectations gives one such record, or one for each metric."""
    if not isinstance(info, dict):
        return []
    return [info] if "exception_message" in info else [entry for entry in info.values() if isinstance(entry, dict)]
