"""Task sets on disk: written whole or not at all, named by what they hold, read by the sessions that run their tasks.

    FLYWHEEL_HOME/task_sets/<name>/current          the id of the version that counts
    FLYWHEEL_HOME/task_sets/<name>/<set id>/
        set.json          where it came from, how many tasks it has, the unknown fields by name
        tasks.jsonl       one ImportedTask a line
        records.jsonl     every record as it was read, with its digest: {"record": digest, "where": file:line, "data": …}
        assets/<digest>   files that tasks put in place or compare with

A version is never changed. An import of the same records makes the same id, and then nothing is written; an older version stays for what
still runs on it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sandbox.tasks.imported.spec import ImportedTask
from warehouse.core.disk import is_full_disk, storage_full
from warehouse.core.durable import make_folder, sync
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home, atomic_write
from warehouse.core.identity import content_id

FOLDER = "task_sets"
CURRENT, MANIFEST, TASKS, RECORDS, ASSETS = "current", "set.json", "tasks.jsonl", "records.jsonl", "assets"
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record as it was read. `data` is the parsed record, or its text where it is none."""

    digest: str
    where: str
    data: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """One version of a set, as its tasks are run."""

    name: str
    set_id: str
    folder: Path
    tasks: Mapping[str, ImportedTask]
    """By name."""
    manifest: Mapping[str, Any]

    def asset(self, digest: str) -> bytes:
        """Raises ConfigError for a file that is not in the set."""
        try:
            return (self.folder / ASSETS / digest).read_bytes()
        except OSError as error:
            raise ConfigError(f"the task set {self.name} lacks its file {digest}: import it again ({error.strerror})") from error


def sets_folder(home: Home | None = None) -> Path:
    return (home or Home.from_env()).root / FOLDER


def set_names(home: Home | None = None) -> list[str]:
    folder = sets_folder(home)
    return sorted(path.parent.name for path in folder.glob(f"*/{CURRENT}")) if folder.is_dir() else []


def check_name(name: str) -> str:
    """Raises ConfigError for what cannot name a set."""
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a task set: use lower-case letters, digits, - and _, beginning with a letter or digit")
    return name


def read_set(name: str, home: Home | None = None) -> TaskSet:
    """The version that counts now. Raises ConfigError for a set that is not there or cannot be read."""
    folder = sets_folder(home) / name
    try:
        set_id = (folder / CURRENT).read_text(encoding="ascii").strip()
    except OSError:
        known = ", ".join(set_names(home)) or "none"
        raise ConfigError(
            f"there is no task set {name!r} in {folder.parent}; there are: {known}. Import one with `flywheel import tasks`, and name the "
            "home in FLYWHEEL_HOME"
        ) from None
    return read_version(folder / set_id, name, set_id)


@lru_cache(maxsize=16)
def read_version(folder: Path, name: str, set_id: str) -> TaskSet:
    """Raises ConfigError for a version that is not there or cannot be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        lines = (folder / TASKS).read_text(encoding="utf-8").split("\n")
        tasks = [ImportedTask.model_validate_json(line) for line in lines if line]
    except (OSError, ValueError, ValidationError) as error:
        raise ConfigError(f"the task set {name} in {folder} cannot be read: {error}. Import it again") from error
    return TaskSet(name=name, set_id=set_id, folder=folder, tasks={task.spec.name: task for task in tasks}, manifest=manifest)


def read_records(task_set: TaskSet) -> dict[str, Record]:
    """Every record of a set by its digest, those too that became no task."""
    lines = (task_set.folder / RECORDS).read_text(encoding="utf-8").split("\n")
    parsed = (json.loads(line) for line in lines if line)
    return {each["record"]: Record(digest=each["record"], where=each["where"], data=each["data"]) for each in parsed}


def write_set(
    home: Home,
    name: str,
    tasks: Sequence[ImportedTask],
    records: Sequence[Record],
    assets: Mapping[str, bytes],
    manifest: Mapping[str, Any],
) -> TaskSet:
    """Make this the version of the set that counts. Raises ConfigError, StorageFull (then the set is as it was)."""
    check_name(name)
    content = {
        MANIFEST: json.dumps(manifest, indent=2, ensure_ascii=False, sort_keys=True) + "\n",
        TASKS: "".join(task.model_dump_json() + "\n" for task in tasks),
        RECORDS: "".join(_record_line(record) for record in records),
    }
    set_id = content_id("set", [content, sorted(assets)])
    folder = sets_folder(home) / name
    if not (folder / set_id).is_dir():
        _write_version(folder, set_id, content, assets)
    before = (folder / CURRENT).read_text(encoding="ascii").strip() if (folder / CURRENT).is_file() else None
    if before != set_id:
        atomic_write(folder / CURRENT, f"{set_id}\n".encode())
    return read_version(folder / set_id, name, set_id)


def _record_line(record: Record) -> str:
    """Fields in the record's own order."""
    return json.dumps({"record": record.digest, "where": record.where, "data": record.data}, ensure_ascii=False, default=str) + "\n"


def _write_version(folder: Path, set_id: str, content: Mapping[str, str], assets: Mapping[str, bytes]) -> None:
    """Aside in the same folder, flushed, then renamed into place."""
    make_folder(folder)
    aside = Path(tempfile.mkdtemp(prefix=f".{set_id}.", dir=folder))
    try:
        (aside / ASSETS).mkdir()
        files = {name: text.encode() for name, text in content.items()} | {f"{ASSETS}/{digest}": data for digest, data in assets.items()}
        for name, data in files.items():
            (aside / name).write_bytes(data)
            sync(aside / name)
        aside.chmod(0o755)
        os.rename(aside, folder / set_id)
        sync(folder)
    except OSError as error:
        if is_full_disk(error):
            then = "import again; the set is as it was"
            raise storage_full(f"the task set {folder.name}", folder, error, then=then) from error
        if not (folder / set_id).is_dir():  # else somebody imported the same at the same time
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
