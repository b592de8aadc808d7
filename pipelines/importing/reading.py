"""Records of large files, one at a time: JSON lines as they come, a JSON document, Parquet in batches. What they are is their format's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sandbox.importing.reading import NotPlain, check, parse_json
from warehouse.core.errors import ConfigError

ROWS_PER_BATCH = 16
OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecord:
    """`value` None: the text is not JSON, for the reason in `error`."""

    where: str
    text: str
    value: Any
    error: str = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]


def raw_records(path: Path, on_bytes: OnBytes) -> Iterator[RawRecord]:
    """Every record of a file with its place in it. Raises ConfigError for a file that cannot be read as a whole."""
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path, on_bytes)
        elif path.suffix == ".json":
            yield from _document(path)
        else:
            yield from _lines(path, on_bytes)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    on_bytes(path.stat().st_size)


def _lines(path: Path, on_bytes: OnBytes) -> Iterator[RawRecord]:
    num_bytes = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            num_bytes += len(line)
            if line.strip():
                yield _parsed(f"{path.name}:{number}", line.decode("utf-8", "replace").rstrip("\n"))
            on_bytes(num_bytes)


def _parsed(where: str, text: str) -> RawRecord:
    try:
        return RawRecord(where=where, text=text, value=parse_json(text))
    except NotPlain as error:
        return RawRecord(where=where, text=text, value=None, error=str(error))


def _document(path: Path) -> Iterator[RawRecord]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a JSON document: {error}. JSON lines are read from a file called .jsonl") from error
    for number, value in enumerate(document if isinstance(document, list) else [document], start=1):
        where = f"{path.name}#{number}"
        try:
            check(value)
        except NotPlain as error:
            yield RawRecord(where=where, text=f"{where} {error}", value=None, error=str(error))
        else:
            yield RawRecord(where=where, text=json.dumps(value, ensure_ascii=False, sort_keys=True), value=value)


def _parquet(path: Path, on_bytes: OnBytes) -> Iterator[RawRecord]:
    """Bytes of a picture count by their hash: the text is what the record says."""
    number = 0
    with pq.ParquetFile(path) as file:
        num_rows = max(1, file.metadata.num_rows)
        for batch in file.iter_batches(batch_size=ROWS_PER_BATCH):
            for value in batch.to_pylist():
                number += 1
                text = json.dumps(value, ensure_ascii=False, sort_keys=True, default=_digest)
                yield RawRecord(where=f"{path.name}@{number}", text=text, value=value)
            on_bytes(path.stat().st_size * number // num_rows)


def _digest(value: Any) -> str:
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else str(value)
