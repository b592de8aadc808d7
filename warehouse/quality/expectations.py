"""Great Expectations suites made from the catalogue, run on one iteration of one table. The pages a person reads are data_docs.py's.

A suite checks columns, types, nulls, closed sets, bounds, keys, and that every reference names a row. A big iteration is checked in chunks
(row_chunks.py), so memory stays bounded. Great Expectations costs seconds to import, so it is imported when a suite first runs; it sends
nothing anywhere.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from warehouse.core.errors import UnknownTable
from warehouse.storage.catalogue import TABLES, Column, Table
from warehouse.storage.row_chunks import PRESENT, chunks, key_of
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

ROWS_SHOWN = 20
_PYTHON_TYPE = {pa.string(): "str", pa.int64(): "int", pa.float64(): "float", pa.bool_(): "bool"}
"""How Great Expectations names the type of an Arrow-backed column."""
_SQL_TYPE = {pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN"}
_COUNTS = ("element_count", "missing_count", "unexpected_count")
_LISTS = ("partial_unexpected_list", "partial_unexpected_index_list", "partial_unexpected_counts")
"""Of an expectation's result: what adds up over chunks of rows, and what is strung together."""


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


def validate(
    warehouse: Warehouse, table: str, iteration: str, stage: str | None = None, *, stages: Sequence[str] | None = None
) -> ValidationReport:
    """Run the table's suite on the rows of one iteration, or of one of its stages; with `stages`, of these, and `stage` is what the report
    calls them. A table without iterations is checked whole; with `stages`, the screenshots that their steps show.

    Never raises for bad rows: they are failures of the report.
    """
    if table not in TABLES:
        raise UnknownTable(f"no table {table!r}: the tables are {', '.join(TABLES)}")
    spec, num_rows = TABLES[table], 0
    result: Any = None
    mistyped: dict[str, _Mistyped] = {}
    wanted = [stage] if stages is None and stage is not None else stages
    for chunk in chunks(warehouse, spec, iteration, wanted):
        rows = _with_reference_columns(warehouse, spec, chunk)
        mistyped = _mistyped(spec, chunk, mistyped)
        num_rows += rows.num_rows
        found = _run(spec, rows)
        result = found if result is None else _merged(result, found)
    failures = tuple(_failure(entry, mistyped) for entry in result.results if not entry.success)
    return ValidationReport(
        table=table,
        iteration=iteration,
        stage=stage,
        success=bool(result.success),
        num_rows=num_rows,
        num_expectations=len(result.results),
        failures=failures,
        result=result,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mistyped:
    """`is_certain`: the rows are those that cannot be of the right type."""

    failure: Failure
    is_certain: bool


def _mistyped(spec: Table, rows: pa.Table, before: Mapping[str, _Mistyped]) -> dict[str, _Mistyped]:
    """For each column that is stored as another type the rows whose value cannot be one of the right type, of these rows and those of
    `before`; the first ones, where all of them could. Great Expectations asks for the type of the whole column and names no row."""
    failures = dict(before)
    for column in spec.columns:
        if column.type not in _PYTHON_TYPE or column.name not in rows.column_names or not rows.num_rows:
            continue
        stored = rows.schema.field(column.name).type
        if stored == column.type:
            continue
        with duckdb.connect(":memory:") as con:
            con.register("rows_to_check", rows)
            names = ", ".join(f'"{name}"' for name in dict.fromkeys([column.name, *key_of(spec)]))
            is_wrong = f'"{column.name}" IS NOT NULL AND TRY_CAST("{column.name}" AS {_SQL_TYPE[column.type]}) IS NULL'
            ((num_wrong,),) = con.execute(f"SELECT count(*) FROM rows_to_check WHERE {is_wrong}").fetchall()
            query = f"SELECT {names} FROM rows_to_check WHERE {is_wrong if num_wrong else 'true'} LIMIT {ROWS_SHOWN}"
            shown = tuple(con.sql(query).to_arrow_table().to_pylist())
        found = Failure(
            expectation="expect_column_values_to_be_of_type",
            column=column.name,
            num_unexpected=num_wrong or rows.num_rows,
            rows=shown,
            detail=f"stored as {stored}, not as {column.type}",
        )
        failures[column.name] = _joined(failures.get(column.name), _Mistyped(failure=found, is_certain=num_wrong > 0))
    return failures


def _joined(first: _Mistyped | None, other: _Mistyped) -> _Mistyped:
    """Of two chunks of rows: those that are wrong, if any are, else the first of all."""
    if first is None or other.is_certain > first.is_certain:
        return other
    if first.is_certain > other.is_certain:
        return first
    rows, num = (*first.failure.rows, *other.failure.rows)[:ROWS_SHOWN], first.failure.num_unexpected + other.failure.num_unexpected
    return replace(first, failure=replace(first.failure, num_unexpected=num, rows=rows))


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
            present = pc.if_else(pc.is_valid(rows.column(index)), PRESENT, pa.scalar(None, pa.string()))
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
    key, notes = key_of(spec), "the key, inside a partition"
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
    shown: Any = {"result_format": "SUMMARY", "unexpected_index_column_names": key_of(spec), "partial_unexpected_count": ROWS_SHOWN}
    return batch.validate(suite, result_format=shown)


def _merged(first: Any, other: Any) -> Any:
    """What one suite found on two chunks of rows, as if on one: counts added, the first failing rows kept. Changes `first`."""
    for entry, more in zip(first.results, other.results, strict=True):
        if entry.success and not more.success:
            entry.success, entry.exception_info = False, more.exception_info
        _merge_result(entry.result, more.result or {}, takes_all=not more.success)
    first.success = first.success and other.success
    num_good = sum(bool(entry.success) for entry in first.results)
    first.statistics |= {
        "successful_expectations": num_good,
        "unsuccessful_expectations": len(first.results) - num_good,
        "success_percent": 100 * num_good / max(1, len(first.results)),
    }
    return first


def _merge_result(into: dict[str, Any], of: dict[str, Any], *, takes_all: bool) -> None:
    for name, value in of.items():
        if name in _COUNTS:
            into[name] = into.get(name, 0) + value
        elif name in _LISTS:
            into[name] = [*(into.get(name) or ()), *(value or ())][:ROWS_SHOWN]
        elif takes_all or name not in into:
            into[name] = value
    if into.get("element_count") and "unexpected_count" in into:
        unexpected, total = into["unexpected_count"], into["element_count"]
        among = max(1, total - into.get("missing_count", 0))
        shares = {
            "missing_percent": 100 * into.get("missing_count", 0) / total,
            "unexpected_percent_total": 100 * unexpected / total,
            "unexpected_percent_nonmissing": 100 * unexpected / among,
            "unexpected_percent": 100 * unexpected / among,
        }
        into.update({name: share for name, share in shares.items() if name in into})


def _failure(entry: Any, mistyped: Mapping[str, _Mistyped]) -> Failure:
    config, result = entry.expectation_config, entry.result or {}
    if config.type == "expect_column_values_to_be_of_type" and config.kwargs.get("column") in mistyped:
        return mistyped[config.kwargs["column"]].failure
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
