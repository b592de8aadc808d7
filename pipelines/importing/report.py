"""The report of an import of demonstrations or general data: what became of the records, in the terminal and in the files under
FLYWHEEL_HOME/imports/<name>. What the importers do is demonstrations.py's and general.py's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from pipelines.cli.terminal import print_counts, print_reasons
from pipelines.importing.trajectories import Entry
from warehouse.core.errors import ConfigError
from warehouse.core.home import atomic_write
from warehouse.core.identity import file_digest

MANIFEST, ORIGINS, REJECTED = "import.json", "origins.jsonl", "rejected.jsonl"


@dataclass(slots=True, kw_only=True)
class Report:
    """What became of the records."""

    num_records: int = 0
    num_added: int = 0
    num_there: int = 0
    samples: Counter[str] = field(default_factory=Counter)
    """Added, by table."""
    withheld: list[tuple[str, str]] = field(default_factory=list)
    malformed: list[tuple[str, str]] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    """Records that have a field of this name."""
    lost: Counter[str] = field(default_factory=Counter)
    """Times that no row says what a record said."""
    for_ct: Counter[str] = field(default_factory=Counter)
    """Records that a setting keeps from SFT, by the reason."""

    @property
    def counts(self) -> dict[str, Any]:
        """The same however often the import was begun, so neither what was added nor what was there."""
        return {
            "records": self.num_records,
            "withheld": len(self.withheld),
            "malformed": len(self.malformed),
            "unknown": dict(sorted(self.unknown.items())),
            "lost": dict(sorted(self.lost.items())),
            "for_ct": dict(sorted(self.for_ct.items())),
        }


class Kept:
    """What lies beside the tables: written whole at the end, and the same however often the import was begun."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self._folder, self._manifest = folder, manifest
        self._rejected: list[str] = []
        self._origins: list[str] = []
        self._lost_before = _losses(folder / ORIGINS)

    def reject(self, entry: Entry, why: str) -> None:
        self._rejected.append(json.dumps({"where": entry.where, "why": why, "record": entry.text}, ensure_ascii=False) + "\n")

    def came_from(self, entry: Entry, identity: str, lost: Mapping[str, int]) -> None:
        """`lost`: what of the record no row says, for an import that finds it stored."""
        entry_json = {"id": identity, "where": entry.where, "record": entry.digest, "lost": dict(sorted(lost.items()))}
        self._origins.append(json.dumps(entry_json, ensure_ascii=False) + "\n")

    def lost_before(self, digest: str) -> Counter[str] | None:
        """What of a record was lost when it was imported under this name before; None where that is not known."""
        return self._lost_before.get(digest)

    def begin(self) -> None:
        self._write_manifest(self._manifest)

    def write(self, report: Report) -> None:
        atomic_write(self._folder / ORIGINS, "".join(self._origins).encode())
        atomic_write(self._folder / REJECTED, "".join(self._rejected).encode())
        self._write_manifest({**self._manifest, "counts": report.counts})

    def _write_manifest(self, manifest: Mapping[str, Any]) -> None:
        atomic_write(self._folder / MANIFEST, (json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode())


def _losses(path: Path) -> dict[str, Counter[str]]:
    if not path.is_file():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return {row["record"]: Counter(row["lost"]) for row in rows if "lost" in row}


def manifest_of(format: str, paths: Sequence[Path], settings: Mapping[str, Any]) -> dict[str, Any]:
    files = [{"file": path.name, "sha256": file_digest(path)} for path in paths]
    return {"format": format, "files": files, "settings": dict(settings)}


def check_any(report: Report, format: str, noun: str = "demonstration") -> None:
    """Raises ConfigError where not one record could be read: it is another format, most likely."""
    if report.num_records and len(report.malformed) == report.num_records:
        where, why = report.malformed[0]
        raise ConfigError(f"none of {report.num_records} records is a {noun} of the format {format}: {where}: {why}")


def progress_on(console: Console) -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console, transient=True)


def print_report(report: Report, made: str, console: Console, stage: str, folder: Path, *, dry_run: bool = False) -> None:
    """Counts of what was added (`made` says of what), what was there, what is lost, unknown fields, and what was withheld or malformed."""
    verb = "would be added" if dry_run else "added"
    console.print(
        f"{report.num_records} records: {report.num_added} {verb} ({made}), {report.num_there} were there already, "
        f"{len(report.withheld)} withheld, {len(report.malformed)} malformed.",
        highlight=False,
    )
    manifest, rejected = ("", "") if dry_run else (MANIFEST, REJECTED)
    print_counts("not kept", "times", report.lost, console, kept_in=manifest)
    print_counts("for CT, not for SFT", "records", report.for_ct, console, kept_in=manifest)
    print_counts("unknown field", "records", report.unknown, console, kept_in=manifest)
    print_reasons("withheld", report.withheld, console, kept_in=rejected)
    print_reasons("malformed", report.malformed, console, kept_in=rejected)
    if not dry_run:
        aside = [heading for heading, records in (("withheld", report.withheld), ("malformed", report.malformed)) if records]
        kept = f"; what was {' or '.join(aside)} is kept in {folder / REJECTED}" if aside else ""
        console.print(escape(f"stored as the stage {stage}{kept}"), highlight=False, soft_wrap=True)
