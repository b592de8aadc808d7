"""The filter `contradiction` for answers that are not stored yet, by the macros of the filters' own query (macros.sql)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

MACROS = Path(__file__).with_name("macros.sql")


class Said(NamedTuple):
    """What a grammar reads in an answer: the thought, and the kinds of its actions, one or several."""

    thought: str | None
    kinds: tuple[str, ...]


def contradictions_in(answers: Sequence[Said]) -> list[str | None]:
    """In what the thought of each answer contradicts its action; None where it does not. The rule is the filter's."""
    columns = {
        "i": range(len(answers)),
        "said": pa.array([each.thought for each in answers], pa.string()),
        "kinds": pa.array([list(each.kinds) for each in answers], pa.list_(pa.string())),
    }
    with duckdb.connect(":memory:") as con:
        con.execute("set threads = 1")
        con.execute(MACROS.read_text())
        con.register("answers", pa.table(columns))
        found = con.execute("""
            with read as (select i, kinds, unquoted(said) as thought from answers)
            select case when is_comparable(thought, kinds) then contradiction(thought, kinds) end from read order by i""").fetchall()
    return [row[0] for row in found]
