"""The profile that a home was last run with, kept in the home: commands that name no profile use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pipelines import profiles
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home, atomic_write

FILE = "profile.yaml"


def keep(home: Home, name_or_path: str, overrides: Mapping[str, Any]) -> None:
    """Store what the home is run with."""
    kept = {"profile": profiles.located(name_or_path, Path.cwd()), "set": dict(overrides)}
    atomic_write(home.root / FILE, yaml.safe_dump(kept, sort_keys=True, allow_unicode=True).encode())


def chosen(home: Home, given: str | None, overrides: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The profile and changes that a command means: those that it names; without a name the home's own, under the changes that it names;
    in a new home the quickstart. Raises ConfigError where the home's file is not usable."""
    if given is not None:
        return given, dict(overrides)
    kept = _read(home)
    return (kept[0], {**kept[1], **overrides}) if kept else (profiles.DEFAULT_PROFILE, dict(overrides))


def other(home: Home, name_or_path: str) -> str | None:
    """The profile that the home was run with until now, where it differs from this one and can be read."""
    try:
        kept = _read(home)
    except ConfigError:
        return None
    return kept[0] if kept and kept[0] != profiles.located(name_or_path, Path.cwd()) else None


def _read(home: Home) -> tuple[str, dict[str, Any]] | None:
    file = home.root / FILE
    if not file.exists():
        return None
    kept = profiles.parse_value(file.read_text(), str(file))
    if not isinstance(kept, dict) or not isinstance(kept.get("profile"), str) or not isinstance(kept.get("set", {}), dict):
        raise ConfigError(f"{file} is not what a run writes there, a mapping of `profile` and `set`: delete it, or name a --profile")
    return kept["profile"], kept.get("set", {})
