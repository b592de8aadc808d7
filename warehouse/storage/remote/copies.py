"""How much of an object store's data files a home keeps copies of: those used last, up to a size. Its checkpoints obey a limit of
the same size (checkpoints.py).

A copy's time of access says when it was used, set by who uses it, since file systems do not keep it. What was used within IN_USE_S stays
whatever the size: a reader may be at it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from warehouse.core.errors import ConfigError

LIMIT_VARIABLE = "FLYWHEEL_STORE_CACHE_GB"
DEFAULT_LIMIT_GB = 50.0
IN_USE_S = 3600.0
LOOKED_EVERY_S = 60.0
_LOOKED: dict[str, float] = {}
"""When this process last pruned the copies in a folder, by its monotonic clock."""


@dataclass(frozen=True, slots=True, order=True)
class Copy:
    """`path`: a file or a folder; `used_at`: Unix seconds; `size`: bytes."""

    used_at: float
    size: int
    path: Path


def limit_bytes() -> float:
    """Raises ConfigError for what is not a size."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        limit = float(text) if text else DEFAULT_LIMIT_GB
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise ConfigError(f"{LIMIT_VARIABLE}={text!r}: give a number of gigabytes, from 0 on, e.g. {DEFAULT_LIMIT_GB:g}")
    return limit * 1e9


def note_use(path: Path) -> None:
    with suppress(OSError):  # it is not here, or somebody else's
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def prune_now_and_then(folder: Path) -> None:
    """`prune` to the limit that is set, at most every LOOKED_EVERY_S in a process."""
    if is_due(folder):
        prune(folder, limit_bytes())


def is_due(folder: Path) -> bool:
    """Whether this process has not asked so for LOOKED_EVERY_S."""
    now = time.monotonic()
    if now - _LOOKED.get(str(folder), -LOOKED_EVERY_S) < LOOKED_EVERY_S:
        return False
    _LOOKED[str(folder)] = now
    return True


def prune(folder: Path, limit: float, *, in_use_s: float = IN_USE_S) -> list[Path]:
    """Delete data files below a folder, those first that were not used for longest, until they take up `limit` bytes; which they were."""
    found = []
    for path in folder.rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            with suppress(FileNotFoundError):
                state = path.stat()
                found.append(Copy(state.st_atime, state.st_size, path))
    return delete_oldest(found, limit, in_use_s, _delete)


def _delete(found: Copy) -> bool:
    found.path.unlink(missing_ok=True)
    return True


def delete_oldest(found: Iterable[Copy], limit: float, in_use_s: float, delete: Callable[[Copy], bool]) -> list[Path]:
    """Have `delete` delete those first that were not used for longest, none that was used within `in_use_s`, until all take up `limit`
    bytes; which they were. One of which it says False is kept."""
    oldest, gone = sorted(found), []
    size, unused_since = sum(each.size for each in oldest), time.time() - in_use_s
    for each in oldest:
        if size <= limit or each.used_at > unused_since:
            break
        if delete(each):
            size -= each.size
            gone.append(each.path)
    return gone
