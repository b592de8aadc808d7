"""`flywheel store …`: a home's tables and checkpoints in an object store. What is copied, and how, is
warehouse/storage/remote/copying.py's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from pipelines.cli.options import console
from warehouse.core.errors import ConfigError, IterationLocked
from warehouse.core.home import Home
from warehouse.core.locks import LOOKED_AT_S, FileLock
from warehouse.core.store import STORE_VARIABLE, Store

store = typer.Typer(no_args_is_help=True, help="Tables and checkpoints in an object store (FLYWHEEL_STORE).")
_LEFT = (
    "not copied, as it is of one machine: Dagster's and Prefect's databases, annotation/, imports/, work/, reports/, alerts/, forgotten/ "
    "and exports.jsonl. Go on with the same FLYWHEEL_HOME, or copy these folders"
)


@store.callback()
def _group() -> None:
    """So that `copy` stays a command of its own."""


@store.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A home's folder, or s3://bucket/prefix.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The other of the two; it is made where it is missing.")],
) -> None:
    """Copy a home's tables and checkpoints from a disk to an object store, or back; every byte is checked at its end.

    The same command goes on where it was cut off. Nothing may write either side meanwhile. Nothing is deleted.

    flywheel store copy .flywheel s3://bucket/prefix

    flywheel store copy s3://bucket/prefix .flywheel
    """
    from pipelines.orchestration.runs.iteration_lock import lock_path
    from warehouse.storage.remote.copying import to_disk, to_store

    is_remote = [place.startswith("s3://") for place in (source, target)]
    if sum(is_remote) != 1:
        raise ConfigError(f"{source} and {target}: one of the two is a home's folder, the other s3://bucket/prefix")
    remote = Store.of(target if is_remote[1] else source)
    home = Home(Path(source if is_remote[1] else target).absolute(), None)
    if is_remote[1]:
        home.check_exists()
    lock = FileLock(lock_path(home))
    if not lock.acquire(timeout_s=LOOKED_AT_S):
        raise IterationLocked(f"process {lock.holder()} is running an iteration in {home.root}; end it, then copy")
    try:
        parts = list(to_store(home, remote) if is_remote[1] else to_disk(remote, home))
        if not parts:
            raise ConfigError(f"{source} has no tables: is it the right place?")
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as bar:
            task = bar.add_task("copy", total=sum(part.num_bytes for part in parts))
            for part in parts:
                bar.update(task, description=part.name[-40:])
                part.copy()
                bar.advance(task, part.num_bytes)
    finally:
        lock.release()
    num_bytes = sum(part.num_bytes for part in parts)
    console.print(
        f"{len(parts)} parts, {num_bytes / 1e6:,.1f} MB, are in {target} as they are in {source}", highlight=False, soft_wrap=True
    )
    console.print(_LEFT, highlight=False, soft_wrap=True)
    if is_remote[1]:
        console.print(f"to use it: {STORE_VARIABLE}={target}", highlight=False, soft_wrap=True)
