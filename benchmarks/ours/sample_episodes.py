"""Sampling of a routed iteration, as one process: prints samples, seconds and peak memory as JSON, with a digest of the ids.

python -m benchmarks.ours.sample_episodes HOME make FOLDER    a home of the episodes in FOLDER, routed by how they ended
python -m benchmarks.ours.sample_episodes HOME parts          as the flywheel does it, then once more, which finds nothing to write
python -m benchmarks.ours.sample_episodes HOME whole          all chats of the iteration at once, as dicts
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa

from benchmarks.common.process import peak_mb
from warehouse.core.home import Home
from warehouse.core.identity import content_id, long_list_id
from warehouse.routing.routed_samples import MEMORY_LIMIT, STAGE, store_routed_samples
from warehouse.routing.samples import ROUTED_TABLES, sample_parts
from warehouse.storage.catalogue import TABLES
from warehouse.storage.sql.scan import connect_to_scan
from warehouse.storage.tables import Warehouse

ITERATION = "0001"
ROWS = 16_384
_ROUTES = """
select episode_id, case when outcome = 'crashed' then 'withheld' when outcome = 'success' then 'sft' else 'ct' end as route,
    case when outcome = 'crashed' then 'crashed' when outcome = 'success' then 'V=1: verifier' else 'V=0: verifier' end as reason
from read_parquet('{folder}/episodes/*.parquet')
"""


def make(home: Path, folder: Path) -> dict[str, object]:
    warehouse = Warehouse(Home(home))
    with duckdb.connect() as con:
        con.execute("set threads = 1")
        for table, query, stage in (
            ("episodes", f"from read_parquet('{folder}/episodes/*.parquet')", "rollouts"),
            ("steps", f"from read_parquet('{folder}/steps/*.parquet')", "rollouts"),
            ("routes", _ROUTES.format(folder=folder), STAGE),
        ):
            warehouse.replace_partition_by_parts(table, _parts(con, table, query), iteration=ITERATION, stage=stage)
    return {"steps": warehouse.dataset("steps").count_rows()}


def _parts(con: duckdb.DuckDBPyConnection, table: str, query: str) -> Iterator[pa.Table]:
    schema = TABLES[table].schema
    with con.sql(query).to_arrow_reader(ROWS) as reader:
        names = [name for name in schema.names if name in reader.schema.names]
        for batch in reader:
            yield pa.Table.from_batches([batch]).select(names).cast(pa.schema([schema.field(name) for name in names]))


def by_parts(warehouse: Warehouse, memory: str) -> dict[str, object]:
    stored = store_routed_samples(warehouse, ITERATION, memory_limit=memory)
    return {table: long_list_id("ids", (chunk.to_pylist() for chunk in each.sample_ids.chunks)) for table, each in stored.items()}


def whole(warehouse: Warehouse, memory: str) -> dict[str, object]:
    with connect_to_scan(warehouse, ("episodes", "steps"), memory_limit=memory) as con:
        samples = {table: [row for part in sample_parts(con, table, ITERATION) for row in part.to_pylist()] for table in ROUTED_TABLES}
    for table, rows in samples.items():
        warehouse.replace_partition(table, rows, iteration=ITERATION, stage=STAGE)
    return {table: content_id("ids", [sorted(row["sample_id"] for row in rows)]) for table, rows in samples.items()}


def timed(way: Callable[[Warehouse, str], dict[str, object]], warehouse: Warehouse, memory: str) -> dict[str, object]:
    began, cpu = time.perf_counter(), time.process_time()
    digest = way(warehouse, memory)
    return {"digest": digest, "seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu, "peak_mb": peak_mb()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("what", choices=("make", "parts", "whole"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--memory", default=MEMORY_LIMIT, help="DuckDB's limit")
    arguments = parser.parse_args()
    if arguments.what == "make":
        print(json.dumps(make(arguments.home, arguments.folder)))
        return
    warehouse = Warehouse(Home(arguments.home))
    figures = {"begins_mb": peak_mb()} | timed(by_parts if arguments.what == "parts" else whole, warehouse, arguments.memory)
    if arguments.what == "parts":
        again = timed(by_parts, warehouse, arguments.memory)
        figures |= {"again_s": again["seconds"], "again_cpu_s": again["cpu_s"], "again_peak_mb": again["peak_mb"]}
    print(json.dumps(figures | {"samples": sum(warehouse.dataset(table).count_rows() for table in ROUTED_TABLES)}))


if __name__ == "__main__":
    main()
