"""What `flywheel sql`, `lineage`, `export`, `withdraw` and `restore` do: the warehouse's own functions, with a terminal in front."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from duckdb import DuckDBPyConnection
from rich.console import Console
from rich.markup import escape

from pipelines.cli.terminal import counted, print_rows
from warehouse.core.errors import CheckpointError, ConfigError, IterationLocked, UnknownId, UnknownTable
from warehouse.core.locks import LOOKED_AT_S
from warehouse.core.stages import SEED_ITERATION
from warehouse.lineage import registry
from warehouse.storage.catalogue import TABLES
from warehouse.storage.files.table_files import Listing
from warehouse.storage.partitions import check_iteration
from warehouse.storage.sql.query import connect, run
from warehouse.storage.tables import Warehouse

if TYPE_CHECKING:
    from pipelines.annotation_server.withdrawal import TakenBack
    from warehouse.datasets.provenance import Source

AskToPurge = Callable[[int, int], None]
ROWS_SHOWN = 200
CELL_CHARS = 80
CUT = "…"
DIRECTIONS: dict[str, Literal["up", "down", "both"]] = {"up": "up", "down": "down", "both": "both"}
MACROS = {"up": ("ancestors",), "down": ("descendants",), "both": ("ancestors", "descendants")}
"""table functions of `flywheel sql` that go that way."""


def run_query(warehouse: Warehouse, query: str, as_of: str | None, as_json: bool, console: Console) -> None:
    """Print a query's rows. Raises QueryError with DuckDB's own words when it is wrong, CorruptTable for a damaged file."""
    _check_as_of(warehouse, as_of)
    table = run(warehouse, query, as_of=as_of)
    if as_json:
        for row in table.to_pylist():
            print(json.dumps(row, default=str))
        return
    rows = [{name: _cell(value) for name, value in row.items()} for row in table.slice(0, ROWS_SHOWN).to_pylist()]
    if rows:
        print_rows(rows, console)
    else:
        console.print(f"no rows of {escape(', '.join(table.column_names))}")
    if any(value.endswith(CUT) for row in rows for value in row.values()):
        console.print(f"values are cut after {CELL_CHARS} characters; --json shows them whole")
    if table.num_rows > ROWS_SHOWN:
        console.print(f"{counted(table.num_rows - ROWS_SHOWN, 'more row')}; add `limit`, or --json for all")


def _cell(value: object) -> str:
    text = f"<{len(value)} bytes>" if isinstance(value, bytes) else str(value)
    return text if len(text) <= CELL_CHARS else text[: CELL_CHARS - len(CUT)] + CUT


def checkpoint_folder(warehouse: Warehouse, name: str) -> Path:
    """A checkpoint given by its folder, by id, as ITERATION/STAGE, or as `released`. Raises CheckpointError."""
    if Path(name, "config.json").is_file():
        return Path(name)
    if Path(name).is_dir() and (Path(name).is_absolute() or name.startswith(".")):  # a path, not a name in the home
        raise CheckpointError(f"{name} holds no config.json: a model's folder is as save_pretrained writes it, or as it is downloaded")
    warehouse.home.check_exists()
    try:
        return registry.named(warehouse, name).folder
    except UnknownTable as error:
        raise CheckpointError(f"{name} is neither a checkpoint folder nor a registered checkpoint") from error


def show_lineage(
    warehouse: Warehouse,
    identity: str,
    direction: str,
    depth: int | None,
    svg: Path | None,
    mermaid: Path | None,
    console: Console,
    *,
    show_all: bool = False,
    as_json: bool = False,
) -> None:
    """Print a lineage tree; draw it where asked. Raises ConfigError for an unknown direction, UnknownId."""
    from warehouse.lineage.taints import mark, taints
    from warehouse.lineage.walk import MAX_NODES, MOST_SHOWN, SHOWN_PER_RELATION, trace, trace_back

    way = DIRECTIONS.get(direction)
    if way is None:
        raise ConfigError(f"--direction {direction!r}: {', '.join(DIRECTIONS)} are allowed")
    if identity == registry.RELEASED:
        identity = registry.released(warehouse).checkpoint_id
    if way == "up" and not show_all:
        graph = trace_back(warehouse, identity, depth=depth)
    else:
        with connect(warehouse, lineage=True) as con:
            limits = (None, MOST_SHOWN) if show_all else (SHOWN_PER_RELATION, MAX_NODES)
            graph = trace(con, identity, direction=way, depth=depth, limit_per_relation=limits[0], max_nodes=limits[1])
    mark(graph, taints(warehouse))
    if as_json:
        print(json.dumps({**asdict(graph), "nodes": [asdict(node) for node in graph.nodes.values()]}, indent=2))
    else:
        console.print(graph.to_tree(), soft_wrap=True)
        if graph.omitted or graph.is_cut:
            ids = " and ".join(f"\"from {macro}('{graph.start.id}')\"" for macro in MACROS[way])
            console.print(f"Where there are many, a few are shown: --all shows all, flywheel sql {ids} lists their ids", soft_wrap=True)
    for path, drawn in ((svg, graph.to_svg), (mermaid, graph.to_mermaid)):
        if path is not None:
            path.write_text(drawn(), encoding="utf-8")
            Console(stderr=True).print(f"written: {path}")


def export_data(warehouse: Warehouse, output: Path, format_: str, dataset: str, as_of: str | None, console: Console) -> None:
    """Export and say what was written. Raises ConfigError or UnknownId."""
    from warehouse.datasets.export import export

    _check_as_of(warehouse, as_of)
    exported = export(warehouse, output, format=format_, dataset=dataset, as_of=as_of, installed=installed_sources(warehouse))
    console.print(f"{counted(exported.num_rows, 'row')} in {output}")


def installed_sources(warehouse: Warehouse) -> list[Source]:
    """Of the tasks that were played: what an export names their licences by."""
    from sandbox.tasks.licences import task_sources

    played = warehouse.read("tasks", columns=["source"]).column("source").unique().to_pylist()
    return list(task_sources(played, warehouse.home))


def _check_as_of(warehouse: Warehouse, as_of: str | None) -> None:
    """Raises ConfigError for an iteration that has not begun."""
    if as_of is None:
        return
    newest = _newest(warehouse)
    if check_iteration(as_of) > newest:
        raise ConfigError(f"--as-of {as_of}: the newest iteration in {warehouse.home.root} is {newest}")


def _newest(warehouse: Warehouse) -> str:
    """The last iteration that has begun: datasets are the first that it writes, and after the seed's tables the checkpoints."""
    begun = ("datasets", "checkpoints")
    return max(Listing(warehouse, begun).iterations(*begun), default=SEED_ITERATION)


