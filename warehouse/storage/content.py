"""A digest of what a stage wrote: of its rows, whatever their order, without what another run of the same would write otherwise (how long
things took, how often the infrastructure failed on the way). What is withdrawn later does not change it. For data versions: the same
content is the same, other content is other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from warehouse.core.errors import UnknownTable
from warehouse.storage.catalogue import TABLES, Table
from warehouse.storage.partitions import check_iteration, of_iterations
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

BY_CHANCE = ("iteration", "stage", "duration_ms", "latency_ms", "cost_ms", "num_retries", "error")
"""Columns that say where a row is, or how its making went."""
DERIVED = {"steps": ("prompt_token_ids",)}
"""Columns, by table, that others and the policy determine, and that are long."""


def content_digest(warehouse: Warehouse, tables: Iterable[str], *, iteration: str, stage: str) -> str:
    """SHA-256, in hexadecimal, of the rows of one iteration and stage in some tables. Raises UnknownTable, CorruptTable."""
    check_iteration(iteration)
    wanted = sorted(tables)
    if wrong := [table for table in wanted if table not in TABLES or not TABLES[table].partitioned]:
        raise UnknownTable(f"no table {wrong[0]!r} with iterations and stages")
    digest = hashlib.sha256()
    with connect(warehouse, tables=wanted, iterations=[iteration]) as con:
        for table in wanted:
            digest.update(f"{table}\n".encode())
            if _is_mistyped(warehouse, TABLES[table]):  # its rows cannot be read as they should be; the gate of the table names them
                files = of_iterations(TABLES[table], warehouse.listed(table)[1], [iteration])
                digest.update(repr([file.path for file in files if file.stage == stage]).encode())
                continue
            rows = con.sql(_rows(TABLES[table]), params={"iteration": iteration, "stage": stage})
            with rows.to_arrow_reader() as reader:
                for batch in reader:
                    digest.update("".join(batch.column(0).to_pylist()).encode())
    return digest.hexdigest()


def _is_mistyped(warehouse: Warehouse, spec: Table) -> bool:
    """Whether another program gave a column another type."""
    delta = warehouse.delta(spec.name)
    if delta is None:
        return False
    stored = delta.to_pyarrow_dataset().schema
    return any(stored.field(column.name).type != column.type for column in spec.columns if column.name in stored.names)


def _rows(spec: Table) -> str:
    """SQL of a digest for each row, in the order of these. A struct of named values, so that no two rows share a text."""
    left_out = (*BY_CHANCE, *DERIVED.get(spec.name, ()))
    kept = [column for column in spec.columns if column.name not in left_out]
    values = ", ".join(f"{column.name} := {column.name}" for column in kept)
    return f"""select md5(to_json(struct_pack({values}))::varchar) as row from {spec.name}_stored
        where iteration = $iteration and stage = $stage order by row"""
