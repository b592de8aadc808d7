"""Which exports were written from a home, and where: FLYWHEEL_HOME/exports.jsonl. An export is a copy, and to forget something
one must know where else it lies. Copies that people made of an export are not known here.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from warehouse.core.home import Home, atomic_write
from warehouse.core.locks import FileLock

FILE = "exports.jsonl"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An export as it was asked for. `path` is absolute."""

    path: str
    format: str
    dataset: str
    as_of: str | None

    @property
    def is_there(self) -> bool:
        return Path(self.path).exists()


def remember(home: Home, export: Known) -> None:
    """Write down an export; one at the same place takes its line. A home that cannot be written to keeps none, which is logged."""
    try:
        with FileLock(home.locks / "exports.lock"):
            lines = [one for one in known_exports(home) if one.path != export.path]
            _write(home, [*lines, export])
    except OSError as error:
        _LOG.warning("the export %s is not remembered in %s, so nothing will be forgotten in it: %s", export.path, home.root, error)


def known_exports(home: Home) -> list[Known]:
    """In the order in which they were written, whether they are still there or not."""
    path = home.root / FILE
    return [Known(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def _write(home: Home, exports: list[Known]) -> None:
    atomic_write(home.root / FILE, "".join(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in exports).encode())
