"""How much of an object store's data files a home keeps copies of: those used last, up to a size.

A copy's time of access says when it was used, set by who uses it, since file systems do not keep it. What was used within IN_USE_S stays
whatever the size: a reader may be at it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from warehouse.core.errors import ConfigError

LIMIT_VARIABLE = "FLYWHEEL_STORE_CACHE_GB"
DEFAULT_LIMIT_GB = 50.0
IN_USE_S = 3600.0
LOOKED_EVERY_S = 60.0
_LOOKED: dict[str, float] = {}
"""When this process last pruned the copies in a folder, by its monotonic clock."""


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
    now = time.monotonic()
    if now - _LOOKED.get(str(folder), -LOOKED_EVERY_S) >= LOOKED_EVERY_S:
        _LOOKED[str(folder)] = now
        prune(folder, limit_bytes())


def prune(folder: Path, limit: float, *, in_use_s: float = IN_USE_S) -> list[Path]:
    """Delete data files below a folder, those first that were not used for longest, until they take up `limit` bytes; which they were."""
    found = []
    for path in folder.rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            with suppress(FileNotFoundError):
                state = path.stat()
                found.append((state.st_atime, state.st_size, path))
    size, unused_since, gone = sum(each[1] for each in found), time.time() - in_use_s, []
    for used_at, bytes_each, path in sorted(found):
        if size <= limit or used_at > unused_since:
            break
        path.unlink(missing_ok=True)
        size -= bytes_each
        gone.append(path)
    return gone
