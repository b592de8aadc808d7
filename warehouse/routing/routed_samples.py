"""Storing what an iteration's routes give: the partition `routing` of D_CT and D_SFT, for who routes an iteration and who routes it again.

A sample that is no longer among them stays, withdrawn, so that lineage still leads from a dataset that holds it to its content; only where
the episode or annotation that it was cut from is gone as well it goes too. Corrections and reflections that a later iteration has made of
attempts of an earlier one follow the routes of both. What samples are made of is warehouse/routing/samples.py's business.

Of all samples of an iteration only ids and what is short are held at once; their chats pass by, from the steps into a file aside, and from
there into the table once it is known whether anything has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warehouse.routing.failure_mining import PAIR_ORIGINS, FailureMiningConfig
from warehouse.routing.hindsight import ReadElements
from warehouse.routing.samples import ROUTED_TABLES, RoutedTable, in_parts, joined_as_written, pair_parts, sample_parts
from warehouse.storage.catalogue import TABLES
from warehouse.storage.partitions import check_iteration
from warehouse.storage.sql.scan import connect_to_scan
from warehouse.storage.tables import NO_VERSION, Warehouse

STAGE = "routing"
MEMORY_LIMIT = "1GB"
"""DuckDB's. It reads steps one after the other and puts aside what is sorted or joined beyond that."""
_SHORT = ["sample_id", "origin", "domain", "verdict", "prompt_episode_ids", "prompt_step_indices"]
_EMPTY = TABLES["sft_samples"].schema.empty_table().select(_SHORT)
_STORED = """
create or replace temp view stored as from {table} where iteration = '{iteration}' and stage = '{stage}'
"""
_WANTED = """
create or replace temp table wanted as
from placed_samples where origin not in {pairs} or sample_id not in (
    select sample_id from {table} where iteration < '{iteration}' and origin in {pairs} and not withdrawn)
qualify row_number() over (partition by sample_id order by place) = 1
"""
"""Of those that came twice the first. A pair stands in the iteration that made it first: another attempt that fails with the same prompt
gives the same sample, by the same id."""
_STAYING = """
create or replace temp table staying as
select sample_id, domain, verdict, prompt_episode_ids, prompt_step_indices, not ({stands}) as withdrawn
from stored anti join wanted using (sample_id)
where ({stands}) or (
    (episode_id is null or episode_id in (select episode_id from episodes))
    and (annotation_id is null or annotation_id in (select annotation_id from annotations))
    and sample_id not in (
        select sample_id from (select sample_id, unnest(prompt_episode_ids) as episode_id from stored)
        anti join episodes using (episode_id))
)
"""
"""What is stored and not made again: what stands anyhow, and withdrawn, of the others, those whose sources are stored."""
_CHANGE = """
with standing as (select sample_id from wanted union all select sample_id from staying where not withdrawn),
stood as (select sample_id from stored where not withdrawn),
made as (
    select sample_id, domain, verdict, prompt_episode_ids, prompt_step_indices, false as withdrawn from wanted union all from staying)
select
    (select count(*) from standing anti join stood using (sample_id)) as num_joined,
    (select count(*) from stood anti join standing using (sample_id)) as num_left,
    (select count(*) from made a full join stored s on a.sample_id = s.sample_id
     where (a.domain, a.verdict, a.withdrawn, a.prompt_episode_ids, a.prompt_step_indices)
        is distinct from (s.domain, s.verdict, s.withdrawn, s.prompt_episode_ids, s.prompt_step_indices)
    ) as num_changed
"""
"""A sample can differ by these alone: its id is a hash of all else."""
_STAYING_CHATS = """
select s.* exclude (iteration, stage) replace (staying.withdrawn as withdrawn)
from stored s join staying on staying.sample_id = s.sample_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What became of one table's samples: its version, of the standing ones how many joined and left, and whether it was written; of
    those that were made, how many of each origin, and their ids in order."""

    version: int
    num_joined: int
    num_left: int
    is_written: bool
    by_origin: dict[str, int]
    sample_ids: pa.ChunkedArray


