"""Putting a table back to how it was at an older version, for a table that somebody else has damaged. Nothing is lost by it: the versions
between stay readable, and it is one more commit that can itself be taken back.
"""

from __future__ import annotations

from deltalake import CommitProperties
from deltalake.exceptions import DeltaError

from warehouse.core.errors import UnknownTable
from warehouse.storage.log.actions import VACUUM_BEGUN, VACUUMED
from warehouse.storage.log.commits import retry_commit
from warehouse.storage.tables import Warehouse


def restore(warehouse: Warehouse, table: str, version: int) -> int:
    """Make version `version` the newest again, rows and column types alike; returns the number it now has.

    Nothing else may write the table meanwhile: hold the lock of the iteration. Raises UnknownTable for an unknown version, or
    whose rows a purge has erased.
    """
    commits = warehouse.history(table)
    newest = commits[0].version if commits else -1
    if not 0 <= version <= newest:
        raise UnknownTable(f"table {table} has no version {version}: it has {f'0 to {newest}' if commits else 'none yet'}")
    if any(commit.operation in (VACUUM_BEGUN, VACUUMED) and commit.version > version for commit in commits):
        raise UnknownTable(f"table {table}: a purge erased version {version}; what it erased cannot be put back")
    if version == newest:
        return newest
    warehouse.have_files(table, version)
    metadata = {"iteration": max((c.iteration for c in commits if c.iteration is not None and c.version <= version), default="")}

    def write() -> int:
        with warehouse.maintaining(table) as (delta, after):
            kept = {name: of for name, of in metadata.items() if of}
            delta.restore(version, commit_properties=CommitProperties(custom_metadata=kept | after))
            return int(delta.version())

    try:
        return retry_commit(f"restoring table {table}", warehouse.folder(table), write)
    except DeltaError as error:
        raise UnknownTable(f"table {table} cannot be put back to version {version}: {error}. Restore its folder from a backup") from error
