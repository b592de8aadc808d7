"""The filter `contradiction` for answers that are not stored yet, by the macros of the filters' own query (quality_macros.sql)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

MACROS = Path(__file__).with_name("quality_macros.sql")


def contradictions_in(responses: Sequence[str]) -> list[str | None]:
    """In what the thought of each answer contradicts its action; None where it does not. The rule is the filter's."""
    with duckdb.connect(":memory:") as con:
        con.execute("set threads = 1")
        con.execute(MACROS.read_text())
        con.register("responses", pa.table({"i": range(len(responses)), "response": pa.array(responses, pa.string())}))
        found = con.execute("""
            with parts as (select i, string_split(unquoted(response, string_split(response, '"')), 'Action') as parts from responses),
            texts as (select i, stripped(parts[-1]) as action, thought_of(array_to_string(parts[:-2], 'Action')) as thought from parts)
            select contradiction(thought, indices(thought), action, indices(action)) from texts order by i""").fetchall()
    return [row[0] for row in found]
