"""Filters and routing of up to a million episodes (ten million steps), beside pandas and Hugging Face `datasets` on the same filters.

Synthetic episodes with the column shapes of real ones (benchmarks/common/episodes.py) are made once under --root. Each contestant is a
process of its own, start-up left out, and prints its seconds, processor seconds and peak resident memory; all must give every episode the
same route and the same score of each of eleven filters (one digest). Ours also gives reasons and stores a row a filter; the others hold
what they found in memory. Ours runs three times: on all cores, on one thread (the peers use one for most of their way), and with little
memory. The floor is DuckDB reading the text columns and counting their characters. Peers run on what they can hold:
--pandas and --datasets name their largest size in episodes. `datasets` gets one row an episode with lists of its steps, prompts flattened
to text, made beforehand and not timed. It runs in a venv of its own under .bench/.

    python -m benchmarks.routing_scale --root .bench/routing --json .bench/routing.json
    python -m benchmarks.routing_scale --root .bench/routing --episodes 10000
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
from rich.console import Console
from rich.table import Table

from benchmarks.common.episodes import make_episodes
from benchmarks.common.venv import python_of

DATASETS = ("datasets==5.2.0",)
SIZES = (10_000, 100_000, 1_000_000)
PEERS = Path(__file__).parent / "peers"
_NESTED = """
copy (
    select any_value(columns(e.* exclude (episode_id))), e.episode_id,
        list(s.observation order by s.step_index) as observation, list(s.screenshot_id order by s.step_index) as screenshot_id,
        list(s.messages[1].content order by s.step_index) as prompt, list(s.response order by s.step_index) as response,
        list(s.thought order by s.step_index) as thought,
        list(s.action order by s.step_index) as action
    from (select episode_id, task_id, instruction, split, outcome, reward from '{folder}/episodes/*.parquet') e
    join '{folder}/steps/*.parquet' s using (episode_id) group by e.episode_id
) to '{target}' (format parquet, compression zstd, row_group_size 4096)
"""


def floor(folder: Path) -> dict[str, Any]:
    """Seconds to read the text columns, in DuckDB on all cores."""
    began, cpu = time.perf_counter(), time.process_time()
    with duckdb.connect() as con:
        (row,) = con.execute(
            f"select count(*), sum(length(observation) + length(response) + length(action) + length(messages[1].content)) "
            f"from '{folder}/steps/*.parquet'"
        ).fetchall()
    return {
        "contestant": "floor",
        "steps": row[0],
        "characters": int(row[1]),
        "seconds": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
    }


def run(name: str, command: list[str], cwd: Path | None = None) -> dict[str, Any]:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{name} failed ({result.returncode}):\n{result.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return {"contestant": name} | figures


def measure(folder: Path, num_episodes: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = [floor(folder)]
    steps = rows[0]["steps"]
    ours = [sys.executable, "-m", "benchmarks.ours.route_episodes", str(folder)]
    rows.append(run("flywheel", [*ours, "--memory", arguments.memory]))
    rows.append(run("flywheel, one thread", [*ours, "--memory", arguments.memory, "--threads", "1"]))
    rows.append(run(f"flywheel, {arguments.little_memory}", [*ours, "--memory", arguments.little_memory]))
    if num_episodes <= arguments.pandas:
        rows.append(run("pandas", [sys.executable, "filter_pandas.py", str(folder.absolute())], PEERS))
    if num_episodes <= arguments.datasets:
        nested = folder / "nested.parquet"
        if not nested.exists():
            with duckdb.connect() as con:
                con.execute(_NESTED.format(folder=folder, target=nested))
        python = python_of(Path(".bench/hf-datasets"), DATASETS)
        for processes in (1, 2) if num_episodes <= 10_000 else (1,):
            name = f"datasets, {processes} process{'es' * (processes > 1)}"
            rows.append(run(name, [str(python.absolute()), "filter_datasets.py", str(nested.absolute()), str(processes)], PEERS))
    digests = {row["digest"] for row in rows if "digest" in row}
    if len(digests) > 1:
        raise SystemExit(f"the contestants judge or route {num_episodes} episodes differently: {digests}")
    return [row | {"num_episodes": num_episodes, "steps": steps, "steps_per_s": steps / row["seconds"]} for row in rows]


def show(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table("episodes", "steps", "contestant", "seconds", "cpu s", "steps/s", "peak MB", "times our cpu")
    for row in rows:
        ours = next(other for other in rows if other["contestant"] == "flywheel" and other["num_episodes"] == row["num_episodes"])
        table.add_row(
            f"{row['num_episodes']:,}",
            f"{row['steps']:,}",
            row["contestant"],
            f"{row['seconds']:.1f}",
            f"{row['cpu_s']:.1f}",
            f"{row['steps_per_s']:,.0f}",
            f"{row.get('peak_mb', 0):,.0f}",
            f"{row['cpu_s'] / ours['cpu_s']:.2f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(".bench/routing"))
    parser.add_argument("--episodes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--pandas", type=int, default=100_000, help="largest size that pandas is asked for")
    parser.add_argument("--datasets", type=int, default=100_000, help="largest size that datasets is asked for")
    parser.add_argument("--memory", default="2GB", help="DuckDB's limit")
    parser.add_argument("--little-memory", default="512MB", help="a limit that rows have to be put aside for")
    parser.add_argument("--keep", action="store_true", help="keep the episodes that were made")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for num_episodes in arguments.episodes:
        folder = arguments.root / f"episodes-{num_episodes}"
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            make_episodes(folder, num_episodes)
            (folder / "ready").touch()
        rows += measure(folder, num_episodes, arguments)
        show(rows, Console())
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=2))
        if not arguments.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
