"""`flywheel verify`: reads every byte of a home's tables and checkpoints and compares it with what was committed. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from models.checkpoints import checkpoint
from warehouse.core.durable import digest
from warehouse.core.errors import CheckpointError, ConfigError, CorruptTable, IterationLocked, WarehouseError
from warehouse.core.locks import LOOKED_AT_S, FileLock
from warehouse.reporting.screens import is_what_its_id_says
from warehouse.storage.catalogue import TABLES
from warehouse.storage.files.data_files import RESTORE_OBJECT, check_file, checksum_in
from warehouse.storage.log.actions import VACUUM_BEGUN, VACUUMED, added_files, read_log
from warehouse.storage.log.table_log import TableLog
from warehouse.storage.remote import checkpoints as remote_checkpoints
from warehouse.storage.remote.log import log_of
from warehouse.storage.remote.table import RemoteTable
from warehouse.storage.repair.integrity import Damage, data_damage
from warehouse.storage.screenshots.lost import lost_screenshots
from warehouse.storage.tables import Warehouse

REPAIR = "`flywheel doctor --repair`, or a backup"


def verify(warehouse: Warehouse, console: Console, *, all_versions: bool, as_json: bool) -> int:
    """Print what is damaged, with advice. Returns the exit status: 1 where anything is."""
    found, num_old = [], 0
    parts = list(_parts(warehouse, all_versions))
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=as_json or not console.is_terminal,
    ) as bar:
        task = bar.add_task("verify", total=len(parts))
        for name, part in parts:
            bar.update(task, description=name)
            found += part()
            bar.advance(task)
    for table in TABLES:
        names = [path.name for path in warehouse.folder(table).rglob("*.parquet") if "_delta_log" not in path.parts]
        num_old += sum(checksum_in(name) is None for name in names)
    if as_json:
        console.print_json(data=[asdict(each) | {"path": str(each.path)} for each in found])
    else:
        _show(found, num_old, console)
        _show_unnamed(warehouse, console)
    return 1 if found else 0


def _show(found: list[Damage], num_old: int, console: Console) -> None:
    if num_old:
        console.print(f"{num_old} data files were written before there were checksums: only what makes them unreadable is seen in them")
    if not found:
        console.print("everything that was committed is there and as it was written")
        return
    table = Table("file", "what is wrong", "to fix it", title="damage", title_justify="left")
    for each in found:
        table.add_row(escape(str(each.path)), escape(each.what), escape(each.fix))
    console.print(table)


def _show_unnamed(warehouse: Warehouse, console: Console) -> None:
    """What an object store has beside what was committed."""
    for table in TABLES:
        try:
            sizes = warehouse.unnamed_files(table).values()
        except (CorruptTable, OSError, ValueError):
            continue  # reported above
        if sizes:
            console.print(
                f"{table}: {len(sizes)} data files ({sum(sizes) / 1e6:.1f} MB) in the object store are of no commit: writers that were "
                "killed left them, or are at work. A purge of this table (`flywheel forget`, `flywheel withdraw --purge`) deletes them",
                soft_wrap=True,
            )


def _parts(warehouse: Warehouse, all_versions: bool) -> Iterator[tuple[str, Callable[[], list[Damage]]]]:
    """Name and check of each part of a home."""
    for table in TABLES:
        yield f"log of {table}", lambda table=table: _of_log(warehouse, table)  # type: ignore[misc]
        yield f"data of {table}", lambda table=table: _of_data(warehouse, table, all_versions)  # type: ignore[misc]
    yield "screenshots", lambda: _of_screenshots(warehouse)
    yield "screenshots that are shown", lambda: _of_shown(warehouse)
    yield "checkpoints", lambda: _of_checkpoints(warehouse)


def _of_log(warehouse: Warehouse, table: str) -> list[Damage]:
    log = log_of(warehouse.home, table)
    found = []
    try:
        if log.remote is not None:
            return _of_remote_log(log, log.remote)
        records = log.commits.records(0, len(log.commits))
        marks = log.checkpoints.records(0, len(log.checkpoints))
    except CorruptTable as error:
        return [Damage(path=log.commits.path, what=str(error), fix=REPAIR)]
    for path, is_sound in [
        *((log.file(each.version), log.is_sound(each, log.file(each.version))) for each in records),
        *((path, log.is_sound(each, path)) for each in marks if (path := log.checkpoint(each.version)).exists()),
    ]:
        if not is_sound:
            what = "is not as it was committed" if path.exists() else "is missing, though it was committed"
            found.append(Damage(path=path, what=what, fix=REPAIR))
    return found


def _of_remote_log(log: TableLog, remote: RemoteTable) -> list[Damage]:
    log.newest()
    records, found = log.commits.records(0, len(log.commits)), []
    for record, data in zip(records, remote.logs(0, len(records)), strict=True):
        if data is None or digest(data) != record.digest:
            what = "is missing in the object store" if data is None else "in the object store is not as it was committed"
            found.append(Damage(path=log.file(record.version), what=what, fix=RESTORE_OBJECT))
    return found


def _of_data(warehouse: Warehouse, table: str, all_versions: bool) -> list[Damage]:
    try:
        delta = warehouse.delta(table)
        remote = log_of(warehouse.home, table).remote
        found = data_damage(warehouse.folder(table), delta, remote, wholly=True) if delta is not None else []
        if delta is None or not all_versions:
            return found
        known = {each.path for each in found}
        return found + [each for each in _of_older(warehouse, table) if each.path not in known]
    except CorruptTable as error:
        return [Damage(path=warehouse.folder(table), what=str(error), fix=REPAIR)]


def _of_older(warehouse: Warehouse, table: str) -> Iterator[Damage]:
    """Files that any version names. What a purge has erased is missing rightly, so only what comes after the last one has to be there."""
    log = log_of(warehouse.home, table)
    history = warehouse.history(table)
    purged = max((commit.version for commit in history if commit.operation in (VACUUM_BEGUN, VACUUMED)), default=-1)
    if log.remote is not None:
        added = [file for commit in history if commit.version > purged for file in added_files(read_log(log.file(commit.version)))]
        for name, what in log.remote.damage(added, wholly=True).items():
            yield Damage(path=log.folder / name, what=f"{what} in the object store", fix=RESTORE_OBJECT)
        return
    for commit in history:
        for name, _ in added_files(read_log(log.file(commit.version))):
            path = log.folder / name
            if path.exists():
                try:
                    check_file(path)
                except CorruptTable:
                    yield Damage(path=path, what=f"was changed (version {commit.version})", fix="restore it from a backup")
            elif commit.version > purged:
                yield Damage(path=path, what=f"is missing (version {commit.version})", fix="restore it from a backup")


def _of_screenshots(warehouse: Warehouse) -> list[Damage]:
    """A picture's id is made of its bytes."""
    folder = warehouse.folder("screenshots")
    try:
        batches = warehouse.dataset("screenshots").to_batches(columns=["screenshot_id", "data"], batch_size=32)
        wrong = [
            screenshot_id
            for batch in batches
            for screenshot_id, data in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            if not is_what_its_id_says(screenshot_id, data)
        ]
    except (WarehouseError, OSError, ValueError):
        return []  # of its log or its files, reported above
    fix = "restore the folder from a backup"
    return [Damage(path=folder, what=f"picture {each} is not what its id says", fix=fix) for each in wrong]


