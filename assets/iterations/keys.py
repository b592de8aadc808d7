"""Names of iterations, and how one follows another: four digits."""

from __future__ import annotations

from warehouse.core.errors import ConfigError


def iteration_key(number: int) -> str:
    """Partition key of an iteration: 1 → "0001"."""
    if not 0 <= number <= 9999:
        raise ConfigError(f"iteration {number} is out of range: 0 to 9999 are allowed; continue in a new FLYWHEEL_HOME")
    return f"{number:04d}"


def iteration_number(key: str) -> int:
    if not (len(key) == 4 and key.isdigit()):
        raise ConfigError(f"`{key}` is not an iteration key: use four digits, e.g. 0002")
    return int(key)


def next_key(key: str) -> str:
    return iteration_key(iteration_number(key) + 1)


def previous_key(key: str) -> str:
    return iteration_key(iteration_number(key) - 1)
