"""What a home has acknowledged, and whether it is all there after a power cut or a kill: versions of tables, files, finished stages,
episodes. Who works on the home is the business of power_cut/ and kills.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import duckdb
from rich.console import Console

from agent.episode.episode import Episode
from assets.stages.requests import StageResult
from pipelines.cli.data.verify import verify
from pipelines.orchestration.work.finished_work import find_loss
from pipelines.orchestration.work.folder import RESULT
from warehouse.core.errors import FlywheelError, UnknownTable
from warehouse.core.home import Home
from warehouse.storage.catalogue import TABLES
from warehouse.storage.tables import NO_VERSION, Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What must be there from now on: versions of tables with the digest of their rows, and files with the digest of their bytes."""

    said: str
    """What the workload had just finished, e.g. `done withdraw`."""
    tables: dict[str, tuple[int, str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """By path under the home."""

    def text(self) -> str:
        return json.dumps({"said": self.said, "tables": self.tables, "files": self.files})

    @classmethod
    def read(cls, text: str) -> Promise:
        found = json.loads(text)
        tables = {name: (version, digest) for name, (version, digest) in found["tables"].items()}
        return cls(said=found["said"], tables=tables, files=found["files"])


class Digests:
    """Digests of the rows of table versions, each computed once: a version never changes."""

    def __init__(self, home: Path) -> None:
        self._warehouse = Warehouse(Home(home))
        self._known: dict[tuple[str, int], str] = {}

    def versions(self) -> dict[str, int]:
        return {name: version for name, version in self._warehouse.versions().items() if version != NO_VERSION}

    def of(self, versions: dict[str, int]) -> dict[str, tuple[int, str]]:
        return {name: (version, self._of(name, version)) for name, version in versions.items()}

    def _of(self, table: str, version: int) -> str:
        if (table, version) not in self._known:
            self._known[table, version] = rows_digest(self._warehouse, table, version)
        return self._known[table, version]


def rows_digest(warehouse: Warehouse, table: str, version: int) -> str:
    """Of all rows of a table version, in whatever order they lie."""
    rows = warehouse.read(table, version=version)  # noqa: F841 DuckDB reads it by its name
    with duckdb.connect(":memory:") as con:
        (found,) = con.execute("select count(*) || '/' || coalesce(sum(hash(rows)::hugeint), 0) from rows").fetchall()
    return str(found[0])


def acknowledged_episodes(home: Home, stored: Iterable[str]) -> set[str]:
    """Episodes that were said to be finished and that the tables are to have: they are stored, in a trainer's rollout log, or among those
    that a stage keeps while it works."""
    found = set(stored)
    kept = (path for path in home.work.glob("*/*/episodes/episodes.jsonl") if path.parts[-3] != "merged_policy")
    for path in (*home.checkpoints.glob("*/*/run/*/episodes/episodes.jsonl"), *kept):
        found |= set(logged_episodes(path))
    return found


def logged_episodes(path: Path) -> Iterator[str]:
    """Ids of the episodes in a log of them, without a last line that was cut off."""
    data = path.read_bytes()
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        yield Episode.model_validate_json(line).episode_id


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def merged(promises: Iterable[Promise]) -> Promise:
    """All that was promised so far: of a table the newest version; files stay."""
    tables: dict[str, tuple[int, str]] = {}
    files: dict[str, str] = {}
    said = "nothing yet"
    for promise in promises:
        tables, files, said = {**tables, **promise.tables}, {**files, **promise.files}, promise.said
    return Promise(said=said, tables=tables, files=files)


def broken(home: Path, promise: Promise) -> list[str]:
    """What of a promise is not kept in this home: a line each. Every table has to be readable as it is now, too."""
    warehouse, lines = Warehouse(Home(home)), []
    for table in TABLES:
        version, digest = promise.tables.get(table, (NO_VERSION, ""))
        try:
            newest = warehouse.version(table)
            if newest < version:
                lines.append(f"{table} ends at version {newest}; {version} was acknowledged")
            elif version != NO_VERSION and (found := rows_digest(warehouse, table, version)) != digest:
                lines.append(f"{table} version {version} holds {found}; {digest} was acknowledged")
            elif newest > version:
                rows_digest(warehouse, table, newest)
        except UnknownTable:  # a purge erases the versions before it, also one that was not acknowledged yet
            lines += _unreadable(warehouse, table)
        except FlywheelError as error:
            lines.append(f"{table}: {type(error).__name__}: {error}")
    return lines + _broken_files(home, promise)


def unsound(home: Path) -> list[str]:
    """What `flywheel verify` finds damaged, and finished stages that lack something that their results name: a line each."""
    warehouse, said = Warehouse(Home(home)), StringIO()
    lines = []
    if verify(warehouse, Console(file=said, width=400), all_versions=False, as_json=True):
        lines.append(f"verify finds damage: {said.getvalue()}")
    for path in sorted(warehouse.home.work.glob(f"*/*/{RESULT}")):
        stage = "/".join(path.parts[-3:-1])
        try:
            lost = find_loss(warehouse, StageResult.model_validate_json(path.read_bytes()))
        except ValueError as error:
            lost = f"{RESULT} cannot be read: {error}"
        lines += [f"{stage} is finished, but {lost}"] if lost else []
    return lines


def _unreadable(warehouse: Warehouse, table: str) -> list[str]:
    try:
        rows_digest(warehouse, table, warehouse.version(table))
    except FlywheelError as error:
        return [f"{table}: {type(error).__name__}: {error}"]
    return []


def _broken_files(home: Path, promise: Promise) -> list[str]:
    lines = []
    for name, digest in promise.files.items():
        path = home / name
        if not path.is_file():
            lines.append(f"file {name} is missing; it was acknowledged")
        elif file_digest(path) != digest:
            lines.append(f"file {name} holds other bytes ({path.stat().st_size}) than were acknowledged")
    return lines