def withdraw_rows(
    warehouse: Warehouse, ids: list[str], iteration: str | None, console: Console, *, ask_to_purge: AskToPurge | None = None
) -> None:
    """Withdraw and say of which tables, all of `ids` or none; then purge, if `ask_to_purge` is given. It gets the number of rows, and of
    recordings that the annotation server still holds, before anything is done, and raises to refuse.

    Raises ConfigError, UnknownId, or IterationLocked for a purge while an iteration runs, which would take files from under its writers.
    """
    if not ids and ask_to_purge is None:
        raise ConfigError("nothing to withdraw: name samples or annotations, or give --purge to erase what was withdrawn before")
    with _purging(warehouse) if ask_to_purge is not None else nullcontext():
        _withdraw_rows(warehouse, ids, iteration, console, ask_to_purge)


@contextmanager
def _purging(warehouse: Warehouse) -> Iterator[None]:
    """Raises IterationLocked while an iteration runs, before anything is withdrawn."""
    from pipelines.orchestration.runs.iteration_lock import IterationLock, lock_path

    lock = IterationLock(warehouse.home, lock_path(warehouse.home))
    if not lock.acquire(timeout_s=LOOKED_AT_S):
        raise IterationLocked(
            f"process {lock.holder()} is running an iteration in {warehouse.home.root}: nothing was withdrawn. "
            "Withdraw without --purge, and purge when it has ended"
        )
    try:
        yield
    finally:
        lock.release()


