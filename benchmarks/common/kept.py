"""What a benchmark keeps on disk to go on with after an interruption: rows of figures, a file an arm, and what they were measured on, a
policy with its folder. Each bears the fingerprint of the settings behind it, and what is of other settings is refused, never mixed in.

Which settings count is for the benchmark to say: all that the kept thing depends on and the code does not fix.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.provenance import provenance
from warehouse.core.home import atomic_write

Row = dict[str, Any]
DIGITS = 16


def fingerprint(*settings: Any) -> str:
    """Of JSON-able settings, the same on every machine."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:DIGITS]


def kept_row(path: Path, recipe: str, names: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]) -> Row:
    """The row of `path`, measured only if it is missing: `names` that say which row it is, its `recipe`, commit, date and machine as
    `measured`, then the figures. Raises SystemExit where the row there is of other settings."""
    if path.exists():
        found: Row = json.loads(path.read_text())
        _check(path, found.get("recipe"), recipe)
        return found
    found = {**names, "recipe": recipe, "measured": provenance(), **measure()}
    atomic_write(path, json.dumps(found).encode())
    return found


def claim(path: Path, recipe: str) -> None:
    """Say with what settings `path` is made; call this before it is made, and before it is taken as it lies there. Raises SystemExit where
    it is of others, or does not say of which."""
    mark = path.with_name(f"{path.name}.recipe")
    if mark.exists() or path.exists():
        _check(path, mark.read_text() if mark.exists() else None, recipe)
    else:
        atomic_write(mark, recipe.encode())


def _check(path: Path, found: str | None, wanted: str) -> None:
    if found != wanted:
        of = "of settings that it does not name" if found is None else f"of other settings ({found}, and these are {wanted})"
        raise SystemExit(f"{path} is {of}: remove {path.parent} to measure again, or keep it aside")
