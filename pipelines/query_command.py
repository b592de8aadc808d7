"""What `flywheel sql`, `lineage`, `export`, `withdraw` and `merge` do: the warehouse's own functions, with a terminal in front."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from duckdb import DuckDBPyConnection
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from warehouse import registry
from warehouse.errors import CheckpointError, ConfigError, IterationLocked, UnknownId, UnknownTable
from warehouse.locks import LOOKED_AT_S, FileLock
from warehouse.query import connect, run
from warehouse.tables import Warehouse

ROWS_SHOWN = 200
CELL_CHARS = 80
DIRECTIONS: dict[str, Literal["up", "down", "both"]] = {"up": "up", "down": "down", "both": "both"}


def run_query(warehouse: Warehouse, query: str, as_of: str | None, as_json: bool, console: Console) -> None:
    """Print a query's rows. Raises QueryError with DuckDB's own words when it is wrong, CorruptTable for a damaged file."""
    table = run(warehouse, query, as_of=as_of)
    if as_json:
        for row in table.to_pylist():
            print(json.dumps(row, default=str))
        return
    shown = RichTable()
    for name in table.column_names:
        shown.add_column(escape(name))
    for row in table.slice(0, ROWS_SHOWN).to_pylist():
        shown.add_row(*(escape(_cell(value)) for value in row.values()))
    console.print(shown)
    if table.num_rows > ROWS_SHOWN:
        console.print(f"{table.num_rows - ROWS_SHOWN} more rows; add `limit`, or --json for all")


def _cell(value: object) -> str:
    text = f"<{len(value)} bytes>" if isinstance(value, bytes) else str(value)
    return text if len(text) <= CELL_CHARS else text[: CELL_CHARS - 1] + "…"


def checkpoint_named(warehouse: Warehouse, name: str) -> registry.Registered:
    """A checkpoint by id or as ITERATION/STAGE. Raises CheckpointError."""
    iteration, slash, stage = name.partition("/")
    return registry.made_by(warehouse, iteration, stage) if slash else registry.find(warehouse, name)


def show_lineage(
    warehouse: Warehouse, identity: str, direction: str, depth: int | None, svg: Path | None, mermaid: Path | None, console: Console
) -> None:
    """Print a lineage tree; draw it where asked."""
    from warehouse.lineage import trace

    way = DIRECTIONS.get(direction)
    if way is None:
        raise ConfigError(f"--direction {direction!r}: {', '.join(DIRECTIONS)} are allowed")
    graph = trace(connect(warehouse), identity, direction=way, depth=depth)
    console.print(graph.to_tree())
    if svg is not None:
        svg.write_text(graph.to_svg())
        console.print(f"drawn: {svg}")
    if mermaid is not None:
        mermaid.write_text(graph.to_mermaid())
        console.print(f"written: {mermaid}")


def merge_checkpoints(warehouse: Warehouse, parents: list[str], output: Path, weights: str | None, console: Console) -> None:
    """Merge and say what was made. Raises MergeError, CheckpointError or ConfigError."""
    from models.merge import merge_linear

    try:
        alphas = [float(part) for part in weights.split(",")] if weights else [1 / len(parents)] * len(parents)
    except ValueError as error:
        raise ConfigError(f"--weights {weights!r} is not a comma-separated list of numbers, e.g. 0.5,0.5") from error
    folders = [Path(name) if Path(name, "config.json").is_file() else _folder(warehouse, name) for name in parents]
    card = merge_linear(folders, alphas, output)
    console.print(f"{card.checkpoint_id} in {output}")


def _folder(warehouse: Warehouse, name: str) -> Path:
    try:
        return checkpoint_named(warehouse, name).folder
    except UnknownTable as error:
        raise CheckpointError(f"{name} is neither a checkpoint folder nor a registered checkpoint") from error


def export_data(warehouse: Warehouse, output: Path, format_: str, dataset: str, as_of: str | None, console: Console) -> None:
    """Export and say what was written. Raises ConfigError or UnknownId."""
    from warehouse.export import export

    exported = export(warehouse, output, format=format_, dataset=dataset, as_of=as_of)
    console.print(f"{exported.num_rows} rows in {output}")


def withdraw_rows(warehouse: Warehouse, ids: list[str], iteration: str | None, is_purged: bool, console: Console) -> None:
    """Withdraw and say of which tables; all of `ids` or none. Raises ConfigError, UnknownId, or IterationLocked for a purge while the
    wheel turns, which would take files from under its writers.
    """
    from warehouse.withdrawal import withdraw

    if not ids and not is_purged:
        raise ConfigError("nothing to withdraw: name samples or annotations, or give --purge to erase what was withdrawn before")
    with connect(warehouse) as con:
        by_table = _withdrawable(con, ids)
        newest = con.execute("SELECT coalesce(max(iteration), '0000') FROM checkpoints").fetchall()[0][0]
    for table, found in by_table.items():
        withdraw(warehouse, table, found, iteration=iteration or newest)
        console.print(f"{len(found)} of {table} withdrawn from iteration {iteration or newest} on")
    if is_purged:
        _purge(warehouse, console)


def _withdrawable(con: DuckDBPyConnection, ids: list[str]) -> dict[str, list[str]]:
    """Whole ids by table. Raises UnknownId for what is not there, and for what cannot be withdrawn."""
    from warehouse.lineage import resolve
    from warehouse.withdrawal import WITHDRAWABLE

    by_table: dict[str, list[str]] = {}
    for kind, id_ in (resolve(con, given) for given in ids):
        table = f"{kind}s"
        if table not in WITHDRAWABLE:
            raise UnknownId(f"{id_} is a {kind} and cannot be withdrawn: rows of {', '.join(WITHDRAWABLE)} can. Nothing was withdrawn")
        by_table.setdefault(table, []).append(id_)
    return by_table


def _purge(warehouse: Warehouse, console: Console) -> None:
    from pipelines.executor import lock_path
    from warehouse.withdrawal import purge

    lock = FileLock(lock_path(warehouse.home))
    if not lock.acquire(timeout_s=LOOKED_AT_S):
        raise IterationLocked(f"process {lock.holder()} is turning the wheel on {warehouse.home.root}: purge when it has ended")
    try:
        purged = purge(warehouse)
    finally:
        lock.release()
    for erased in purged:
        console.print(f"{erased.num_rows} rows of {erased.table} erased, {erased.num_files} files removed")
    if not purged:
        console.print("nothing to erase")