def _withdraw_rows(warehouse: Warehouse, ids: list[str], iteration: str | None, console: Console, ask_to_purge: AskToPurge | None) -> None:
    from pipelines.annotation_server.withdrawal import taken_back
    from warehouse.datasets.withdrawal import num_to_purge, withdraw, withdrawn_ids

    with connect(warehouse, lineage=True) as con:
        by_table = _withdrawable(con, ids)
    back = taken_back(warehouse) if ask_to_purge is not None else None
    if ask_to_purge is not None and back is not None:
        num_rows = num_to_purge(warehouse, by_table, taken_back=back.episodes)
        if num_rows or back.recordings:
            ask_to_purge(num_rows, len(back.recordings))
    first = iteration or _newest(warehouse)
    for table, found in by_table.items():
        done = withdrawn_ids(warehouse, table)
        withdraw(warehouse, table, found, iteration=first)
        for id_ in sorted(done & found):
            console.print(f"{id_} was withdrawn already")
        if new := found - done:
            console.print(f"{len(new)} of {table} withdrawn from iteration {first} on")
    if back is not None:
        _purge(warehouse, back, console)


def _withdrawable(con: DuckDBPyConnection, ids: list[str]) -> dict[str, set[str]]:
    """Whole ids by table. Raises UnknownId for what is not there, and for what cannot be withdrawn."""
    from warehouse.datasets.withdrawal import WITHDRAWABLE
    from warehouse.lineage.walk import resolve

    by_table: dict[str, set[str]] = {}
    for table in WITHDRAWABLE:  # whole ids, of which there may be hundreds, by one query
        (key,) = TABLES[table].key
        rows = con.execute(f"select distinct {key} from {table} where {key} in (select unnest($1))", [ids]).fetchall()
        if rows:
            by_table[table] = {id_ for (id_,) in rows}
    whole = {id_ for found in by_table.values() for id_ in found}
    for kind, id_ in (resolve(con, given) for given in ids if given not in whole):
        table = f"{kind}s"
        if table not in WITHDRAWABLE:
            raise UnknownId(f"{id_} is of the kind {kind}: only {', '.join(WITHDRAWABLE)} can be withdrawn. Nothing was withdrawn")
        by_table.setdefault(table, set()).add(id_)
    return by_table


def _purge(warehouse: Warehouse, back: TakenBack, console: Console) -> None:
    """Rows, and what the annotation server holds of recordings that people took back."""
    from pipelines.annotation_server.withdrawal import erase_taken_back
    from warehouse.datasets.withdrawal import purge

    purged = purge(warehouse, taken_back=back.episodes)
    num_files = erase_taken_back(warehouse.home) if back.recordings else 0
    for erased in purged:
        console.print(f"{counted(erased.num_rows, 'row')} of {erased.table} erased, {counted(erased.num_files, 'file')} removed")
    if back.recordings:
        emptied = counted(len(back.recordings), "recording")
        console.print(f"{emptied} on the annotation server erased, {counted(num_files, 'file')} removed")
    if not purged and not back.recordings:
        console.print("nothing to erase")


def restore_table(warehouse: Warehouse, table: str, version: int | None, console: Console) -> None:
    """Put a table back, or list its versions where none is named. Raises UnknownTable, or IterationLocked while an iteration runs."""
    from datetime import UTC, datetime

    from pipelines.orchestration.runs.iteration_lock import IterationLock, lock_path
    from warehouse.storage.repair.restoring import restore

    if version is None:
        commits = warehouse.history(table)
        if not commits:
            console.print(f"{table} has no version yet")
            return
        console.print(f"[bold]version  {'written':25}  operation  by[/]", highlight=False)
        for commit in commits:
            written = datetime.fromtimestamp(commit.timestamp_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
            by = "/".join(part for part in (commit.iteration, commit.stage) if part)
            console.print(f"{commit.version:>7}  {written}  {commit.operation:9}  {by}", highlight=False)
        console.print(f"flywheel restore {table} VERSION   puts one of them back, as a version of its own", highlight=False)
        return
    lock = IterationLock(warehouse.home, lock_path(warehouse.home))
    if not lock.acquire(timeout_s=LOOKED_AT_S):
        raise IterationLocked(f"process {lock.holder()} is running an iteration in {warehouse.home.root}; end it, then restore")
    try:
        newest = restore(warehouse, table, version)
    finally:
        lock.release()
    console.print(f"table {table} is as it was at version {version} again; that is its version {newest} now")
