"""What every importer of tasks shares: a record's fields, of which none is passed over unseen, the files that tasks want, and what a record
became. The formats themselves are modules of their own.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from sandbox.tasks.imported.spec import TaskSpec

T = TypeVar("T")

NEEDS_FILE, NEEDS_PACKAGES = "needs a file", "needs Debian packages that are not installed"
"""How a reason begins that goes away once files are given with --assets, or packages are installed."""


class BadRecord(ValueError):
    """A record is not a task of its format, and why: it is named by file and line, kept as it is, and no task is made of it."""


@dataclass(slots=True, kw_only=True)
class Mapped:
    """What a record became."""

    spec: TaskSpec
    not_runnable: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    assets: dict[str, bytes] = field(default_factory=dict)
    """By digest."""


class Fields:
    """A record's fields. What was neither taken nor said to be kept aside is `unknown`, by its dotted name."""

    def __init__(self, record: Any, what: str = "") -> None:
        if not isinstance(record, Mapping):
            raise BadRecord(f"{what or 'the record'} is {type(record).__name__}, expected an object with named fields")
        self._record, self._what, self._seen = record, what, set[str]()

    def take(self, name: str, kind: type[T], default: T | None = None) -> T:
        """Raises BadRecord for a value of another type, and where there is neither a value nor a default."""
        self._seen.add(name)
        value = self._record.get(name)
        if value is None:
            if default is None:
                raise BadRecord(f"`{self.dotted(name)}` is missing")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)  # type: ignore[return-value]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise BadRecord(f"`{self.dotted(name)}` is {type(value).__name__}, expected {kind.__name__}")
        return value

    def any(self, *names: str) -> Any:
        """The first of these that is there, whatever it is; None for none."""
        self._seen.update(names)
        return next((self._record[name] for name in names if self._record.get(name) is not None), None)

    def keep_aside(self, *names: str) -> None:
        """Known, of no use here, and kept with the record."""
        self._seen.update(names)

    def unknown(self) -> list[str]:
        return [self.dotted(name) for name in self._record if name not in self._seen]

    def dotted(self, name: str) -> str:
        return f"{self._what}.{name}" if self._what else str(name)


class Files:
    """Files that records name: by an address, looked up below the folders of --assets and beside the record's own file."""

    def __init__(self, *folders: Path) -> None:
        self._folders = [folder.resolve() for folder in folders]

    def find(self, name: str, task_id: str = "", target: str = "") -> bytes | None:
        """A file by its address or path. Of an address its last part counts, alone or in a folder of the task's name, and the name that
        OSWorld's own cache gives it. A path never leads out of the folders. Raises BadRecord."""
        is_address = "://" in name
        try:
            last = PurePosixPath(unquote(urlsplit(name).path)).name if is_address else name
        except ValueError:
            raise BadRecord(f"{name[:80]!r} is not an address") from None
        cached = f"{uuid.uuid5(uuid.NAMESPACE_URL, name)}_{PurePosixPath(target).name or last}"
        for folder in self._folders:
            for candidate in (folder / task_id / cached, folder / cached, folder / task_id / last, folder / last):
                try:
                    whole = candidate.resolve()
                    if whole.is_relative_to(folder) and whole.is_file():
                        return whole.read_bytes()
                except (OSError, ValueError):  # a name that no file can have
                    continue
        return None


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def listed(value: Any) -> list[Any]:
    """A field that holds a list, one value, or nothing, as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def slug(text: str) -> str:
    """A name for a task: letters, digits, ".", "_" and "-"."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:100] or "task"
