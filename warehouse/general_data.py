"""General chat and reasoning data, from a file into D_CT: what keeps a policy from forgetting all but interfaces.

A file holds conversations: JSON lines, or Parquet, with `messages` (role, content) or ShareGPT's `conversations` (from, value) in each row.
They become samples of origin `general`, which CT and SFT draw from as they do from tutorials; how much of an epoch they make is the
mixture's business (warehouse/mixing.py), which also leaves out those that give away an instance that is evaluated on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from warehouse.chat_formats import SHAREGPT_NAMES
from warehouse.errors import ConfigError
from warehouse.query import connect
from warehouse.samples import GENERAL, sample_row
from warehouse.stages import SEED_ITERATION
from warehouse.tables import Warehouse

_ROLES = {name: role for role, name in SHAREGPT_NAMES.items()} | {role: role for role in SHAREGPT_NAMES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of the conversations of a file."""

    num_read: int
    num_added: int
    num_duplicates: int
    num_without_answer: int


def import_general(warehouse: Warehouse, path: Path, *, name: str) -> Imported:
    """Make the conversations of `path` the general data called `name`, in place of what was imported under it before.

    A conversation that was imported already, under any name, is left out (letter case and white space do not count), and one that does not
    end with an answer of the assistant. Raises ConfigError for a file that cannot be read, naming the row.
    """
    stage = f"{GENERAL}_{name}"
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise ConfigError(f"{name!r} cannot name general data: use lower-case letters, digits and _")
    seen = _imported(warehouse, except_stage=stage)
    kept: list[list[dict[str, str]]] = []
    num_read = num_duplicates = num_without_answer = 0
    for messages in read_conversations(path):
        num_read += 1
        key = _normalised(messages)
        if len(messages) < 2 or messages[-1]["role"] != "assistant" or not messages[-1]["content"].strip():
            num_without_answer += 1
        elif key in seen:
            num_duplicates += 1
        else:
            seen.add(key)
            kept.append(messages)
    # Every token may be learned; a run's prompt_loss_weight says how much a prompt's count, 0 for SFT.
    rows = [
        sample_row("ct", origin=GENERAL, domain=GENERAL, messages=messages[:-1], response=messages[-1]["content"], prompt_loss=1.0)
        for messages in kept
    ]
    # General data are there before the first iteration, whenever they are imported.
    warehouse.replace_partition("ct_samples", rows, iteration=SEED_ITERATION, stage=stage)
    return Imported(num_read=num_read, num_added=len(kept), num_duplicates=num_duplicates, num_without_answer=num_without_answer)


def read_conversations(path: Path) -> Iterator[list[dict[str, str]]]:
    """The messages (role, content) of each row of a file, which is Parquet by its suffix, else JSON lines."""
    for number, row in enumerate(_rows(path), start=1):
        try:
            if "messages" in row:
                messages = [(message["role"], message["content"]) for message in row["messages"]]
            else:
                messages = [(turn["from"], turn["value"]) for turn in row["conversations"]]
            yield [{"role": _ROLES[role], "content": _text(content)} for role, content in messages]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"row {number} of {path} is not a conversation ({type(error).__name__}: {error}): give `messages` with role "
                f"({', '.join(SHAREGPT_NAMES)}) and content, or `conversations` with from and value"
            ) from error


def _rows(path: Path) -> Iterator[Any]:
    try:
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=1024):
                    yield from batch.to_pylist()
        else:
            with path.open(encoding="utf-8") as lines:
                yield from (json.loads(line) for line in lines if line.strip())
    except (OSError, ValueError) as error:  # pyarrow's errors and JSON's are among them
        raise ConfigError(f"{path} cannot be read as {'Parquet' if path.suffix == '.parquet' else 'JSON lines'}: {error}") from error


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}, only text is taken")
    return content


def _imported(warehouse: Warehouse, *, except_stage: str) -> set[str]:
    query = f"select messages from ct_samples where origin = '{GENERAL}' and stage <> $stage"
    rows = connect(warehouse).sql(query, params={"stage": except_stage}).to_arrow_table().to_pylist()
    return {_normalised(row["messages"]) for row in rows}


def _normalised(messages: Sequence[Any]) -> str:
    return "\n".join(f"{message['role']}: {' '.join(message['content'].casefold().split())}" for message in messages)
