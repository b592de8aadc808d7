"""Log files in place of lost ones, so that the commits after them still count and keep their numbers. Which files are lost, and moving them
away, is repairing.py's business.

A stand-in adds nothing: the rows of its commit are lost. It removes what its commit must have removed: an overwrite replaces its whole
partition, so a file of that partition that was there before, and that the overwrite does not remove, was gone by then. What the lost commit
replaced and no later commit has replaced since is there again.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable

from warehouse.storage.catalogue import TABLES
from warehouse.storage.log.actions import added_files, commit_info, read_log
from warehouse.storage.log.table_log import TableLog
from warehouse.storage.log.writing import create

Actions = list[dict[str, Any]]
_ADDITIVE = ("ADD COLUMN", "VACUUM START", "VACUUM END", "REPAIR")
"""Operations that say themselves all that they change; a WRITE does so too, or overwrites a partition."""


@dataclass(slots=True, kw_only=True)
class StandIns:
    """`actions` by the lost version that they stand in for. `end`: the first version that cannot be kept, as what it left of the table
    depends on what was lost; one more than the newest where all can."""

    end: int
    actions: dict[int, Actions] = field(default_factory=dict)


def stand_ins(log: TableLog, lost: Collection[int], num_versions: int) -> StandIns:
    """For a log whose versions `lost` cannot be read; all before the first of them can. Reads the log and changes nothing."""
    first = min(lost)
    made = StandIns(end=num_versions)
    live = {} if first == 0 else _files(DeltaTable(log.folder, version=first - 1), first - 1)
    for version in range(first, num_versions):
        if version in lost:
            made.actions[version] = _first_actions(log.table) if version == 0 else [_info()]
        elif not _apply(read_log(log.file(version)), version, live, made.actions):
            made.end = version
            break
    return made


def places(log: TableLog, version: int) -> list[tuple[str, str]]:
    """Iteration and stage of data files that no commit names and that were written between the commits around a lost one."""
    named, around_ms = set(), [0, time.time_ns() // 10**6]
    for path in sorted(log.path.glob("[0-9]*.json")):
        try:
            actions = read_log(path)
        except (OSError, ValueError):
            continue
        named |= {name for name, _ in added_files(actions)}
        if (timestamp := commit_info(actions).get("timestamp")) is not None:
            is_before = int(path.stem) < version
            around_ms[not is_before] = (max if is_before else min)(around_ms[not is_before], int(timestamp))
    found = set()
    for file in log.folder.glob("iteration=*/stage=*/*.parquet"):
        if file.relative_to(log.folder).as_posix() not in named and around_ms[0] <= file.stat().st_mtime_ns // 10**6 <= around_ms[1]:
            found.add((file.parent.parent.name.partition("=")[2], file.parent.name.partition("=")[2]))
    return sorted(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One that the table has: what a remove action says of it, and the version that added it."""

    remove: Mapping[str, Any]
    partition: str
    version: int


def _files(delta: DeltaTable, version: int) -> dict[str, _File]:
    actions = delta.get_add_actions()
    pairs = zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True)
    return {unquote(path): _file(path, size, version) for path, size in pairs}


def _file(path: str, size: int, version: int) -> _File:
    values = dict(part.partition("=")[::2] for part in unquote(path).split("/")[:-1])
    remove = {"path": path, "dataChange": True, "extendedFileMetadata": True, "partitionValues": values, "size": size}
    return _File(remove=remove, partition=_partition(path), version=version)


def _partition(path: str) -> str:
    return unquote(path).rpartition("/")[0]


def _apply(actions: Actions, version: int, live: dict[str, _File], made: dict[int, Actions]) -> bool:
    """Bring `live` up to a commit, after the stand-ins before it were made to remove what it implies; False where it cannot be kept."""
    info = commit_info(actions)
    removed = {unquote(action["remove"]["path"]) for action in actions if "remove" in action}
    added = {unquote(action["add"]["path"]): action["add"] for action in actions if "add" in action}
    if info.get("operation") == "WRITE" and info["operationParameters"].get("mode") == "Overwrite":
        partitions = {_partition(path) for path in (*removed, *added)} | _place(info)
        gone = [path for path, file in live.items() if file.partition in partitions and path not in removed]
        for path in gone:
            after = [lost for lost in made if lost > live[path].version]
            if not after:
                return False
            made[max(after)].append({"remove": {**live.pop(path).remove, "deletionTimestamp": time.time_ns() // 10**6}})
    elif info.get("operation") not in (*_ADDITIVE, "WRITE"):
        return False
    for path in removed:
        live.pop(path, None)
    live.update({path: _file(add["path"], add["size"], version) for path, add in added.items()})
    return True


def _place(info: Mapping[str, Any]) -> set[str]:
    """The partition that a stage's overwrite names, also where it neither adds nor removes a file."""
    if "[" in (by := info["operationParameters"].get("partitionBy", "")) and json.loads(by) and "iteration" in info:
        return {f"iteration={info['iteration']}/stage={info['stage']}"}
    return set()


def _info() -> dict[str, Any]:
    return {"commitInfo": {"timestamp": time.time_ns() // 10**6, "operation": "REPAIR", "operationParameters": {}, "repair": "true"}}


def _first_actions(table: str) -> Actions:
    """Of a new table: its protocol and its columns, which the catalogue knows."""
    with tempfile.TemporaryDirectory() as folder:
        delta = create(TABLES[table], Path(folder))
        actions = read_log(Path(folder, "_delta_log", f"{delta.version():020d}.json"))
    return [_info(), *(action for action in actions if "commitInfo" not in action)]


def lines(actions: Iterable[Mapping[str, Any]]) -> bytes:
    """The log file."""
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)
