"""Repairing tables that cannot be read: each step says what it found, what it does and whose rows are lost by it. Files are moved to
`set_aside`, never deleted. What is damaged without hindering anybody is left.

Steps are found for the state of the moment, log files before data files: find them again once some were taken.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from deltalake import CommitProperties
from deltalake.transaction import AddAction, RemoveAction

from warehouse.core.durable import sync
from warehouse.core.errors import CorruptTable
from warehouse.core.home import atomic_write
from warehouse.storage.catalogue import TABLES
from warehouse.storage.log.actions import commit_info, read_log
from warehouse.storage.log.chain import UNKNOWN, Record
from warehouse.storage.log.table_log import HINT, TableLog
from warehouse.storage.remote.log import log_of
from warehouse.storage.repair.integrity import data_damage
from warehouse.storage.repair.stand_ins import lines, places, stand_ins
from warehouse.storage.tables import Warehouse

_PLACE = re.compile(r"iteration=(\d{4})/stage=([^/]+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One repair of one table. `lost`: iteration and stage of rows that it does not bring back, as far as they are known."""

    table: str
    found: str
    does: str
    act: Callable[[], None]
    lost: tuple[tuple[str, str], ...] = ()


def find_steps(warehouse: Warehouse) -> list[Step]:
    """What can be done for the tables of a home, as they are now."""
    steps: list[Step] = []
    for table in TABLES:
        log = log_of(warehouse.home, table)
        steps += list(_log_steps(log)) or list(_data_steps(warehouse, log))
    return steps


def _log_steps(log: TableLog) -> Iterator[Step]:
    there = sorted(int(path.stem) for path in log.path.glob("[0-9]*.json"))
    try:
        records = log.commits.records(0, len(log.commits))
    except CorruptTable:
        yield from _new_chain(log, there, "its chain of commits was changed")
        return
    if records and not there:
        yield _new_table(log)
    elif records:
        yield from list(_checkpoint_steps(log)) or _damaged_logs(log, records)
    elif there and log.is_said_to_have_a_chain(there[-1]):
        yield from _new_chain(log, there, "its chain of commits is missing")
    elif there and log.find_damage(there[-1]) is not None:
        yield from _new_chain(log, there, f"its newest commit {log.find_damage(there[-1])}")


def _new_chain(log: TableLog, there: list[int], found: str) -> Iterator[Step]:
    newest = there[-1] if there else -1
    while newest >= 0 and log.find_damage(newest) is not None:
        newest -= 1
    torn = [version for version in there if version > newest]

    def act() -> None:
        with log.lock():
            if torn:
                log.set_aside(log.file(version) for version in torn)
            if newest >= 0:
                log.begin_again(newest)

    aside = f", and sets {len(torn)} newer commits aside" if torn else ""
    yield Step(
        table=log.table, found=found, does=f"begins the chain with version {newest}, as found{aside}", act=act, lost=_stages(log, torn)
    )


def _new_table(log: TableLog) -> Step:
    def act() -> None:
        with log.lock():
            _move(log, [path for path in (log.commits.path, log.checkpoints.path, log.folder) if path.exists()])

    return Step(
        table=log.table,
        found="its folder or its whole log is gone",
        act=act,
        does="begins the table empty; restore its folder from a backup instead where there is one",
    )


def _checkpoint_steps(log: TableLog) -> Iterator[Step]:
    """A checkpoint only makes reading quicker; a hint without its checkpoint keeps Delta from reading."""
    try:
        marks = log.checkpoints.records(0, len(log.checkpoints))
    except CorruptTable:
        marks = []
    sound = {mark.version for mark in marks if log.is_sound(mark, log.checkpoint(mark.version))}
    damaged = [path for path in log.path.glob("[0-9]*.checkpoint.parquet") if int(path.name.split(".")[0]) not in sound]
    hint = log.path / HINT
    is_misled = hint.exists() and _hinted(hint) not in sound

    def act() -> None:
        with log.lock():
            log.set_aside([*damaged, *([hint] if hint.exists() else [])])
            records = log.commits.records(0, len(log.commits))
            log.rewrite_chain(records)

    if damaged or is_misled:
        found = f"{len(damaged)} checkpoints of its log are damaged" if damaged else f"{hint.name} names a checkpoint that is not there"
        yield Step(table=log.table, found=found, does="sets them aside; nothing is lost", act=act)


def _hinted(hint: Path) -> int | None:
    try:
        return int(json.loads(hint.read_bytes())["version"])
    except (ValueError, KeyError, TypeError):
        return None


