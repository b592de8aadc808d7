"""Samples and tables for other tools: TRL, LLaMA-Factory, ShareGPT readers, plain Parquet, and one self-contained DuckDB file.

An export is written aside and renamed into place, so a reader never sees half of one. Each folder holds `manifest.json`: what was exported,
from which table versions, and what could not be said in that format; and README.md, the dataset card (card.py). A DuckDB file has its card
as the table `dataset_card`. How a chat is laid out in each format is chat_formats.py's business.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import duckdb
import pyarrow.parquet as pq

from warehouse.core.disk import is_full_disk, storage_full
from warehouse.core.durable import sync
from warehouse.core.errors import ConfigError, UnknownId
from warehouse.datasets import card
from warehouse.datasets.card import About, Counts, filters_of, routes_of
from warehouse.datasets.chat_formats import CHAT_FORMATS, ChatFormat, has_loss_on_prompt
from warehouse.datasets.known_exports import Known, remember
from warehouse.datasets.provenance import Source, known_sources, with_sources
from warehouse.lineage.relations import LINEAGE_SQL
from warehouse.storage.catalogue import TABLES
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

FORMATS = (*CHAT_FORMATS, "parquet", "duckdb")
ALL_TABLES = "all"
MANIFEST = "manifest.json"
ROWS_PER_BATCH = 1024
_SAMPLES = """
    SELECT sample_id, {weight} AS weight, origin, domain, messages, episode_id, step_index, annotation_id, verdict, iteration, stage
    FROM {source} WHERE NOT withdrawn QUALIFY row_number() OVER (PARTITION BY sample_id ORDER BY iteration, stage) = 1"""
# Those with pictures first: readers of JSON take the type of a list from the first megabytes, and an empty list has none.
_ORDER = """
    ORDER BY len(list_filter(messages, lambda message: message.screenshot_id IS NOT NULL)) = 0, iteration, sample_id"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export wrote. `num_left_out` counts samples that the format cannot express; the manifest says why."""

    path: Path
    num_rows: int
    num_left_out: int = 0


def export(
    warehouse: Warehouse,
    output: Path,
    *,
    format: str = "trl",
    dataset: str = "sft",
    as_of: str | None = None,
    installed: Sequence[Source] = (),
) -> Exported:
    """Write an export to `output`: a folder, or for `duckdb` a file. An earlier export there is replaced, anything else is left alone.

    `dataset` is `sft` or `ct` (everything in D_SFT or D_CT), or a dataset id (one snapshot, with its weights); for `parquet` also `all`,
    every table; `duckdb` always holds every table. `installed`: sources of tasks that are installed, for licences that the home has not
    stored. Raises ConfigError for a format or place that is not allowed, UnknownId for a dataset
    that does not exist, StorageFull when the disk has no room (nothing is left behind).
    """
    if format not in FORMATS:
        raise ConfigError(f"no export format {format!r}: the formats are {', '.join(FORMATS)}")
    if dataset == ALL_TABLES and format in CHAT_FORMATS:
        raise ConfigError(f"format {format} holds samples, not tables: export sft, ct or a dataset id, or choose parquet or duckdb")
    _check_place(output, is_file=format == "duckdb")
    output.parent.mkdir(parents=True, exist_ok=True)
    aside = output.parent / f".{output.name}.{os.getpid()}.tmp"
    try:
        if format == "duckdb":
            result = _write_duckdb(warehouse, aside, as_of, installed)
        else:
            aside.mkdir()
            result = _write_folder(warehouse, aside, format, dataset, as_of, installed)
        # before it is there: one that nobody knows of would keep what is forgotten
        remember(warehouse.home, Known(path=str(output.absolute()), format=format, dataset=dataset, as_of=as_of))
        _swap(aside, output)
    except (OSError, duckdb.Error) as error:
        if is_full_disk(error):
            raise storage_full(f"the export {output}", output.parent, error, then="export again; nothing was left there") from error
        raise
    finally:
        _remove(aside)
    return Exported(path=output, num_rows=result.num_rows, num_left_out=result.num_left_out)


