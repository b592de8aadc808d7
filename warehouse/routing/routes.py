"""Routing: which finished episodes become SFT data, which CT data, and which are withheld. The rule itself is routes.sql, one query.

It reads the tables `episodes` and `verdicts` and nothing else, so history can be routed again under other rules without running
anything. What the routed episodes turn into is warehouse/routing/samples.py's business.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field

from warehouse.storage.catalogue import ROUTED_PURPOSES, TABLES

Effect = Literal["decide", "withhold", "demote"]

QUERY = Path(__file__).with_name("routes.sql")
ROUTES_SCHEMA = pa.schema([field for field in TABLES["routes"].schema if field.name not in TABLES["routes"].partition_by])
_RULES_SCHEMA = pa.schema([("judge", pa.string()), ("effect", pa.string()), ("threshold", pa.float64()), ("precedence", pa.int64())])


class Rule(BaseModel):
    """What one judge's word means for routing. What is left out is as DEFAULT_RULES has it; for a judge that they do not name, a verdict
    decides and a filter demotes, after those that are named."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    effect: Annotated[
        Effect | None, Field(description="decide: gives V(s); withhold: failing keeps the episode out; demote: failing means CT")
    ] = None
    threshold: Annotated[float | None, Field(ge=0, le=1, description="routes by this threshold instead of the stored one")] = None
    precedence: Annotated[int | None, Field(ge=0, description="among judges of one effect the lowest speaks first")] = None

    def over(self, other: Rule) -> Rule:
        """This rule, with what it leaves out taken from another one."""
        return other.model_copy(update=self.model_dump(exclude_none=True))


DEFAULT_RULES: dict[str, Rule] = {
    "human": Rule(effect="decide", precedence=0),
    "verifier": Rule(effect="decide", precedence=1),
    "judge": Rule(effect="decide", precedence=2),
    "orm": Rule(effect="decide", precedence=3),
    "contamination": Rule(effect="withhold", precedence=0),
    "leak": Rule(effect="withhold", precedence=1),
    "personal_data": Rule(effect="withhold", precedence=2),
    "duplicate": Rule(effect="withhold", precedence=3),
    "near_duplicate": Rule(effect="withhold", precedence=4),
    "evaluation_overlap": Rule(effect="withhold", precedence=5),
}
LAST = 100
"""Precedence of a judge that no rule names (routes.sql)."""


class RoutingConfig(BaseModel):
    """The rules by judge name, over DEFAULT_RULES."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: Annotated[dict[str, Rule], Field(description="changes to the default rules, by judge")] = Field(default_factory=dict)

    @property
    def effective_rules(self) -> dict[str, Rule]:
        return DEFAULT_RULES | {judge: rule.over(DEFAULT_RULES.get(judge, Rule())) for judge, rule in self.rules.items()}


def route(con: duckdb.DuckDBPyConnection, config: RoutingConfig | None = None, *, iteration: str | None = None) -> pa.Table:
    """Route the episodes of `iteration` (None: of every one) seen through a connection with the views `episodes` and `verdicts`.

    Returns rows of `routes` without their place, in the order of ids: one for each episode of a routed purpose, whatever became of it. The
    reason of what is trained on begins with `V=1` or `V=0`; of what is withheld, with the judge or the cause.
    """
    rules = (config or RoutingConfig()).effective_rules
    table = pa.Table.from_pylist([{"judge": judge, **rule.model_dump()} for judge, rule in sorted(rules.items())], schema=_RULES_SCHEMA)
    inputs = {"rules": table, "routed_purposes": pa.table({"purpose": list(ROUTED_PURPOSES)})}
    for name, view in inputs.items():
        con.register(name, view)
    try:
        routes = _routes(con, "from verdicts", iteration)
        twice = routes.filter(routes["is_judged_twice"])
        if twice.num_rows:
            con.register("judged_twice", twice)
            inputs["judged_twice"] = twice
            again = _routes(con, _NEWEST, iteration)
            again = again.filter(pc.is_in(again["episode_id"], twice["episode_id"]))
            routes = pa.concat_tables([routes.filter(pc.invert(routes["is_judged_twice"])), again]).sort_by("episode_id")
    finally:
        for name in inputs:
            con.unregister(name)
    return routes.select(ROUTES_SCHEMA.names).cast(ROUTES_SCHEMA)


_NEWEST = """
select * from verdicts semi join judged_twice using (episode_id)
qualify row_number() over (partition by episode_id, judge order by iteration desc, judge_version desc, stage desc, score, threshold) = 1
"""


def _routes(con: duckdb.DuckDBPyConnection, heard: str, iteration: str | None) -> pa.Table:
    con.execute(f"create or replace temp view heard as {heard}")
    return con.sql(QUERY.read_text(), params={"iteration": iteration}).to_arrow_table()


def cause_label(cause: str, withheld_by: str | None, demoted_by: str | None) -> str:
    """What decided, to count by: `solved`, `not solved`, or the filter or cause that decided otherwise."""
    return withheld_by or demoted_by or cause.replace("_", " ")
