"""Files that lie beside the rooms, in a checkout and in the installed package: dagster.yaml and constraints.txt."""

from __future__ import annotations

from pathlib import Path

from warehouse.core.errors import ConfigError

_FOLDER = Path(__file__).resolve().parents[2]
"""Where the rooms lie: the checkout, or the installed package."""


def shipped(name: str) -> Path:
    """The file of that name. Raises ConfigError if it is missing."""
    if not (_FOLDER / name).is_file():
        raise ConfigError(f"{name} is not in {_FOLDER}: install flywheel again, or run from a whole checkout")
    return _FOLDER / name
