"""What `flywheel import demonstrations` does: records of files into the warehouse, chunk by chunk, with a terminal in front.

A chunk's rows are committed table by table, its episodes last. What is stored already is not stored again, whichever table a killed import
had come to, so importing again goes on where that one was and ends with the same rows. Beside them, under FLYWHEEL_HOME/imports/<name>, lie
what was withheld or malformed, word for word, and where each episode or sample came from.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from rich.console import Console
from rich.markup import escape

from agent.grammars.registry import grammar_named
from pipelines.importing.licences import add_licence
from pipelines.importing.outcomes import Outcomes, outcomes_of, with_outcome
from pipelines.importing.registry import importer_named
from pipelines.importing.report import MANIFEST, ORIGINS, Kept, Report, manifest_of, print_report, progress_on
from pipelines.importing.rows import DemonstrationSettings, Row, RowFactory, Rows
from pipelines.importing.screening import Screening
from pipelines.importing.trajectories import Demonstration, Entry, EntryReader, Importer, Pictures
from sandbox.importing.fields import BadRecord
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.core.locks import FileLock
from warehouse.core.stages import GENERAL_STAGE, IMPORTED_STAGE, MANUALS_STAGE, SEED_ITERATION
from warehouse.storage.tables import Warehouse

LOSS_UNKNOWN = "what its actions cannot say: it is stored, and cannot be read any more"
NOTHING_SAID = "--outcome says nothing of it"
CHUNK_RECORDS = 64
CHUNK_BYTES = 64 << 20
KEYS: Mapping[str, str] = {
    "tasks": "task_id",
    "steps": "episode_id",
    "verdicts": "episode_id",
    "sft_samples": "sample_id",
    "ct_samples": "sample_id",
    "episodes": "episode_id",
}
"""In the order of their commits; the column by which a row is known to be stored."""


class Store:
    """Commits rows to one stage of the warehouse, each once."""

    def __init__(self, warehouse: Warehouse, stage: str) -> None:
        self._warehouse, self._stage = warehouse, stage
        self._known = {table: self._stored(table, key) for table, key in KEYS.items()}
        self._verdicts = self._unfinished()
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

    def _unfinished(self) -> dict[str, Row]:
        """Verdicts of this stage whose episodes are not stored, by episode: a killed import had come no further."""
        found = self._warehouse.read("verdicts", iteration=SEED_ITERATION, stage=self._stage).to_pylist()
        return {row["episode_id"]: row for row in found if row["episode_id"] not in self._known["episodes"]}

    def verdict(self, episode_id: str) -> Row | None:
        """The verdict on an episode from before its import was killed: samples may be stored that follow it."""
        return self._verdicts.get(episode_id)

    def has(self, identity: str) -> bool:
        """Whether this episode or sample is stored, or waits for its commit."""
        return identity in self._taken or any(identity in self._known[table] for table in ("episodes", "sft_samples", "ct_samples"))

    def has_verdict(self, episode_id: str) -> bool:
        return episode_id in self._known["verdicts"]

    def take(self, identity: str) -> None:
        """From now on it is there."""
        self._taken.add(identity)

    def clear(self) -> None:
        """Drop what this stage holds; screenshots stay."""
        for table in reversed(list(KEYS)):
            self._warehouse.replace_partition(table, [], iteration=SEED_ITERATION, stage=self._stage)
        self._known = {table: self._stored(table, key) for table, key in KEYS.items()}
        self._verdicts = {}

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
    home: Home,
    format: str,
    paths: Sequence[Path],
    settings: DemonstrationSettings,
    console: Console,
    *,
    name: str | None,
    images: Sequence[Path],
    dry_run: bool,
    replace: bool = False,
    licence: str | None = None,
) -> Report:
    """Import, and say what became of every record. Raises ConfigError for a format, file or grammar that is none, and for files that cannot
    be read once the others are imported."""
    chosen = _name(name or re.sub(r"[^a-z0-9_]+", "_", paths[0].stem.lower()).strip("_"))
    importer = importer_named(format)
    format = importer.name
    read, row_factory, screening = _reader(importer, settings), RowFactory(importer, settings), Screening(settings)
    for path in paths:
        if not path.is_file():
            raise ConfigError(f"there is no file {path}")
    report, unreadable = Report(), list[str]()
    folder = home.root / "imports" / chosen
    with ExitStack() as stack:
        outcomes = None if settings.outcome is None else outcomes_of(settings.outcome, Warehouse(home), stack)
        stack.enter_context(
            FileLock(home.locks / f"import-{chosen}.lock")
        )  # of two imports under one name, the second goes on from the first
        store = Store(Warehouse(home), f"{IMPORTED_STAGE}{chosen}")
        chosen_settings = settings.model_dump(mode="json", exclude={"outcome"} if settings.outcome is None else None)
        manifest = {} if dry_run else manifest_of(format, paths, chosen_settings)
        _check_settings(folder, manifest, chosen, replace=replace or dry_run)
        if replace and not dry_run:
            store.clear()
            (folder / ORIGINS).unlink(missing_ok=True)
        kept = Kept(folder, manifest)
        if not dry_run:
            kept.begin()
            add_licence(Warehouse(home), f"{IMPORTED_STAGE}{chosen}", format, licence, importer.collection(paths))
        with progress_on(console) as progress:
            for path in paths:
                bar = progress.add_task(escape(path.name), total=path.stat().st_size)
                pictures = Pictures([*images, path.parent])
                try:
                    for entry in read(path, pictures, lambda done, bar=bar: progress.update(bar, completed=done)):  # type: ignore[misc]
                        _take(entry, row_factory, screening, store, report, kept, outcomes, dry_run=dry_run)
                except ConfigError as error:
                    unreadable.append(str(error))
        if not dry_run:
            store.commit()
            kept.write(report)
    made = ", ".join(f"{report.samples[table]} {table}" for table in ("episodes", "steps", "sft_samples", "ct_samples"))
    print_report(report, made, console, f"{IMPORTED_STAGE}{chosen}", folder, dry_run=dry_run)
    if unreadable:
        raise ConfigError("; ".join(unreadable))
    return report


def _name(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", name):
        raise ConfigError(f"{name!r} cannot name an import: use lower-case letters, digits and _, beginning with a letter; give --name")
    for begin, of in ((GENERAL_STAGE, "general data"), (MANUALS_STAGE, "manuals")):
        if name.startswith(begin):
            raise ConfigError(f"{name!r} cannot name demonstrations: {begin}… is the folder of {of}; give another --name")
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


def _reader(importer: Importer, settings: DemonstrationSettings) -> EntryReader:
    if settings.answers is None:
        return importer.entries
    if importer.answers is None:
        raise ConfigError(f"--answers says how chats are read: it goes with sharegpt and logs of models, not with {importer.name}")
    return importer.answers(grammar_named(settings.answers))


def _take(
    entry: Entry,
    row_factory: RowFactory,
    screening: Screening,
    store: Store,
    report: Report,
    kept: Kept,
    outcomes: Outcomes | None,
    *,
    dry_run: bool,
) -> None:
    """One record: its rows into the store, unless they are there or withheld."""
    report.num_records += 1
    report.unknown.update(set(entry.unknown))
    if entry.made is None:
        _reject(entry, entry.why_not, report.malformed, kept)
        return
    try:
        if isinstance(entry.made, Demonstration):
            identity, misaligned = row_factory.request(entry.made, entry.digest).episode_id, row_factory.misaligned(entry.made)
            if outcomes is not None and not store.has(identity):
                said = store.verdict(identity)
                ask = partial(outcomes, entry, identity, partial(_for_a_judge, entry.made, entry, row_factory, screening))
                entry.made = with_outcome(entry.made, ask if said is None else lambda: said)
            rows = None if store.has(identity) else row_factory.of_demonstration(entry.made, entry)
            lost = entry.made.lost if rows is not None else _lost(entry.made, kept.lost_before(entry.digest))
            report.for_ct.update([misaligned] if misaligned else [])
            is_said = store.has_verdict(identity) if rows is None else entry.made.completed is not None
            report.for_ct.update([NOTHING_SAID] if outcomes is not None and not is_said else [])
        else:
            made = row_factory.of_chat(entry.made)
            identity = next(rows[0]["sample_id"] for table, rows in made.of.items() if table.endswith("_samples"))
            rows, lost = None if store.has(identity) else made, Counter(entry.lost)
    except _Withheld as error:
        _reject(entry, str(error), report.withheld, kept)
        return
    except BadRecord as error:
        _reject(entry, str(error), report.malformed, kept)
        return
    report.lost.update(lost)
    if rows is not None and (reason := screening.reason(rows)) is not None:
        _reject(entry, reason, report.withheld, kept)
        return
    kept.came_from(entry, identity, lost)
    if rows is None:
        report.num_there += 1
        return
    report.num_added += 1
    report.samples.update({table: len(more) for table, more in rows.of.items()})
    store.take(identity)
    if not dry_run:
        store.add(rows)


class _Withheld(Exception):
    """Screening keeps a record from the judge as well, which may be at another company's address."""


def _for_a_judge(made: Demonstration, entry: Entry, row_factory: RowFactory, screening: Screening) -> Rows:
    """The rows as a judge may see them. Raises BadRecord and _Withheld."""
    rows = row_factory.of_demonstration(made, entry)
    if (reason := screening.reason(rows)) is not None:
        raise _Withheld(reason)
    return rows


def _lost(made: Demonstration, before: Counter[str] | None) -> Counter[str]:
    """What of a demonstration that is stored no row says: as it was said then, else looked for again."""
    if before is not None:
        return before
    try:
        made.load()
    except BadRecord:
        return Counter([LOSS_UNKNOWN])
    return made.lost


def _reject(entry: Entry, why: str, rejected: list[tuple[str, str]], kept: Kept) -> None:
    rejected.append((entry.where, why))
    kept.reject(entry, why)
