"""What `flywheel import general` does: conversations of a file, chat and reasoning data, into D_CT, with a terminal in front.

A record has `messages` (role, content) or ShareGPT's `conversations` (from, value), of texts alone: chats that show pictures are
demonstrations. How they are stored is warehouse/datasets/general_data.py's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from pipelines.importing.licences import add_licence
from pipelines.importing.reading import OnBytes, raw_records
from pipelines.importing.report import Kept, Report, check_any, manifest_of, print_report, progress_on
from pipelines.importing.rows import Rows, ScreeningSettings
from pipelines.importing.screening import Screening
from pipelines.importing.sharegpt import turn_of
from pipelines.importing.trajectories import Chat, Entry
from sandbox.importing.fields import BadRecord, Fields
from warehouse.core.errors import ConfigError
from warehouse.core.locks import FileLock
from warehouse.datasets.general_data import GeneralData, general_row, stage_of
from warehouse.storage.tables import Warehouse

ASIDE = ("id",)
LABELS = ("origin", "domain", "verdict")
"""Of an export of ours: what is imported as general data is of no task, so they mean nothing any more."""


def import_general_data(
    warehouse: Warehouse,
    path: Path,
    name: str | None,
    console: Console,
    settings: ScreeningSettings | None = None,
    licence: str | None = None,
) -> Report:
    """Make the conversations of `path` the general data called `name` (the file's name is the default), in place of what was imported under
    it before, and say what became of every record. Raises ConfigError for a file that cannot be read or holds no conversations."""
    chosen = name or re.sub(r"[^a-z0-9_]+", "_", path.stem.lower())
    stage, asked, report = stage_of(chosen), settings or ScreeningSettings(), Report()
    screening = Screening(asked)
    folder = warehouse.home.root / "imports" / stage
    if not path.is_file():
        raise ConfigError(f"{path} cannot be read: there is no such file")
    with FileLock(warehouse.home.locks / f"import-{stage}.lock"):  # as of demonstrations: one import under a name at a time
        kept = Kept(folder, manifest_of("general", [path], asked.model_dump(mode="json")))
        data = GeneralData(warehouse, chosen)
        with progress_on(console) as progress:
            bar = progress.add_task(escape(path.name), total=path.stat().st_size)
            for entry in general_entries(path, lambda done: progress.update(bar, completed=done)):
                _take(entry, screening, data, report, kept)
        if not report.num_records:
            raise ConfigError(f"{path} holds no conversations; what was imported as {chosen} before stays as it is")
        check_any(report, "general", "conversation")
        kept.begin()
        add_licence(warehouse, stage, "general", licence)
        data.commit()
        kept.write(report)
    print_report(report, f"{report.num_added} ct_samples", console, stage, folder)
    console.print("A mixture draws them by `general: {}` and `general_share` (docs/supervised.md).", highlight=False)
    return report


def general_entries(path: Path, on_bytes: OnBytes) -> Iterator[Entry]:
    """Every record, as a chat whose tokens may all be learned where it has no weights: a run's prompt_loss_weight says how much a prompt's
    count, 0 for SFT. Raises ConfigError."""
    for raw in raw_records(path, on_bytes):
        entry = Entry(where=raw.where, digest=raw.digest, text=raw.text, why_not=raw.error)
        if not raw.error:
            try:
                entry.made = _chat(raw.value, entry)
            except BadRecord as error:
                entry.why_not = str(error)
        yield entry


def _chat(record: Any, entry: Entry) -> Chat:
    fields = Fields(record)
    listed = "messages" if fields.any("messages") is not None else "conversations"
    turns = [turn_of(turn, listed, entry.unknown) for turn in fields.take(listed, list)]
    system = fields.take("system", str, "")
    if system.strip():
        turns.insert(0, ("system", system, None))
    shown = fields.any("images", "image")
    entry.lost += [f"`{label}`" for label in LABELS if fields.any(label) is not None]
    fields.keep_aside(*ASIDE)
    entry.unknown += fields.unknown()
    if shown not in (None, [], ""):
        raise BadRecord("it shows pictures, and general data are texts: `flywheel import demonstrations sharegpt` takes it")
    if len(turns) < 2 or turns[-1][0] != "assistant" or not turns[-1][1].strip():
        raise BadRecord("it does not end with an answer")
    messages = [
        {"role": role, "content": text, "screenshot_id": None, "loss": 1.0 if weight is None else weight} for role, text, weight in turns
    ]
    if not any(message["loss"] for message in messages):
        raise BadRecord("nothing in it is to be learned: all its weights are 0")
    return Chat(messages=messages, pictures=list)


def _take(entry: Entry, screening: Screening, data: GeneralData, report: Report, kept: Kept) -> None:
    report.num_records += 1
    report.unknown.update(set(entry.unknown))
    if not isinstance(entry.made, Chat):
        report.malformed.append((entry.where, entry.why_not))
        kept.reject(entry, entry.why_not)
        return
    row = general_row(entry.made.messages)
    report.lost.update(entry.lost)
    if (reason := screening.reason(Rows(of={"ct_samples": [row]}))) is not None:
        report.withheld.append((entry.where, reason))
        kept.reject(entry, reason)
        return
    kept.came_from(entry, row["sample_id"], dict.fromkeys(entry.lost, 1))
    if data.add(row):
        report.num_added += 1
    else:
        report.num_there += 1
