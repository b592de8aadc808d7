"""Which formats of demonstrations can be imported, by name: IMPORTERS. How one is registered is warehouse/core/plugins.py."""

from __future__ import annotations

from pathlib import Path

from pipelines.importing.trajectories import Importer
from warehouse.core.errors import ConfigError
from warehouse.core.plugins import Plugins, located

IMPORTERS: Plugins[Importer] = Plugins(
    "importers",
    noun="importer",
    example="importer.py:IMPORTER",
    is_one=lambda found: isinstance(found, Importer),
    expected="an Importer (pipelines/importing/trajectories.py), e.g. `IMPORTER = Importer(name='mine', entries=…)`",
)


def importer_named(format: str) -> Importer:
    """By name, or by reference. Raises ConfigError for an unknown one, and for a name that is taken."""
    if ":" not in format:
        if format not in IMPORTERS:
            raise ConfigError(
                f"no format of demonstrations {format!r}: the formats are {', '.join(IMPORTERS)}, or name an importer of yours, "
                "module:attribute or path/to/file.py:attribute"
            )
        return IMPORTERS[format]
    found = IMPORTERS.load(located(format, Path.cwd()))
    if found.name in IMPORTERS and IMPORTERS[found.name] is not found:
        raise ConfigError(f"the importer {format} calls itself {found.name!r}, as another one is called: rename it")
    return found
