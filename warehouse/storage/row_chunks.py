"""Rows of one iteration of one table, a bounded number at a time, for checks that look at every row (expectations.py).

Rows with the same key always come in the same chunk, so what is unique in each chunk is unique in all. What is too heavy to load (images,
token ids, messages, long texts) comes as a mark that says whether it is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from warehouse.storage.catalogue import TABLES, Column, Table
from warehouse.storage.partitions import row_filter
from warehouse.storage.tables import Warehouse

CHUNK_ROWS = 100_000
"""A suite of the widest table takes some 200 MiB for so many."""
PRESENT = "present"
"""Stands for the content of a column too heavy to load: only its presence is checked."""
_MEMORY_LIMIT = "256MB"
_BATCH_ROWS = 16_384


def chunks(
    warehouse: Warehouse, spec: Table, iteration: str, stages: Sequence[str] | None, *, chunk_rows: int | None = None
) -> Iterator[pa.Table]:
    """The rows of an iteration, or of some of its stages, as they are stored, whatever the catalogue says of their columns; one empty table
    where there are none."""
    dataset = warehouse.stored_dataset(spec.name)
    wanted = _of_stages(warehouse, spec, iteration, stages)
    columns = {name: _expression(spec, name, dataset.schema.field(name).type) for name in dataset.schema.names}
    num_chunks = math.ceil(dataset.count_rows(filter=wanted) / (chunk_rows or CHUNK_ROWS))
    if num_chunks <= 1:
        yield dataset.to_table(columns=columns, filter=wanted)
        return
    scanner = dataset.scanner(columns=columns, filter=wanted, batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1)
    yield from _by_key(warehouse, [name for name in key_of(spec) if name in columns], scanner.to_reader(), num_chunks)


def _of_stages(warehouse: Warehouse, spec: Table, iteration: str, stages: Sequence[str] | None) -> pc.Expression | None:
    """Screenshots have no stages: they are of those whose steps show them."""
    of_iteration = row_filter(spec, iteration=iteration)
    if stages is None:
        return of_iteration
    of_stages = pc.field("stage").isin(pa.array(stages, pa.string()))
    if spec.partitioned:
        return of_iteration & of_stages
    steps = TABLES["steps"]
    named = row_filter(steps, iteration=iteration) & of_stages
    shown = warehouse.stored_dataset(steps.name).to_table(columns=["screenshot_id"], filter=named).column("screenshot_id")
    return pc.field("screenshot_id").isin(pc.unique(shown).drop_null())


def _by_key(warehouse: Warehouse, key: Sequence[str], rows: pa.RecordBatchReader, num_chunks: int) -> Iterator[pa.Table]:
    """Sorted into chunks by DuckDB, which goes to the disk with what does not fit."""
    schema = rows.schema
    with duckdb.connect(":memory:") as con:
        con.execute("SET memory_limit = ?", [_MEMORY_LIMIT])
        con.execute("SET temp_directory = ?", [str(warehouse.home.scratch / "duckdb")])
        con.register("rows", rows)
        names = ", ".join(f'"{name}"' for name in key)
        con.execute(f"CREATE TEMP TABLE sorted AS SELECT *, hash({names}) % {num_chunks} AS chunk FROM rows")
        for chunk in range(num_chunks):
            found = con.sql(f"SELECT * EXCLUDE (chunk) FROM sorted WHERE chunk = {chunk}").to_arrow_table()
            yield found.cast(schema)


def key_of(spec: Table) -> list[str]:
    """The columns by which a row is named: where it lies, and its key there."""
    return list(dict.fromkeys([*spec.partition_by, *spec.key]))


def _expression(spec: Table, name: str, type_: pa.DataType) -> pc.Expression:
    column = next((column for column in spec.columns if column.name == name), None)
    if pa.types.is_list(type_) and pa.types.is_string(type_.value_type):
        return pc.field(name)
    if pa.types.is_nested(type_) or pa.types.is_binary(type_) or (pa.types.is_string(type_) and _is_free_text(spec, column)):
        return pc.if_else(pc.field(name).is_valid(), PRESENT, pa.scalar(None, pa.string()))
    return pc.field(name)


def _is_free_text(spec: Table, column: Column | None) -> bool:
    """A text of which nothing is asked but that it is one."""
    if column is None or not pa.types.is_string(column.type) or column.name in key_of(spec):
        return False
    return column.values is None and column.references is None
