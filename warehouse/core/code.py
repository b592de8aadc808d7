"""Which code this is."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from warehouse.core.identity import files_id

ROOMS = ("warehouse", "sandbox", "agent", "models", "annotation", "assets", "pipelines")


@cache
def code_digest() -> str:
    """Digest of every Python file of the project, so that a materialization says which code made it, and so that two machines find out
    that they run different code."""
    root = Path(__file__).resolve().parents[2]
    return files_id("code", [path for room in ROOMS for path in sorted((root / room).rglob("*.py"))])
