"""Which iterations are open, read from the home. Dagster knows it too, but importing and asking it takes longer than all that `flywheel
status` reads. Iterations are opened by handoff.py alone, which writes this before it adds the partition to Dagster."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from warehouse.core.home import Home, atomic_write


def _path(home: Home) -> Path:
    return home.root / "opened.json"


def read_opened(home: Home) -> set[str] | None:
    """Their keys; None where the home does not say, as one of before does not."""
    try:
        found = json.loads(_path(home).read_bytes())
    except (OSError, ValueError):
        return None
    return set(found) if isinstance(found, list) else None


def write_opened(home: Home, keys: Collection[str]) -> None:
    atomic_write(_path(home), json.dumps(sorted(keys)).encode())
