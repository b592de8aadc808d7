"""Secure deletion of files: overwritten, then removed. A process that still has one of them open keeps it whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

OLD = ".old"
"""Ends the name that a file keeps while another is put in its place."""


def wipe(path: Path) -> None:
    with suppress(FileNotFoundError):
        with path.open("r+b") as file:
            _overwrite(file)
        path.unlink()


def wipe_old(old: Path) -> None:
    """Wipe what was replaced. Where it was not (the process was killed, or the disk was full, before the new file was in its place) the old
    name is a second one of the file that is still in use: only that name goes."""
    current = old.with_name(old.name.removesuffix(OLD))
    with suppress(FileNotFoundError):
        with old.open("r+b") as file:  # opened first: what is open here and has been replaced is never in use again
            if not _is_at(file, current):
                _overwrite(file)
        old.unlink()


def _overwrite(file: BinaryIO) -> None:
    file.write(bytes(os.fstat(file.fileno()).st_size))
    file.flush()
    os.fsync(file.fileno())


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
