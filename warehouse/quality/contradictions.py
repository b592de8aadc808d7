"""The filter `contradiction` for answers that are not stored yet, by the macros of the filters' own query (macros.sql)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

MACROS = Path(__file__).with_name("macros.sql")


class Said(NamedTuple):
    """An answer, and what its grammar reads in it: the thought, and the kinds of its actions, one or several. Of the compact grammar the
    answer is enough."""

    response: str
    thought: str | None = None
    kinds: tuple[str, ...] = ()


def contradictions_in(answers: Sequence[Said]) -> list[str | None]:
    """In what the thought of each answer contradicts its action; None where it does not. The rule is the filter's."""
    columns = {
        "i": range(len(answers)),
        "response": pa.array([each.response for each in answers], pa.string()),
        "thought": pa.array([each.thought for each in answers], pa.string()),
        "kinds": pa.array([list(each.kinds) for each in answers], pa.list_(pa.string())),
    }
    with duckdb.connect(":memory:") as con:
        con.execute("set threads = 1")
        con.execute(MACROS.read_text())
        con.register("answers", pa.table(columns))
        found = con.execute("""
            with parts as (select *, string_split(unquoted(response, string_split(response, '"')), 'Action') as parts from answers),
            texts as (select *, stripped(parts[-1]) as act, thought_of(array_to_string(parts[:-2], 'Action')) as written from parts),
            read as (select *, contradiction(written, indices(written), act, indices(act)) as contradicts from texts)
            select case when contradicts is not null or is_compact(response) then contradicts
                else contradiction_of_kinds(thought, kinds, kinds_named(thought, kinds)) end
            from read order by i""").fetchall()
    return [row[0] for row in found]
