"""Full disks: how that is recognised, whichever library raises it, and how it is reported to the person who can free space."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from warehouse.core.errors import StorageFull

FULL_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WANTED_BYTES = 256 * 2**20
"""What a command or stage should find free before it is worth starting it again."""


def is_full_disk(error: BaseException) -> bool:
    """Whether an error, of whatever library, says that the disk has no room."""
    if isinstance(error, OSError) and error.errno in FULL_DISK_ERRNOS:
        return True
    text = str(error)
    return "disk is full" in text or any(f"os error {number}" in text or os.strerror(number) in text for number in FULL_DISK_ERRNOS)


def free_bytes(place: Path) -> int | None:
    """Of the disk that a path is on, which need not exist; None where nobody can say."""
    try:
        return shutil.disk_usage(next(each for each in (place, *place.parents) if each.exists())).free
    except OSError:
        return None


def storage_full(
    what: str, place: Path, error: BaseException | None = None, *, wanted_bytes: int = WANTED_BYTES, then: str = "run it again"
) -> StorageFull:
    """For `what` could not be written to `place`: which disk, how much is free there, how much is wanted, and what to do then."""
    free = free_bytes(place)
    left = "is full" if free is None else f"has {_size(free)} left"
    reason = f" ({(str(error) or type(error).__name__).splitlines()[0]})" if error is not None else ""
    wanted = f"{_size(wanted_bytes)} are wanted"
    return StorageFull(f"no room for {what}: the disk of {place} {left}, {wanted}{reason}. Free space there, then {then}")


def _size(num_bytes: int) -> str:
    """E.g. "1,536 bytes", "12.3 MiB", "3.4 GiB"."""
    if num_bytes < 2**20:
        return f"{num_bytes:,} bytes"
    return f"{num_bytes / 2**20:.1f} MiB" if num_bytes < 2**30 else f"{num_bytes / 2**30:.1f} GiB"
