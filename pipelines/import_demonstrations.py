"""What `flywheel import demonstrations` does: records of files into the warehouse, chunk by chunk, with a terminal in front.

A chunk's rows are committed table by table, its episodes last. What is stored already is not stored again, whichever table a killed import
had come to, so importing anew goes on where that one was and ends with the same rows. Beside them, under FLYWHEEL_HOME/imports/<name>, lie
what was withheld or malformed, word for word, and where each episode or sample came from.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from agent.grammars.registry import grammar_named
from pipelines.import_agentnet import agentnet_entries
from pipelines.import_mind2web import mind2web_entries
from pipelines.import_rows import DemonstrationSettings, RowMaker, Rows
from pipelines.import_screening import Screening
from pipelines.import_sharegpt import chat_entries
from pipelines.import_trajectories import Demonstration, Entry, EntryReader, Pictures
from sandbox.imported.mapping import BadRecord
from warehouse.errors import ConfigError
from warehouse.home import Home, atomic_write
from warehouse.identity import file_digest
from warehouse.locks import FileLock
from warehouse.stages import SEED_ITERATION
from warehouse.tables import Warehouse

DEMONSTRATION_FORMATS = ("agentnet", "mind2web", "sharegpt")
ROWS_SHOWN = 20
MANIFEST = "import.json"
CHUNK_RECORDS = 64
CHUNK_BYTES = 64 << 20
KEYS: Mapping[str, str] = {
    "tasks": "task_id", "steps": "episode_id", "verdicts": "episode_id", "sft_samples": "sample_id", "ct_samples": "sample_id",
    "episodes": "episode_id",
}  # fmt: skip
"""In the order of their commits; the column by which a row is known to be stored."""


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
    lost: Counter[str] = field(default_factory=Counter)


class Store:
    """Commits rows to one stage of the warehouse, each once."""

    def __init__(self, warehouse: Warehouse, stage: str) -> None:
        self._warehouse, self._stage = warehouse, stage
        self._known = {table: self._stored(table, key) for table, key in KEYS.items()}
        self._taken: set[str] = set()
        self._waiting = Rows()
        self._num_waiting = 0

    def _stored(self, table: str, key: str) -> set[str]:
        """Keys in the whole table: what was imported under another name is there as well."""
        if table == "tasks":
            found = self._warehouse.read(table, iteration=SEED_ITERATION, stage=self._stage, columns=(key,))
        else:
            found = self._warehouse.read(table, columns=(key,))
        return set(pc.unique(found.column(key)).to_pylist()) if found.num_rows else set()

    def has(self, identity: str) -> bool:
        """Whether this episode or sample is stored, or waits for its commit."""
        return identity in self._taken or any(identity in self._known[table] for table in ("episodes", "sft_samples", "ct_samples"))

    def take(self, identity: str) -> None:
        """From now on it is there."""
        self._taken.add(identity)

    def clear(self) -> None:
        """Drop what this stage holds; screenshots stay."""
        for table in reversed(list(KEYS)):
            self._warehouse.replace_partition(table, [], iteration=SEED_ITERATION, stage=self._stage)
        self._known = {table: self._stored(table, key) for table, key in KEYS.items()}

    def add(self, rows: Rows) -> None:
        for table, more in rows.of.items():
            self._waiting.add(table, *more)
        self._num_waiting += 1
        if self._num_waiting >= CHUNK_RECORDS or self._waiting.num_bytes >= CHUNK_BYTES:
            self.commit()

    def commit(self) -> None:
        waiting, self._waiting, self._num_waiting = self._waiting, Rows(), 0
        if shots := {row["screenshot_id"]: row for row in waiting.of.get("screenshots", ())}:
            self._warehouse.add_screenshots(list(shots.values()), iteration=SEED_ITERATION, stage=self._stage)
        for table, key in KEYS.items():
            fresh = [row for row in waiting.of.get(table, ()) if row[key] not in self._known[table]]
            if key in ("task_id", "sample_id"):
                fresh = list({row[key]: row for row in fresh}.values())
            if fresh:
                self._warehouse.append_partition(table, fresh, iteration=SEED_ITERATION, stage=self._stage)
                self._known[table].update(row[key] for row in fresh)


def import_demonstration_files(
    home: Home, format: str, paths: Sequence[Path], settings: DemonstrationSettings, console: Console, *, name: str | None,
    images: Sequence[Path], dry_run: bool, replace: bool = False,
) -> Report:  # fmt: skip
    """Import, and say what became of every record. Raises ConfigError for a format, file or grammar that is none."""
    chosen = _name(name or re.sub(r"[^a-z0-9_]+", "_", paths[0].stem.lower()).strip("_"))
    read, maker, screening = _reader(format, settings), RowMaker(format, settings), Screening(settings)
    for path in paths:
        if not path.is_file():
            raise ConfigError(f"there is no file {path}")
    report = Report()
    folder = home.root / "imports" / chosen
    with FileLock(home.locks / f"import-{chosen}.lock"):
        store = Store(Warehouse(home), f"imported_{chosen}")
        manifest = {} if dry_run else _manifest(format, paths, settings)
        _check_settings(folder, manifest, chosen, replace=replace or dry_run)
        if replace and not dry_run:
            store.clear()
        kept = _Kept(folder, manifest)
        if not dry_run:
            kept.begin()
        with _progress(console) as progress:
            for path in paths:
                bar = progress.add_task(escape(path.name), total=path.stat().st_size)
                pictures = Pictures([*images, path.parent])
                for entry in read(path, pictures, lambda done, bar=bar: progress.update(bar, completed=done)):  # type: ignore[misc]
                    _take(entry, maker, screening, store, report, kept, dry_run=dry_run)
        if not dry_run:
            store.commit()
            kept.write()
    _tell(report, console, chosen, folder, dry_run=dry_run)
    return report


def check_any(report: Report, format: str) -> None:
    """Raises ConfigError where not one record could be read: it is another format, most likely."""
    if report.num_records and len(report.malformed) == report.num_records:
        where, why = report.malformed[0]
        raise ConfigError(f"none of {report.num_records} records is a demonstration of the format {format}: {where}: {why}")


def demonstration_settings(**values: Any) -> DemonstrationSettings:
    """Raises ConfigError that names what is wrong."""
    try:
        return DemonstrationSettings.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(f"--{'-'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())) from None


def _name(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", name):
        raise ConfigError(f"{name!r} cannot name an import: use lower-case letters, digits and _, beginning with a letter; give --name")
    return name


def _check_settings(folder: Path, manifest: Mapping[str, Any], name: str, *, replace: bool) -> None:
    """Raises ConfigError where the import of this name was made in another way: its samples would be of two kinds."""
    if replace or not (folder / MANIFEST).is_file():
        return
    before = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if other := [key for key in ("format", "settings") if before.get(key) != manifest[key]]:
        raise ConfigError(
            f"{name} was imported with another {' and other '.join(other)} ({before.get('format')}, {before.get('settings')}): give the "
            "same, another --name, or --replace"
        )


def _reader(format: str, settings: DemonstrationSettings) -> EntryReader:
    if settings.answers is not None and format != "sharegpt":
        raise ConfigError(f"--answers says how chats are read: it goes with sharegpt, not with {format}")
    readers: Mapping[str, EntryReader] = {
        "agentnet": agentnet_entries, "mind2web": mind2web_entries,
        "sharegpt": chat_entries(None if settings.answers is None else grammar_named(settings.answers)),
    }  # fmt: skip
    if format not in readers:
        raise ConfigError(f"no format of demonstrations {format!r}: the formats are {', '.join(DEMONSTRATION_FORMATS)}")
    return readers[format]


def _take(
    entry: Entry, maker: RowMaker, screening: Screening, store: Store, report: Report, kept: _Kept, *, dry_run: bool
) -> None:
    """One record: its rows into the store, unless they are there or withheld."""
    report.num_records += 1
    report.unknown.update(set(entry.unknown))
    if entry.made is None:
        _reject(entry, entry.why_not, report.malformed, kept)
        return
    try:
        if isinstance(entry.made, Demonstration):
            identity = maker.request(entry.made, entry.digest).episode_id
            rows = None if store.has(identity) else maker.of_demonstration(entry.made, entry)
            report.lost.update(entry.made.lost)
        else:
            made = maker.of_chat(entry.made)
            identity = next(rows[0]["sample_id"] for table, rows in made.of.items() if table.endswith("_samples"))
            rows = None if store.has(identity) else made
    except BadRecord as error:
        _reject(entry, str(error), report.malformed, kept)
        return
    if rows is not None and (reason := screening.reason(rows)) is not None:
        _reject(entry, reason, report.withheld, kept)
        return
    kept.came_from(entry, identity)
    if rows is None:
        report.num_there += 1
        return
    report.num_added += 1
    report.samples.update({table: len(more) for table, more in rows.of.items()})
    store.take(identity)
    if not dry_run:
        store.add(rows)


def _reject(entry: Entry, why: str, told: list[tuple[str, str]], kept: _Kept) -> None:
    told.append((entry.where, why))
    kept.reject(entry, why)


class _Kept:
    """What lies beside the tables: written whole at the end, and the same however often the import was begun."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self._folder, self._manifest = folder, manifest
        self._rejected: list[str] = []
        self._origins: list[str] = []

    def reject(self, entry: Entry, why: str) -> None:
        self._rejected.append(json.dumps({"where": entry.where, "why": why, "record": entry.text}, ensure_ascii=False) + "\n")

    def came_from(self, entry: Entry, identity: str) -> None:
        self._origins.append(json.dumps({"id": identity, "where": entry.where, "record": entry.digest}) + "\n")

    def begin(self) -> None:
        atomic_write(self._folder / MANIFEST, (json.dumps(self._manifest, indent=2, sort_keys=True) + "\n").encode())

    def write(self) -> None:
        atomic_write(self._folder / "origins.jsonl", "".join(self._origins).encode())
        atomic_write(self._folder / "rejected.jsonl", "".join(self._rejected).encode())


