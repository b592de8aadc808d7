"""The folder for what is expensive to make and can be made again: fetched packages, disk images, booted machines. Nothing that a run wrote
lies there (that is FLYWHEEL_HOME).
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/flywheel`, else for root /var/cache/flywheel, which the users without privileges that root starts programs as can
    reach, else ~/.cache/flywheel. It is made where it is missing."""
    named = os.environ.get("XDG_CACHE_HOME")
    default = Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache"
    folder = (Path(named) if named else default) / "flywheel"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
