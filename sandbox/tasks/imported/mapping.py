"""What every importer of tasks shares: the files that tasks want, and what a record became. The formats are modules of their own."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from sandbox.importing.fields import BadRecord
from sandbox.tasks.imported.spec import Lack, TaskSpec


@dataclass(slots=True, kw_only=True)
class Mapped:
    """What a record became."""

    spec: TaskSpec
    not_runnable: list[str] = field(default_factory=list)
    lacks: dict[str, Lack] = field(default_factory=dict)
    """Of those reasons that go away once something is given, what."""
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    assets: dict[str, bytes] = field(default_factory=dict)
    """By digest."""


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


def needs_packages(names: Iterable[str]) -> str:
    """The reason of a task that lacks Debian packages."""
    return f"needs Debian packages that are not installed: {', '.join(names)}"


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