def _manifest(format: str, paths: Sequence[Path], settings: DemonstrationSettings) -> dict[str, Any]:
    files = [{"file": path.name, "sha256": file_digest(path)} for path in paths]
    return {"format": format, "files": files, "settings": settings.model_dump(mode="json")}


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console, transient=True
    )


def _tell(report: Report, console: Console, name: str, folder: Path, *, dry_run: bool) -> None:
    """Counts of what was added, what was there, what the actions could not say, unknown fields, and what was withheld or malformed."""
    verb = "would be added" if dry_run else "added"
    made = ", ".join(f"{report.samples[table]} {table}" for table in ("episodes", "steps", "sft_samples", "ct_samples"))
    console.print(
        f"{report.num_records} records: {report.num_added} {verb} ({made}), {report.num_there} were there already, "
        f"{len(report.withheld)} withheld, {len(report.malformed)} malformed.", highlight=False,
    )  # fmt: skip
    for heading, counts in (("left out by the actions", report.lost), ("unknown field", report.unknown)):
        if counts:
            table = Table(heading)
            table.add_column("records" if heading == "unknown field" else "times", justify="right")
            for what, num in counts.most_common(ROWS_SHOWN):
                table.add_row(escape(what), str(num))
            console.print(table)
    for heading, records in (("withheld", report.withheld), ("malformed", report.malformed)):
        if records:
            table = Table(heading, "why")
            for where, why in records[:ROWS_SHOWN]:
                table.add_row(escape(where), escape(why))
            console.print(table)
    if not dry_run:
        aside = [heading for heading, records in (("withheld", report.withheld), ("malformed", report.malformed)) if records]
        kept = f"; what was {' or '.join(aside)} is kept in {folder / 'rejected.jsonl'}" if aside else ""
        console.print(escape(f"stored as the stage imported_{name}{kept}"), highlight=False, soft_wrap=True)