def _check_place(output: Path, *, is_file: bool) -> None:
    if is_file:
        if output.is_dir():
            raise ConfigError(f"{output} is a folder: name a file for the DuckDB export, e.g. {output / 'flywheel.duckdb'}")
        if output.exists() and not _is_duckdb(output):
            raise ConfigError(f"{output} exists and is not a DuckDB file: name another")
    elif output.exists() and not output.is_dir():
        raise ConfigError(f"{output} is a file: name a folder for this export")
    elif output.exists() and any(output.iterdir()) and not (output / MANIFEST).exists():
        raise ConfigError(f"{output} holds other things than an export: name another folder, or empty it")


def _is_duckdb(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16)[8:12] == b"DUCK"


def _swap(aside: Path, output: Path) -> None:
    """Put the finished export in place of an earlier one."""
    old = output.parent / f".{output.name}.{os.getpid()}.old"
    if output.is_dir():
        output.rename(old)
    aside.replace(output)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _write_folder(
    warehouse: Warehouse, folder: Path, format: str, dataset: str, as_of: str | None, installed: Sequence[Source]
) -> Exported:
    notes: dict[str, Any] = {}
    sources, counts, num_withdrawn = known_sources(warehouse, installed), Counts(), 0
    with connect(warehouse, as_of=as_of, sealed=False) as con:
        if dataset == ALL_TABLES:
            num_rows = sum(_write_parquet(con.sql(f"FROM {table}"), folder / f"{table}.parquet") for table in TABLES)
            result, file_name = Exported(path=folder, num_rows=num_rows), "*_samples.parquet"
            counts = _counted(con, _all_samples(con), sources)
        else:
            samples = con.sql(_sample_query(con, dataset, sources))
            if format == "parquet":
                file_name = "samples.parquet"
                result = Exported(path=folder, num_rows=_write_parquet(samples, folder / file_name, counts))
            else:
                file_name = CHAT_FORMATS[format].file_name
                result, notes = _write_chats(con, samples, folder, dataset, CHAT_FORMATS[format], counts)
            members = con.execute("SELECT count(DISTINCT sample_id) FROM datasets WHERE dataset_id = ?", [dataset]).fetchall()[0][0]
            if members:
                num_withdrawn = notes["num_withdrawn_since"] = members - result.num_rows - result.num_left_out
        about = About(
            dataset=dataset,
            format=format,
            as_of=as_of,
            file_name=file_name,
            has_images=bool(notes.get("num_images")),
            note=notes.get("note", ""),
            num_left_out=result.num_left_out,
            num_withdrawn=num_withdrawn,
            filters=filters_of(con),
            routes=routes_of(con),
        )
    manifest = {
        "made_by": "flywheel export",
        "format": format,
        "dataset": dataset,
        "as_of": as_of,
        "num_rows": result.num_rows,
        "num_left_out": result.num_left_out,
        "licences": counts.licences,
        "table_versions": warehouse.versions(as_of),
        **notes,
    }
    _write_text(folder / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    _write_text(folder / card.FILE, card.card(about, counts, sources))
    return result


def _all_samples(con: duckdb.DuckDBPyConnection) -> str:
    """SQL of the samples of every table, each once, without the messages."""
    kinds = (f"SELECT * EXCLUDE (messages) FROM {kind}_samples" for kind in ("ct", "sft", "orm"))
    unique = "QUALIFY row_number() OVER (PARTITION BY sample_id ORDER BY iteration, stage) = 1"
    return f"SELECT * FROM ({' UNION ALL BY NAME '.join(kinds)}) WHERE NOT withdrawn {unique}"


def _counted(con: duckdb.DuckDBPyConnection, samples: str, sources: Mapping[str, Source]) -> Counts:
    counts = Counts()
    for rows in _batches(con.sql(f"FROM {with_sources(con, samples, sources)}")):
        for row in rows:
            counts.add(row)
    return counts


def _sample_query(con: duckdb.DuckDBPyConnection, dataset: str, sources: Mapping[str, Source]) -> str:
    columns = "* EXCLUDE (stage, licence_of)"
    return f"SELECT {columns} FROM {with_sources(con, _chosen(con, dataset), sources)} {_ORDER}"


def _chosen(con: duckdb.DuckDBPyConnection, dataset: str) -> str:
    if dataset in ("sft", "ct"):
        return _SAMPLES.format(weight="1.0::DOUBLE", source=f"{dataset}_samples")
    kinds = con.execute("SELECT DISTINCT kind FROM datasets WHERE dataset_id = ? ORDER BY kind", [dataset]).fetchall()
    if not kinds:
        known = con.execute("SELECT DISTINCT dataset_id FROM datasets ORDER BY max(iteration) OVER (PARTITION BY dataset_id) DESC LIMIT 6")
        names = ", ".join(row[0] for row in known.fetchall()) or "none yet"
        raise UnknownId(f"no dataset {dataset!r}: sft and ct are the whole sets, and the newest snapshots are {names}")
    members = "(SELECT DISTINCT sample_id, weight FROM datasets WHERE dataset_id = '{}')".format(dataset.replace("'", "''"))
    samples = " UNION ALL BY NAME ".join(f"FROM {kind}_samples" for (kind,) in kinds)
    return _SAMPLES.format(weight="weight", source=f"({samples}) JOIN {members} USING (sample_id)")


def _batches(relation: duckdb.DuckDBPyRelation) -> Iterator[list[dict[str, Any]]]:
    for batch in relation.to_arrow_reader(ROWS_PER_BATCH):
        yield batch.to_pylist()


def _write_parquet(relation: duckdb.DuckDBPyRelation, path: Path, counts: Counts | None = None) -> int:
    num_rows = 0
    reader = relation.to_arrow_reader(ROWS_PER_BATCH)
    with pq.ParquetWriter(path, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            num_rows += batch.num_rows
            if counts is not None:
                for row in batch.drop_columns(["messages"]).to_pylist():
                    counts.add(row)
    return num_rows


def _write_chats(
    con: duckdb.DuckDBPyConnection, samples: duckdb.DuckDBPyRelation, folder: Path, dataset: str, chat: ChatFormat, counts: Counts
) -> tuple[Exported, dict[str, Any]]:
    """Two readings: one for what holds for the whole file (pictures, loss on prompts), one to write the rows."""
    num_images, has_prompt_loss = 0, False
    for rows in _batches(samples):
        num_images += sum(message["screenshot_id"] is not None for row in rows for message in row["messages"])
        has_prompt_loss = has_prompt_loss or any(has_loss_on_prompt(row["messages"]) for row in rows)
    images = _write_images(con, samples, folder / "images") if num_images else {}
    layout = chat.layout(has_images=bool(num_images), has_prompt_loss=has_prompt_loss)
    num_rows = num_left_out = 0
    with (folder / chat.file_name).open("w", encoding="utf-8") as file:
        write = _json_lines(file) if chat.file_name.endswith(".jsonl") else _json_array(file)
        for rows in _batches(samples):
            for row in rows:
                record = layout(row, images)
                num_left_out += record is None
                num_rows += record is not None
                if record is not None:
                    write(record)
                    counts.add(row)
        write(None)
    sync(folder / chat.file_name)
    for name, text in chat.side_files(dataset, bool(num_images)).items():
        _write_text(folder / name, text)
    notes = {"note": chat.note(has_prompt_loss), "num_images": len(images)}
    return Exported(path=folder, num_rows=num_rows, num_left_out=num_left_out), notes


def _json_lines(file: TextIO) -> Callable[[dict[str, Any] | None], None]:
    def write(record: dict[str, Any] | None) -> None:
        if record is not None:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

    return write


def _json_array(file: TextIO) -> Callable[[dict[str, Any] | None], None]:
    """Rows of one JSON array, written as they come; None ends it."""
    is_first = True

    def write(record: dict[str, Any] | None) -> None:
        nonlocal is_first
        if record is None:
            file.write("[]\n" if is_first else "\n]\n")
            return
        file.write(("[\n" if is_first else ",\n") + json.dumps(record, ensure_ascii=False))
        is_first = False

    return write


def _write_images(con: duckdb.DuckDBPyConnection, samples: duckdb.DuckDBPyRelation, folder: Path) -> dict[str, str]:
    """Write every screenshot that a sample shows; returns its path inside the export by id. Raises UnknownId for an absent one."""
    folder.mkdir()
    con.register("samples_to_export", samples.project("messages").to_arrow_table())
    shown = con.sql(
        "SELECT screenshot_id, format, data FROM screenshots WHERE screenshot_id IN "
        "(SELECT DISTINCT message.screenshot_id FROM (SELECT unnest(messages) AS message FROM samples_to_export))"
    )
    paths = {}
    for rows in _batches(shown):
        for row in rows:
            name = f"{row['screenshot_id']}.{'jpg' if row['format'] == 'jpeg' else row['format']}"
            (folder / name).write_bytes(row["data"])
            paths[row["screenshot_id"]] = f"images/{name}"
    absent = con.sql(
        "SELECT DISTINCT message.screenshot_id FROM (SELECT unnest(messages) AS message FROM samples_to_export) "
        "WHERE message.screenshot_id NOT IN (SELECT screenshot_id FROM screenshots) ORDER BY ALL"
    ).fetchall()
    if absent:
        raise UnknownId(f"{len(absent)} screenshots that samples show are not stored, the first is {absent[0][0]}: run their stage again")
    return paths


def _write_duckdb(warehouse: Warehouse, path: Path, as_of: str | None, installed: Sequence[Source]) -> Exported:
    """Every table, with the catalogue's words as comments, the lineage views, and the card."""
    num_rows, sources = 0, known_sources(warehouse, installed)
    with connect(warehouse, as_of=as_of, sealed=False) as con:
        # nosemgrep: sql-with-a-value-in-quotes # it takes no parameter
        con.execute(f"ATTACH '{str(path).replace(chr(39), chr(39) * 2)}' AS export_file")
        for table in TABLES:
            con.execute(f"CREATE TABLE export_file.{table} AS FROM {table}")
            num_rows += con.execute(f"SELECT count(*) FROM export_file.{table}").fetchall()[0][0]
        about = About(
            dataset=ALL_TABLES,
            format="duckdb",
            as_of=as_of,
            file_name=path.name,
            has_images=False,
            note="",
            num_left_out=0,
            num_withdrawn=0,
            filters=filters_of(con),
            routes=routes_of(con),
        )
        text = card.card(about, _counted(con, _all_samples(con), sources), sources)
        con.execute("CREATE TABLE export_file.dataset_card AS SELECT $text::VARCHAR AS card", {"text": text})
        con.execute("DETACH export_file")
    with duckdb.connect(str(path)) as con:
        for statement in LINEAGE_SQL:
            con.execute(statement)
        for name, spec in TABLES.items():
            # nosemgrep: sql-with-a-value-in-quotes # ours
            con.execute(f"COMMENT ON TABLE {name} IS '{_quoted(spec.meaning)}'")
            for column in spec.columns:
                # nosemgrep: sql-with-a-value-in-quotes # ours
                con.execute(f"COMMENT ON COLUMN {name}.{column.name} IS '{_quoted(column.meaning)}'")
        con.execute("CHECKPOINT")
    return Exported(path=path, num_rows=num_rows)


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
    sync(path)