def _of_shown(warehouse: Warehouse) -> list[Damage]:
    folder = warehouse.folder("screenshots")
    try:
        lost = lost_screenshots(warehouse)
    except CorruptTable:
        return []  # reported above
    return [
        Damage(path=folder, what=f"lacks {num} of the pictures that rows of {iteration}/{stage} show", fix=REPAIR)
        for (iteration, stage), num in lost.items()
    ]


def _of_checkpoints(warehouse: Warehouse) -> list[Damage]:
    try:
        rows = warehouse.read("checkpoints", columns=["path", "checkpoint_id"]).to_pylist()
    except (WarehouseError, OSError):
        return []
    found = []
    for path, checkpoint_id in sorted({(row["path"], row["checkpoint_id"]) for row in rows}):
        folder, store = warehouse.home.root / path, warehouse.home.store
        if store is not None:
            if (what := remote_checkpoints.damage(store, path)) is not None:
                found.append(Damage(path=folder, what=what, fix="copy it there again from a host that has it"))
            if not folder.exists():
                continue
        try:
            card = checkpoint.verify(folder)
        except CheckpointError as error:
            found.append(Damage(path=folder, what=str(error), fix="the stage that made it is worked again by the next `flywheel run`"))
            continue
        if card.checkpoint_id != checkpoint_id:
            what = f"holds {card.checkpoint_id}, but {checkpoint_id} is registered there"
            found.append(Damage(path=folder, what=what, fix="restore the folder from a backup"))
    return found


def repair_alone(warehouse: Warehouse, console: Console, ask: Callable[[str], None]) -> int:
    """`repair` while no iteration runs. Raises IterationLocked."""
    from pipelines.orchestration.runs.iteration_lock import lock_path

    if (store := warehouse.home.store) is not None:
        raise ConfigError(
            f"the tables lie in {store.url}, and only those on a disk are repaired: copy them to a home there (`flywheel store copy "
            f"{store.url} FOLDER`), repair that, and copy it to a new place in the store"
        )
    lock = FileLock(lock_path(warehouse.home))
    if not lock.acquire(timeout_s=LOOKED_AT_S):
        raise IterationLocked(f"process {lock.holder()} is running an iteration in {warehouse.home.root}; end it, then repair")
    try:
        return repair(warehouse, console, ask)
    finally:
        lock.release()


def repair(warehouse: Warehouse, console: Console, ask: Callable[[str], None]) -> int:
    """Repair what keeps tables from being read, once `ask` has let us; says which stages lack rows or pictures, and has them worked again.
    Returns the exit status: 0 where all can be read now. Call it with the lock of the iteration."""
    from pipelines.orchestration.work.finished_work import forget_lost_work
    from warehouse.storage.repair.repairing import find_steps

    lost: set[tuple[str, str]] = set()
    num = 0
    while steps := find_steps(warehouse):
        for step in steps:
            console.print(f"[bold]{step.table}[/]: {escape(step.found)}. This {escape(step.does)}", soft_wrap=True)
        ask(f"{len(steps)} tables to repair; what is moved lies in {warehouse.home.root / 'set_aside'}. Go on?")
        lost |= {place for step in steps for place in step.lost}
        for step in steps:
            step.act()
        if (num := num + 1) == 4:
            break
    left = find_steps(warehouse)
    lost |= set() if left else lost_screenshots(warehouse).keys()
    again = forget_lost_work(warehouse, lost)
    for iteration, stage in sorted(again):
        console.print(f"rows or pictures of {iteration}/{stage} are lost: `flywheel run` works it again")
    for iteration, stage in sorted(lost - again):
        console.print(f"rows or pictures of {iteration}/{stage} are lost, and a person or an import made them: give that command again")
    console.print("every table can be read" if not left else f"{len(left)} tables are still damaged: restore them from a backup")
    return 1 if left else 0
