"""Files beside the tables that keep what was once made of them: whole or not at all, and damage in them is noticed. What is in them, and
whether it still holds, is the caller's; deleting them loses nothing."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from warehouse.core.errors import FlywheelError
from warehouse.core.home import Home, atomic_write

_DIGEST_BYTES = sha256().digest_size


def notes_folder(home: Home, name: str) -> Path:
    return home.root / "cache" / name


def read_notes(path: Path) -> bytes | None:
    """None where there are none, or they are damaged: then they are made again."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    content = stored[_DIGEST_BYTES:]
    return content if sha256(content).digest() == stored[:_DIGEST_BYTES] else None


def write_notes(path: Path, content: bytes) -> None:
    """A home that cannot be written to is read all the same."""
    with suppress(OSError, FlywheelError):
        atomic_write(path, sha256(content).digest() + content)
