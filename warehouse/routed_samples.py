"""Storing what an iteration's routes give: the partition `routing` of D_CT and D_SFT, for who routes an iteration and who routes it again.

A sample that is no longer among them stays, withdrawn, so that lineage still leads from a dataset that holds it to its content; only where
the episode or annotation that it was cut from is gone as well it goes too. Corrections and reflections that a later iteration has made of
attempts of an earlier one follow the routes of both. What samples are made of is warehouse/samples.py's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from warehouse.catalogue import TABLES
from warehouse.query import connect
from warehouse.rows import to_arrow
from warehouse.salvage import PAIR_ORIGINS, SalvageConfig
from warehouse.samples import pair_rows
from warehouse.tables import NO_VERSION, Warehouse

STAGE = "routing"
_TOLD = ("sample_id", "domain", "verdict", "withdrawn")
"""Columns by which a sample can differ: its id is a hash of all others."""
_SOURCES_STORED = """
select sample_id from former
where (episode_id is null or episode_id in (select episode_id from episodes))
    and (annotation_id is null or annotation_id in (select annotation_id from annotations))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What became of one table's samples: its version, of the standing ones how many joined and left, and whether it was written."""

    version: int
    num_joined: int
    num_left: int
    is_written: bool


def store_routed_samples(warehouse: Warehouse, iteration: str, samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Stored]:
    """Make these the standing samples of an iteration, by table; a table that holds them already is not written."""
    return {table: _store(warehouse, table, rows, iteration) for table, rows in samples.items()}


def follow_routes(warehouse: Warehouse, iteration: str, salvage: SalvageConfig) -> Stored | None:
    """Make the corrections and reflections of an iteration anew after routes of an earlier one have changed; None where it has none and
    `salvage` asks for none. What was made once is made again, whatever `salvage` says now, and nothing else that it does not ask for."""
    stored = warehouse.read("sft_samples", iteration=iteration, stage=STAGE)
    is_pair = pc.is_in(stored["origin"], value_set=pa.array(PAIR_ORIGINS, pa.string()))
    made = set(stored.filter(is_pair)["origin"].to_pylist())
    if not (made or salvage.corrections or salvage.reflections):
        return None
    once = SalvageConfig(corrections="correction" in made, reflections="reflection" in made, solved_attempts_tell=True)
    known = set(stored["sample_id"].to_pylist())
    with connect(warehouse) as con:
        pairs = [*pair_rows(con, iteration, salvage), *(row for row in pair_rows(con, iteration, once) if row["sample_id"] in known)]
    others = stored.filter(pc.and_(pc.invert(is_pair), pc.invert(stored["withdrawn"]))).drop_columns(["iteration", "stage"]).to_pylist()
    return _store(warehouse, "sft_samples", list({row["sample_id"]: row for row in [*others, *pairs]}.values()), iteration)


def _store(warehouse: Warehouse, table: str, rows: Sequence[Mapping[str, Any]], iteration: str) -> Stored:
    stored = warehouse.read(table, iteration=iteration, stage=STAGE)
    wanted = to_arrow(TABLES[table], rows, iteration=iteration, stage=STAGE)
    standing = set(wanted["sample_id"].to_pylist())
    is_wanted = pc.is_in(stored["sample_id"], value_set=pa.array(sorted(standing), stored.schema.field("sample_id").type))
    former = _with_their_sources(warehouse, stored.filter(pc.invert(is_wanted)))
    after = pa.concat_tables([wanted, former.cast(wanted.schema)])
    before = set(stored.filter(pc.invert(stored["withdrawn"]))["sample_id"].to_pylist())
    is_same = _told(after) == _told(stored)
    version = warehouse.version(table)
    if not is_same or version == NO_VERSION:
        version = warehouse.replace_partition(table, after, iteration=iteration, stage=STAGE)
    return Stored(version=version, num_joined=len(standing - before), num_left=len(before - standing), is_written=not is_same)


def _with_their_sources(warehouse: Warehouse, former: pa.Table) -> pa.Table:
    """Withdrawn, of these samples, those whose sources are stored."""
    if not former.num_rows:
        return former
    with connect(warehouse) as con:
        con.register("former", former.select(["sample_id", "episode_id", "annotation_id"]))
        kept = [sample_id for (sample_id,) in con.execute(_SOURCES_STORED).fetchall()]
    left = former.filter(pc.is_in(former["sample_id"], value_set=pa.array(kept, former.schema.field("sample_id").type)))
    place = left.schema.get_field_index("withdrawn")
    return left.set_column(place, left.schema.field(place), pa.chunked_array([pa.repeat(True, left.num_rows)]))


def _told(samples: pa.Table) -> pa.Table:
    return samples.select(list(_TOLD)).sort_by("sample_id").combine_chunks()
