"""What makes bytes survive a power cut, and what detects that they changed: fsync and checksums of local files. Nothing here knows what is
in a file. Every other module that cares goes through these functions, so another kind of storage replaces this module alone.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import zlib
from pathlib import Path

PRIVATE = 0o700
"""The mode of a folder that is its owner's alone."""
DIGEST_LENGTH = 32
"""Hexadecimal digits of a digest."""
_AT_ONCE = 8 * 2**20
_KEPT: set[tuple[str, int, int]] = set()
"""Folders whose own names this process has synced: path, device, inode."""


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut. Raises OSError for a file; some file systems cannot sync a folder, and a
    rename in it is atomic all the same."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder with its parents, and make all their names survive a power cut, also those that a killed process made just before.
    What is made is its owner's alone; below a folder that is shared with a group (setgid) the group has the rights that it has there."""
    _make_private(folder)
    while folder.parent != folder:
        found = folder.stat()
        key = (str(folder), found.st_dev, found.st_ino)
        if key in _KEPT or not os.access(folder.parent, os.W_OK):
            return
        sync(folder.parent)
        _KEPT.add(key)
        folder = folder.parent


def _make_private(folder: Path) -> None:
    if not folder.is_dir():
        _make_private(folder.parent)
        around = folder.parent.stat().st_mode
        shared = around & (stat.S_IRWXG | stat.S_ISGID) if around & stat.S_ISGID else 0
        try:
            folder.mkdir(mode=PRIVATE | shared)
        except FileExistsError:
            return
        if shared & stat.S_IWGRP:  # the umask has taken that away
            folder.chmod(PRIVATE | shared)


def sync_file(path: Path) -> None:
    """Make a file that another library has just written survive a power cut, with its name."""
    sync(path)
    sync(path.parent)


def append(path: Path, data: bytes, at: int) -> None:
    """Write `data` at byte `at` of a file and cut off whatever came after; on the disk when this returns."""
    make_folder(path.parent)
    is_new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.ftruncate(descriptor, at)
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], at + written)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        sync(path.parent)


def digest(data: bytes) -> str:
    """The first 128 bits of SHA-256, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:DIGEST_LENGTH]


def crc32(path: Path) -> int:
    """CRC-32 of a whole file. It differs after every single flipped bit and every burst of up to 32 bits, and costs a third of SHA-256."""
    value = 0
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return value
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            for start in range(0, len(view), _AT_ONCE):
                with view[start : start + _AT_ONCE] as part:
                    value = zlib.crc32(part, value)
    return value
