"""Whether a finished stage's result still holds: what it names is still there. Checked before the result is used again."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from assets.stages.requests import StageResult
from models.checkpoints import checkpoint
from pipelines.orchestration.work.folder import RESULT, forget_result
from warehouse.core.errors import CheckpointError, CorruptTable
from warehouse.core.home import Home, atomic_write
from warehouse.lineage import registry
from warehouse.storage.catalogue import VERDICT_STAGE, WITHDRAWN_STAGE
from warehouse.storage.tables import Warehouse

AGAIN = "again"
"""File in the work folder of an iteration that is to run again, though it had been complete."""
BY_COMMAND = (WITHDRAWN_STAGE, VERDICT_STAGE)
"""Stages of an iteration whose rows a person's command made (`flywheel withdraw`, `flywheel verdict`): no stage makes them again. What
people annotated and recorded is taken in again from where it was handed in."""


def commits_of(warehouse: Warehouse, versions: Mapping[str, int]) -> dict[str, str]:
    """Digest of the commit of each table's version, by table."""
    found = {table: warehouse.commit_digest(table, version) for table, version in versions.items()}
    return {table: digest for table, digest in found.items() if digest is not None}


def find_loss(warehouse: Warehouse, result: StageResult) -> str | None:
    """What of a stage's work is gone or damaged, so that it has to be done again; None where all is there.

    Rows count as there while those of their files that are still part of the table are sound: what a later commit replaced, or a purge
    erased, is nobody's loss. Raises CorruptTable where the table's log is damaged: to work the stage again would not help.
    """
    for table, version in result.table_versions.items():
        if version > warehouse.version(table):
            return f"version {version} of table {table} is gone"
        expected, found = result.commits.get(table), warehouse.commit_digest(table, version)
        if found is None:
            continue  # of before there were chains, or a log file that a repair left out though its rows are there
        if expected is not None and found != expected:
            return f"version {version} of table {table} is another commit now"
        try:
            warehouse.check_commit(table, version)
        except CorruptTable as error:
            return str(error)
    if result.checkpoint_id is not None:
        try:
            checkpoint.verify(registry.find(warehouse, result.checkpoint_id).folder)
        except CheckpointError as error:
            return str(error)
    return None


def forget_lost_work(warehouse: Warehouse, lost: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """After a repair: have stages worked again whose rows are lost (`lost`: iteration and stage), or whose result names what is not there.
    Returns them; `flywheel run` repeats their iterations."""
    home = warehouse.home
    again = {(iteration, stage) for iteration, stage in lost if (home.work / iteration).is_dir() and stage not in BY_COMMAND}
    for path in home.work.glob(f"*/*/{RESULT}"):
        place = (path.parent.parent.name, path.parent.name)
        try:
            is_lost = place in again or find_loss(warehouse, StageResult.model_validate_json(path.read_text())) is not None
        except (ValueError, CorruptTable):
            is_lost = True
        if is_lost:
            again.add(place)
            forget_result(path.parent)
    for iteration in {iteration for iteration, _ in again}:
        atomic_write(home.work / iteration / AGAIN, b"")
    return again


def iterations_to_repeat(home: Home) -> list[str]:
    """Iterations that a repair has taken rows from, in order."""
    return sorted(path.parent.name for path in home.work.glob(f"*/{AGAIN}"))


def mark_repeated(home: Home, iteration: str) -> None:
    (home.work / iteration / AGAIN).unlink(missing_ok=True)
