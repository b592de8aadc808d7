"""The licence of an import: `--licence`, else that of the public collection that the importer takes it for, else unknown."""

from __future__ import annotations

from sandbox.importing.collection import Collection
from warehouse.core.errors import ConfigError
from warehouse.datasets.provenance import UNKNOWN, Kind, Source, add_sources, known_sources
from warehouse.storage.tables import Warehouse

LONGEST = 200
IMPORTER = "the importer, of the collection's own dataset card"
GIVEN = "whoever imported it"


def checked(licence: str | None) -> str | None:
    """What `--licence` says, in one line. Raises ConfigError for nothing, or for a whole text."""
    if licence is None:
        return None
    found = " ".join(licence.split())
    if not found or len(found) > LONGEST:
        raise ConfigError(
            f"--licence {found[:40]!r}: name it in up to {LONGEST} characters, best by its SPDX id, e.g. MIT or CC-BY-4.0; or leave it out"
        )
    return found


def source_of_import(source: str, format: str, collection: Collection | None, given: str | None, *, kind: Kind = "import") -> Source:
    """Of an import of a format. `collection`: which one the importer takes it for. In its format others may have written their own data:
    then `--licence` says so."""
    origin = collection.origin if collection is not None else f"records of the format {format}"
    if given is not None:
        return Source(source=source, kind=kind, licence=given, origin=origin, stated_by=GIVEN)
    if collection is None:
        return Source(source=source, kind=kind, licence=UNKNOWN, origin=origin)
    return Source(source=source, kind=kind, licence=collection.licence, origin=origin, stated_by=IMPORTER)


def add_licence(warehouse: Warehouse, stage: str, format: str, given: str | None, collection: Collection | None = None) -> None:
    """Store it with the import. What was stated about this import before stays where nothing is stated now."""
    before, now = known_sources(warehouse).get(stage), source_of_import(stage, format, collection, given)
    if before == now or (given is None and before is not None and before.stated_by == GIVEN):
        return
    add_sources(warehouse, [now], stage=stage)
