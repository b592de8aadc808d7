"""Which file of a table is damaged, and how to fix it. Reads everything and changes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from warehouse.core.errors import CorruptTable
from warehouse.storage.files.data_files import RESTORE, RESTORE_OBJECT, check_file
from warehouse.storage.remote.table import RemoteTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    path: Path
    what: str
    fix: str


def find_damage(folder: Path, delta: DeltaTable | None, remote: RemoteTable | None = None) -> list[Damage]:
    """Every damaged log file and data file of one Delta table; data files only when its log can be opened (`delta`). Of a table in an
    object store (`remote`), whether its data files are there."""
    return [*_log_damage(folder / "_delta_log"), *(data_damage(folder, delta, remote) if delta is not None else ())]


def raise_explained(table: str, folder: Path, delta: DeltaTable | None, error: Exception, remote: RemoteTable | None = None) -> NoReturn:
    """Raise, for a read of `table` that failed with `error`, CorruptTable that names the first damaged file and its fix; the error itself
    where every file is sound and the machine, or the query, is at fault."""
    damages = find_damage(folder, delta, remote)
    if damages:
        first, more = damages[0], len(damages) - 1
        also = f" ({more} more damaged files)" if more else ""
        raise CorruptTable(f"table {table}: {first.path} {first.what}{also}. To fix it: {first.fix}") from error
    if isinstance(error, DeltaError):
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptTable(f"table {table} in {folder} cannot be read: {reason}. Restore the folder from a backup") from error
    raise error


def _log_damage(log: Path) -> list[Damage]:
    """By the log alone, for tables without a chain: a gap, or a file that is not a log. Where there is a chain, log/table_log.py checks."""
    versions = sorted(int(path.stem) for path in log.glob("[0-9]*.json"))
    for version in range(versions[-1] + 1 if versions else 0):
        path = log / f"{version:020d}.json"
        what = _log_file_damage(path)
        if what is not None:
            fix = "set the commit aside with `flywheel doctor --repair`, and run the stage that wrote it again"
            return [Damage(path=path, what=what, fix=f"restore it from a backup; without one, {fix}")]
    return []


def _log_file_damage(path: Path) -> str | None:
    try:
        lines = path.read_text().splitlines()
        for line in lines:
            json.loads(line)
    except FileNotFoundError:
        return "is missing, though later commits follow"
    except (ValueError, OSError) as error:
        return f"is not a readable log file ({error})"
    return None if lines else "is empty"


def data_damage(folder: Path, delta: DeltaTable, remote: RemoteTable | None = None, *, wholly: bool = False) -> list[Damage]:
    """Every data file of this version that is missing, cut off or changed; in an object store the last is seen only with `wholly`."""
    damages = []
    actions = pa.table(delta.get_add_actions(flatten=True))
    sizes = actions.column("size_bytes").to_pylist()
    files = list(zip(map(unquote, actions.column("path").to_pylist()), sizes, strict=True))
    if remote is not None:
        found = remote.damage(files, wholly=wholly)
        return [Damage(path=folder / path, what=f"{what} in the object store", fix=RESTORE_OBJECT) for path, what in found.items()]
    for relative, size in files:
        path = folder / relative
        what = _data_file_damage(path, size)
        if what is not None:
            damages.append(Damage(path=path, what=what, fix=RESTORE))
    return damages


def _data_file_damage(path: Path, size: int) -> str | None:
    try:
        if (found := path.stat().st_size) != size:
            return f"has {found} bytes where the log says {size}"
        check_file(path)
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            for _ in file.iter_batches():
                pass
    except FileNotFoundError:
        return "is missing"
    except CorruptTable:
        return "was changed: its checksum is not the one in its name"
    except (pa.ArrowException, OSError) as error:
        return f"cannot be read ({str(error).splitlines()[0]})"
    return None
