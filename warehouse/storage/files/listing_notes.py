"""Which data files the newest version of a table has, as noted: to open a log of many commits takes longer than to read what it comes to.
The notes are of one head of the table's chain; where a commit has come since, they are made again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields

from deltalake import DeltaTable

from warehouse.core.home import Home
from warehouse.storage.catalogue import TABLES
from warehouse.storage.files.notes import notes_folder, read_notes, write_notes
from warehouse.storage.partitions import DataFile

FOLDER = "files"
_NOTED = [field.name for field in fields(DataFile)]


def files_of(delta: DeltaTable, table: str) -> list[DataFile]:
    """In the order of their names."""
    added = delta.get_add_actions(flatten=True)
    names = ("path", "num_records", "modification_time", *(f"partition.{name}" for name in TABLES[table].partition_by))
    rows = zip(*(added.column(name).to_pylist() for name in names), strict=True)
    files = [
        DataFile(path=path, num_rows=num, added_ms=added_ms, iteration=at[0] if at else "", stage=at[1] if at else "")
        for path, num, added_ms, *at in rows
    ]
    return sorted(files, key=lambda file: file.path)


def noted_files(home: Home, table: str, link: str) -> list[DataFile] | None:
    """None where there are no notes of this link of the chain, or they are another release's and say something else of a file."""
    content = read_notes(notes_folder(home, FOLDER) / f"{table}.notes")
    if content is None or (noted := json.loads(content))["link"] != link or noted.get("fields") != _NOTED:
        return None
    return [DataFile(**dict(zip(_NOTED, values, strict=True))) for values in noted["files"]]


def note_files(home: Home, table: str, link: str, files: Sequence[DataFile]) -> None:
    noted = {"link": link, "fields": _NOTED, "files": [[getattr(file, name) for name in _NOTED] for file in files]}
    write_notes(notes_folder(home, FOLDER) / f"{table}.notes", json.dumps(noted).encode())
