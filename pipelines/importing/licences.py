"""The licence of an import: `--licence`, else the one that the public collection of its format states, else
unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warehouse.core.errors import ConfigError
from warehouse.datasets.provenance import UNKNOWN, Kind, Source, add_sources, known_sources
from warehouse.storage.tables import Warehouse

LONGEST = 200
IMPORTER = "the importer, of the collection's own dataset card"

GIVEN = "whoever imported it"


@dataclass(frozen=True, slots=True)
class Public:
    """What a collection states."""

    licence: str
    origin: str


AGENTNET = Public("MIT", "AgentNet, https://huggingface.co/datasets/xlangai/AgentNet")
MIND2WEB = Public("CC-BY-4.0", "Mind2Web, https://huggingface.co/datasets/osunlp/Mind2Web")
MULTIMODAL_MIND2WEB = Public("OpenRAIL", "Multimodal-Mind2Web, https://huggingface.co/datasets/osunlp/Multimodal-Mind2Web")
MINIWOB = Public("MIT", "MiniWoB++, https://github.com/Farama-Foundation/miniwob-plusplus")


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


def source_of_import(source: str, format: str, paths: Sequence[Path], given: str | None, *, kind: Kind = "import") -> Source:
    """Of an import of a format from these files. In the formats of public collections others may have written their own data: then
    `--licence` says so."""
    public = _public(format, paths, kind)
    origin = public.origin if public is not None else f"records of the format {format}"
    if given is not None:
        return Source(source=source, kind=kind, licence=given, origin=origin, stated_by=GIVEN)
    if public is None:
        return Source(source=source, kind=kind, licence=UNKNOWN, origin=origin)
    return Source(source=source, kind=kind, licence=public.licence, origin=public.origin, stated_by=IMPORTER)


def _public(format: str, paths: Sequence[Path], kind: Kind) -> Public | None:
    if format == "mind2web" and kind == "tasks":  # lists of Online-Mind2Web have the same form
        return None
    if format == "mind2web":
        return MULTIMODAL_MIND2WEB if any(path.suffix == ".parquet" for path in paths) else MIND2WEB
    return {"agentnet": AGENTNET, "miniwob": MINIWOB}.get(format)


def add_licence(warehouse: Warehouse, stage: str, format: str, paths: Sequence[Path], given: str | None) -> None:
    """Store it with the import. What was said of this import before stays where nothing is said now."""
    before, now = known_sources(warehouse).get(stage), source_of_import(stage, format, paths, given)
    if before == now or (given is None and before is not None and before.stated_by == GIVEN):
        return
    add_sources(warehouse, [now], stage=stage)