def _damaged_logs(log: TableLog, records: list[Record]) -> Iterator[Step]:
    bad = [each.version for each in records if each.digest != UNKNOWN and not log.is_sound(each, log.file(each.version))]
    marks = [mark.version for mark in log.sound_checkpoints() if log.is_sound(mark, log.checkpoint(mark.version))]
    last = max(marks, default=-1)
    gaps = [each.version for each in records if each.digest == UNKNOWN and not log.file(each.version).exists()]
    needed, old = sorted(version for version in (*bad, *gaps) if version > last), [version for version in bad if version <= last]
    if needed:
        yield _stand_in_step(log, records, needed)
    elif old:

        def leave_out() -> None:
            with log.lock():
                log.set_aside(path for version in old if (path := log.file(version)).exists())
                log.rewrite_chain([Record(each.version, 0, UNKNOWN) if each.version in old else each for each in records])

        yield Step(
            table=log.table,
            found=f"the log of {len(old)} older versions is damaged or missing",
            act=leave_out,
            does="leaves them out of the history: they cannot be read any more, the newest version can",
        )


def _stand_in_step(log: TableLog, records: list[Record], lost: list[int]) -> Step:
    """The lost commits are left out, and those after them stay, up to one that cannot."""
    made = stand_ins(log, lost, len(records))
    cut = list(range(made.end, len(records)))
    left_out = [version for version in lost if version < made.end]

    def act() -> None:
        with log.lock():
            torn = [*left_out, *(range(made.end, len(records) + 64) if cut else ())]
            log.set_aside(path for version in torn if (path := log.file(version)).exists())
            log.set_aside([hint] if (hint := log.path / HINT).exists() else [])
            for version in left_out:
                atomic_write(log.file(version), lines(made.actions[version]))
            kept = {version: log.record(version) for version in left_out}
            log.rewrite_chain([kept.get(each.version, each) for each in records[: made.end]])

    found = f"the log of version {_some(lost)} is damaged or missing"
    does = f"leaves it out and keeps the {made.end - left_out[0] - len(left_out)} commits after it"
    if cut:
        does += f" up to version {made.end - 1}: {len(cut)} later commits depend on what was lost and are set aside"
    return Step(table=log.table, found=found, does=does, act=act, lost=_stages(log, [*left_out, *cut]))


def _some(versions: list[int]) -> str:
    return ", ".join(map(str, versions[:5])) + (f" and {len(versions) - 5} more" if len(versions) > 5 else "")


def _data_steps(warehouse: Warehouse, log: TableLog) -> Iterator[Step]:
    try:
        delta = warehouse.delta(log.table)
    except CorruptTable:
        return
    if delta is None:
        return
    damaged = data_damage(log.folder, delta)
    names = [each.path.relative_to(log.folder).as_posix() for each in damaged]
    if not damaged:
        return

    def act() -> None:
        with warehouse.maintaining(log.table) as (newest, after):
            actions = newest.get_add_actions()
            sizes = dict(zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True))
            columns = newest.metadata().partition_columns
            removed: list[AddAction | RemoveAction] = [
                RemoveAction(path, True, int(time.time() * 1000), size, _values(path, columns))
                for path, size in sizes.items()
                if unquote(path) in names
            ]
            newest.create_write_transaction(
                removed,
                "append",
                newest.schema(),
                partition_by=columns,
                commit_properties=CommitProperties(custom_metadata={"repair": "true"} | after),
            )
        _move(log, [each.path for each in damaged if each.path.exists()])

    lost = {(found[1], found[2]) for name in names if (found := _PLACE.match(name)) is not None}
    yield Step(
        table=log.table,
        found=f"{len(damaged)} data files are damaged or missing, the first: {damaged[0].path} {damaged[0].what}",
        does="takes them out of the table and sets them aside; their rows are lost",
        act=act,
        lost=tuple(sorted(lost)),
    )


def _values(path: str, columns: list[str]) -> dict[str, str | None]:
    parts = dict(part.partition("=")[::2] for part in unquote(path).split("/")[:-1])
    return {name: parts.get(name) for name in columns}


def _stages(log: TableLog, versions: list[int]) -> tuple[tuple[str, str], ...]:
    """Iteration and stage of commits: what their logs say, or where those cannot be read, where files of theirs lie."""
    found = set()
    for version in versions:
        try:
            info = commit_info(read_log(log.file(version)))
        except (OSError, ValueError):
            info = {}
        if not info:
            found |= set(places(log, version))
        elif info.get("iteration") and info.get("stage"):
            found.add((info["iteration"], info["stage"]))
    return tuple(sorted(found))


def _move(log: TableLog, paths: list[Path]) -> None:
    target = log.aside()
    for path in paths:
        path.rename(target / path.name)
        sync(path.parent)
    sync(target)
