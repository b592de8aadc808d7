"""Which file of a table is damaged, and how to mend it. Reads everything and changes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from warehouse.data_files import RERUN, check_file
from warehouse.errors import CorruptTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    path: Path
    what: str
    mend: str


def find_damage(folder: Path, delta: DeltaTable | None) -> list[Damage]:
    """Every damaged log file and data file of one Delta table; data files only when its log can be opened (`delta`)."""
    return [*_log_damage(folder / "_delta_log"), *(_data_damage(folder, delta) if delta is not None else ())]


def describe_damage(table: str, folder: Path, delta: DeltaTable | None, error: BaseException) -> str:
    """Message for a read of `table` that failed with `error`: names the first damaged file and its mend."""
    damages = find_damage(folder, delta)
    if not damages:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"table {table} in {folder} cannot be read: {reason}. Restore the folder from a backup"
    first, more = damages[0], len(damages) - 1
    also = f" ({more} more damaged files)" if more else ""
    return f"table {table}: {first.path} {first.what}{also}. To fix it: {first.mend}"


def _log_damage(log: Path) -> list[Damage]:
    commits = sorted(log.glob("[0-9]*.json"))
    damages = []
    for index, path in enumerate(commits):
        what = _log_file_damage(path, index)
        if what is None:
            continue
        if index and index == len(commits) - 1:
            mend = f"move this last log file away, so that the table ends at version {index - 1}, and run the stage that wrote it again"
        else:
            mend = "restore this log file from a backup"
        damages.append(Damage(path=path, what=what, mend=mend))
        if "missing" in what:
            break
    return damages


def _log_file_damage(path: Path, expected_version: int) -> str | None:
    if int(path.stem) != expected_version:
        return f"follows a missing log file ({expected_version:020d}.json)"
    try:
        for line in path.read_text().splitlines():
            json.loads(line)
    except (ValueError, OSError) as error:
        return f"is not a readable log file ({error})"
    return None


def _data_damage(folder: Path, delta: DeltaTable) -> list[Damage]:
    damages = []
    actions = pa.table(delta.get_add_actions(flatten=True))
    for relative, size in zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True):
        path = folder / unquote(relative)
        what = _data_file_damage(path, size)
        if what is not None:
            damages.append(Damage(path=path, what=what, mend=RERUN))
    return damages


def _data_file_damage(path: Path, size: int) -> str | None:
    try:
        if (found := path.stat().st_size) != size:
            return f"has {found} bytes where the log says {size}"
        check_file(path)
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
