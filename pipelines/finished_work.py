"""Whether a finished stage may be believed: what its result names is still there. Looked at before its result is used again."""

from __future__ import annotations

from collections.abc import Mapping

from assets.requests import StageResult
from models import checkpoint
from warehouse import registry
from warehouse.errors import CheckpointError, CorruptTable
from warehouse.tables import Warehouse


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
        expected = result.commits.get(table)
        if expected is not None and warehouse.commit_digest(table, version) != expected:
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
