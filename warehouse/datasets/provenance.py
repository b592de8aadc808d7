"""Where each sample comes from and under which licence: the table `sources`, and SQL that finds each sample's row in it.

A sample's source is the import that it came with, else the recording of a person's own work, else the source of the task that its episode
played, else this project, whose generators wrote it. Samples that an annotator decided on are under what annotators agreed to as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import duckdb

from warehouse.core.stages import IMPORT_STAGES, SEED_ITERATION
from warehouse.storage.tables import Warehouse

TABLE = "sources"
UNKNOWN = "unknown"
OWN, OWN_LICENCE = "flywheel", "Apache-2.0"
PEOPLE, RECORDINGS = "annotators", "recordings"
"""Names of what people gave: their decisions on episodes, and recordings of their own work."""
Kind = Literal["tasks", "import", "people", "own"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """As a row of `sources` (the catalogue has the meanings)."""

    source: str
    kind: Kind
    licence: str = UNKNOWN
    origin: str = ""
    stated_by: str = ""


OWN_SOURCE = Source(source=OWN, kind="own", licence=OWN_LICENCE, origin="written by generators of this project", stated_by="flywheel")


def add_sources(warehouse: Warehouse, sources: Iterable[Source], *, stage: str, iteration: str = SEED_ITERATION) -> int:
    """Make these what the stage says of sources; returns the table's version."""
    rows = [
        {"source": one.source, "kind": one.kind, "licence": one.licence, "origin": one.origin, "stated_by": one.stated_by}
        for one in sources
    ]
    return warehouse.replace_partition(TABLE, rows, iteration=iteration, stage=stage)


def known_sources(warehouse: Warehouse, more: Iterable[Source] = ()) -> dict[str, Source]:
    """By name; of a name that was said twice the newest iteration's. `more`: of sources that the home has not stored, as homes from before
    there was the table."""
    rows = warehouse.read(TABLE).to_pylist()
    found = {one.source: one for one in (OWN_SOURCE, *more)}
    for row in sorted(rows, key=lambda row: (row["iteration"], row["stage"])):
        found[row["source"]] = Source(
            source=row["source"], kind=row["kind"], licence=row["licence"], origin=row["origin"], stated_by=row["stated_by"]
        )
    return found


EPISODES_TASKS = """(
    select e.episode_id, any_value(t.source) as source, any_value(t.name) as name
    from episodes e join (select distinct task_id, source, name from tasks) t using (task_id) group by e.episode_id)"""


def with_sources(con: duckdb.DuckDBPyConnection, samples: str, sources: Mapping[str, Source]) -> str:
    """SQL of the rows of `samples` (SQL of rows of sample tables) with three more columns: `source`, `licence`, and `collected_by`, who
    decided what is learned: people, scripted, policy, or nobody of a text. Registers what it needs on the connection."""
    names = sorted(sources)
    con.execute("create or replace temp table licences (source varchar, licence varchar)")
    values = {"names": names, "licences": [sources[name].licence for name in names]}
    con.execute("insert into licences select unnest($names::varchar[]), unnest($licences::varchar[])", values)
    source_of = _source_of(sources)
    terms = sources[PEOPLE].licence if PEOPLE in sources else UNKNOWN
    con.execute("create or replace temp table terms as select $terms::varchar as terms", {"terms": terms})
    return f"""(
        select found.*, case when collected_by = 'people' and source <> '{RECORDINGS}'
            then coalesce(licence_of, '{UNKNOWN}') || '; annotators: ' || (select terms from terms)
            else coalesce(licence_of, '{UNKNOWN}') end as licence
        from (
            select s.*, {source_of} as source, l.licence as licence_of,
                case when s.stage = '{RECORDINGS}' or a.origin = 'human' then 'people' when a.origin = 'scripted' then 'scripted'
                    when e.policy_id = 'oracle' then 'oracle' when s.episode_id is null then 'text' else 'policy' end as collected_by
            from ({samples}) s left join {EPISODES_TASKS} t using (episode_id)
            left join (select episode_id, any_value(policy_id) as policy_id from episodes group by episode_id) e using (episode_id)
            left join (select annotation_id, any_value(origin) as origin from annotations group by annotation_id) a using (annotation_id)
            left join licences l on l.source = {source_of}) found)"""


def _source_of(sources: Mapping[str, Source]) -> str:
    """SQL for the source of a row `s` of samples whose episode attempts the task `t`. Of a source whose groups have rows of their own
    (SOURCE:GROUP) tasks are called GROUP:NAME."""
    grouped = sorted({name.partition(":")[0] for name, one in sources.items() if one.kind == "tasks" and ":" in name})
    named = ", ".join("'" + name.replace("'", "''") + "'" for name in grouped or [""])
    return f"""
    case
        when {" or ".join(f"starts_with(s.stage, '{begin}')" for begin in IMPORT_STAGES)} then s.stage
        when s.stage = '{RECORDINGS}' then '{RECORDINGS}'
        when t.source in ({named}) then t.source || ':' || split_part(t.name, ':', 1)
        when s.episode_id is null then '{OWN}'
        else coalesce(t.source, '{UNKNOWN}')
    end"""