def store_routed_samples(
    warehouse: Warehouse,
    iteration: str,
    mining: FailureMiningConfig | None = None,
    *,
    left_out: Counter[str] | None = None,
    read_elements: ReadElements | None = None,
    memory_limit: str = MEMORY_LIMIT,
) -> dict[str, Stored]:
    """Make what the routes of an iteration give the standing samples of it, by table; a table that holds them already is not written.
    `mining`, `left_out` and `read_elements` as in samples.sample_parts."""
    with _connect(warehouse, memory_limit) as con:
        parts = partial(sample_parts, con, iteration=iteration, mining=mining, left_out=left_out, read_elements=read_elements)
        return {table: _store(warehouse, con, table, iteration, parts(table)) for table in ROUTED_TABLES}


def follow_routes(warehouse: Warehouse, iteration: str, mining: FailureMiningConfig) -> Stored | None:
    """Make the corrections and reflections of an iteration again after routes of an earlier one have changed; None where it has none and
    `mining` asks for none. What was made once is made again, whatever `mining` says now, and nothing else that it does not ask for."""
    stored = warehouse.read("sft_samples", iteration=iteration, stage=STAGE, columns=["sample_id", "origin"])
    pairs = stored.filter(pc.is_in(stored["origin"], value_set=pa.array(PAIR_ORIGINS, pa.string())))
    made = set(pairs["origin"].unique().to_pylist())
    if not (made or mining.pair_origins):
        return None
    once = FailureMiningConfig(corrections="correction" in made, reflections="reflection" in made, solved_attempts_tell=True)
    with _connect(warehouse, MEMORY_LIMIT) as con:
        again = (part.filter(pc.is_in(part["sample_id"], value_set=pairs["sample_id"])) for part in pair_parts(con, iteration, once))
        parts = chain(pair_parts(con, iteration, mining), again)
        return _store(warehouse, con, "sft_samples", iteration, parts, stands=f"not withdrawn and origin not in {PAIR_ORIGINS}")


@contextmanager
def _connect(warehouse: Warehouse, memory_limit: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """One thread: Python takes what it reads one by one, and each thread more would hold a page of texts."""
    with connect_to_scan(warehouse, ("episodes", "steps", *ROUTED_TABLES), memory_limit=memory_limit, threads=1) as con:
        con.execute("SET preserve_insertion_order = true")
        yield con


def _store(
    warehouse: Warehouse,
    con: duckdb.DuckDBPyConnection,
    table: RoutedTable,
    iteration: str,
    parts: Iterable[pa.Table],
    *,
    stands: str = "false",
) -> Stored:
    """Make these the samples of the partition, beside those stored ones of which the SQL condition `stands` is true."""
    version = warehouse.version(table)
    with warehouse.rows_aside(table, iteration=iteration, stage=STAGE) as aside:
        new_samples = pa.concat_tables([_EMPTY, *(aside.add(part).select(_SHORT) for part in parts)])
        _compare(con, table, iteration, new_samples, stands)
        ((num_joined, num_left, num_changed),) = con.execute(_CHANGE).fetchall()
        if num_changed or version == NO_VERSION:
            twice = con.sql("select place from placed_samples anti join wanted using (place) order by place").to_arrow_table()["place"]
            for part in _staying_chats(con):
                aside.add(part)
            version = aside.commit(without=twice.to_numpy())
    return Stored(
        version=version,
        num_joined=num_joined,
        num_left=num_left,
        is_written=bool(num_changed),
        by_origin=dict(con.execute("select origin, count(*) from wanted group by origin order by min(place)").fetchall()),
        sample_ids=con.sql("select sample_id from wanted order by sample_id").to_arrow_table()["sample_id"],
    )


def _compare(con: duckdb.DuckDBPyConnection, table: RoutedTable, iteration: str, new_samples: pa.Table, stands: str) -> None:
    """Make the tables of what is wanted, each once, and of what stays, from what came and what is stored."""
    con.execute(_STORED.format(table=table, iteration=check_iteration(iteration), stage=STAGE))
    con.register("placed_samples", new_samples.append_column("place", pa.array(np.arange(new_samples.num_rows))))
    con.execute(_WANTED.format(table=table, iteration=iteration, pairs=PAIR_ORIGINS))
    con.execute(_STAYING.format(stands=stands))


def _staying_chats(con: duckdb.DuckDBPyConnection) -> Iterator[pa.Table]:
    with joined_as_written(con):
        for batch in in_parts(con.sql(_STAYING_CHATS)):
            yield pa.Table.from_batches([batch])
