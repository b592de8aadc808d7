"""SQL by which DuckDB's own reader reads data files. It takes less of the processor than Arrow's datasets, whose import alone brings pandas
along; its user has checked the files (Warehouse.files), on a connection that may read them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from warehouse.storage.catalogue import TABLES, Table

_TYPES = {"string": "VARCHAR", "int64": "BIGINT", "double": "DOUBLE", "float": "FLOAT", "bool": "BOOLEAN", "binary": "BLOB"}
"""Of DuckDB, by Arrow's name."""


def duckdb_type(type_: pa.DataType) -> str:
    """What DuckDB calls a type of the catalogue."""
    if pa.types.is_list(type_):
        return f"{duckdb_type(type_.value_type)}[]"
    if pa.types.is_struct(type_):
        return f"STRUCT({', '.join(f'{field.name} {duckdb_type(field.type)}' for field in type_)})"
    return _TYPES[str(type_)]


def stored_rows(table: str, paths: Iterable[Path]) -> str:
    """SQL of the rows of these data files, with the columns that these have: `SELECT … FROM` it."""
    spec = TABLES[table]
    listed = ", ".join(f"'{file}'" for file in (str(path).replace("'", "''") for path in sorted(paths)))
    partitions = ", ".join(f"'{name}': VARCHAR" for name in spec.partition_by)
    hive = f", hive_partitioning = true, hive_types = {{{partitions}}}" if spec.partition_by else ", hive_partitioning = false"
    return f"read_parquet([{listed}], union_by_name = true{hive})"


def later_columns(table: str, stored: Collection[str]) -> str:
    """SQL that completes a list of columns, `SELECT *{}`, by those that the catalogue has gained since files with the columns `stored` were
    written: null, as query.connect has them."""
    missing = [column for column in TABLES[table].columns if column.nullable and column.name not in stored]
    return "".join(f", NULL::{duckdb_type(column.type)} AS {column.name}" for column in missing)


def typed_rows(spec: Table, paths: Sequence[Path]) -> str:
    """SQL of the rows of these data files with the columns and types of the catalogue, null where a file is older than a column; none for
    no files."""
    columns = ", ".join(f"NULL::{duckdb_type(column.type)} AS {column.name}" for column in spec.columns)
    empty = f"SELECT {columns} WHERE false"
    names = ", ".join(column.name for column in spec.columns)
    rows = f"{empty} UNION ALL BY NAME FROM {stored_rows(spec.name, paths)}" if paths else empty
    return f"SELECT {names} FROM ({rows})"
