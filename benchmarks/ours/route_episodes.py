"""Filters and routing of Flywheel over a folder of Parquet files, as one process: prints rows, seconds, peak memory and a digest as JSON.

python -m benchmarks.ours.route_episodes FOLDER [--memory 2GB] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common.process import peak_mb
from warehouse.quality.config import QualityConfig
from warehouse.quality.filters import judge
from warehouse.routing.routes import route
from warehouse.storage.catalogue import TABLES

JUDGES = ("contamination", "contradiction", "duplicate", "format", "leak", "loop", "no_op", "repeats", "settled", "too_long", "too_short")
_SCORES = ", ".join(f"max(score) filter (judge = '{judge}')" for judge in JUDGES)
DIGEST = f"""
with scores as (select episode_id, printf('{" %.4f" * len(JUDGES)}', {_SCORES}) as shown from verdicts group by episode_id)
select count(*), md5(string_agg(episode_id || route || shown, ',' order by episode_id)) from routes join scores using (episode_id)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--threads", type=int, help="all cores by default")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="route-", dir=arguments.folder.parent))
    try:
        print(json.dumps(measure(arguments.folder, work, arguments.memory, arguments.threads)))
    finally:
        shutil.rmtree(work)


def measure(folder: Path, work: Path, memory: str, threads: int | None) -> dict[str, object]:
    """Judge, store the verdicts as Parquet, route, store the routes."""
    with duckdb.connect() as con:
        con.execute(f"set memory_limit = '{memory}'")
        if threads is not None:
            con.execute(f"set threads = {threads}")
        con.execute("set temp_directory = ?", [str(work / "duckdb")])
        con.execute("set preserve_insertion_order = false")
        for table in ("episodes", "steps"):
            con.execute(f"create view {table} as from read_parquet('{folder}/{table}/*.parquet')")
        for table in ("annotations", "task_instances", "screenshots"):
            con.register(table, TABLES[table].schema.empty_table())
        began, cpu = time.perf_counter(), time.process_time()
        num_verdicts = 0
        writer: pq.ParquetWriter | None = None
        for part in judge(con, QualityConfig(), cache=work / "cache"):
            placed = part.append_column("iteration", pa.repeat("0001", len(part))).append_column("stage", pa.repeat("verdicts", len(part)))
            writer = writer or pq.ParquetWriter(work / "verdicts.parquet", placed.schema, compression="zstd")
            writer.write_table(placed)
            num_verdicts += part.num_rows
        if writer is not None:
            writer.close()
        judged = time.perf_counter()
        con.execute(f"create view verdicts as from read_parquet('{work}/verdicts.parquet')")
        routes = route(con)
        routed, cpu_s, peak = time.perf_counter(), time.process_time() - cpu, peak_mb()
        con.register("routes", routes)
        con.execute("set memory_limit = '4GB'")  # the digest is of one long text
        num, digest = con.execute(DIGEST).fetchall()[0]
        by_route = dict(con.execute("select route, count(*) from routes group by 1 order by 1").fetchall())
    return {
        "episodes": num,
        "verdicts": num_verdicts,
        "filter_s": judged - began,
        "route_s": routed - judged,
        "seconds": routed - began,
        "cpu_s": cpu_s,
        "peak_mb": peak,
        "digest": digest,
        "routes": by_route,
    }


if __name__ == "__main__":
    main()
