"""Files that stand at the root of a checkout and travel inside the installed package: dagster.yaml and constraints.txt."""

from __future__ import annotations

from pathlib import Path

from warehouse.core.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped(name: str) -> Path:
    """The file of that name: the checkout's, else the installed package's. Raises ConfigError where neither has it."""
    for folder in (_PACKAGE.parent, _PACKAGE):
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f"{name} is in neither {_PACKAGE.parent} nor {_PACKAGE}: install flywheel again, or run from a whole checkout")
