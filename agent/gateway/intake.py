"""Spans of agents as they come in over OTLP/HTTP: each export is a line of the day's log,
FLYWHEEL_HOME/logs/<day>/otel-genai/<project>.jsonl, which the import of that day reads (pipelines/orchestration/imported_logs.py). Checked
here is only that it is such an export.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from warehouse.core.errors import RequestRefused
from warehouse.core.home import Home

FORMAT = "otel-genai"
MAX_DAY_BYTES = 4 * 2**30
"""Of one project's file of a day."""


def logs_of(home: Home) -> Path:
    """Folders of days, and in each one a folder for each format of what came in."""
    return home.root / "logs"


class Intake:
    """Of one server, the only one that writes into these files."""

    def __init__(self, home: Home) -> None:
        self._root, self._lock = logs_of(home), Lock()

    def add(self, project: str, body: bytes) -> None:
        """Write an export; it survives a power cut once this returns. Raises RequestRefused for what is none and where the day's file is
        full, and OSError."""
        line = _line(body)
        name = re.sub(r"[^A-Za-z0-9_-]", "_", project)[:64] or "_"
        path = self._root / datetime.now(UTC).date().isoformat() / FORMAT / f"{name}.jsonl"
        with self._lock:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as file:
                size = file.seek(0, os.SEEK_END)
                if size + len(line) > MAX_DAY_BYTES:
                    raise RequestRefused(f"what came in today is {size} bytes; at most {MAX_DAY_BYTES} are taken of a project and day")
                file.write((b"" if _is_whole(file, size) else b"\n") + line)
                file.flush()
                os.fsync(file.fileno())


def _is_whole(file: Any, size: int) -> bool:
    """Whether it ends with a whole line: a write may have been cut off."""
    if size == 0:
        return True
    file.seek(size - 1)
    return bool(file.read(1) == b"\n")


def _line(body: bytes) -> bytes:
    try:
        value = json.loads(body)
        line = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the export is not JSON that can be stored: {str(error)[:200]}") from None
    if not isinstance(value, Mapping) or not isinstance(value.get("resourceSpans"), list):
        raise RequestRefused("an export of spans is an object with a list `resourceSpans` (OTLP in JSON)")
    return line
