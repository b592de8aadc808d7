"""Samples of up to a hundred thousand routed episodes (a million steps), made and stored part by part, beside all of them at once.

Synthetic episodes (benchmarks/common/episodes.py), routed by how they ended, so that nearly every step becomes a sample. Each way is a
process of its own, start-up left out, and prints its seconds, processor seconds and peak resident memory; both must make the same ids.
--whole names the largest size in episodes that is tried at once: a million steps take some gigabytes that way. Then all samples are encoded
for training, into files that are mapped into memory, beside lists: the same batches.

    python -m benchmarks.sampling_scale --json .bench/sampling.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.episodes import make_episodes
from benchmarks.routing_scale import run

SIZES = (10_000, 100_000)


def measure(root: Path, num_episodes: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    folder, home = root / f"episodes-{num_episodes}", root / f"home-{num_episodes}"
    for left in (folder, home):
        shutil.rmtree(left, ignore_errors=True)
    make_episodes(folder, num_episodes)
    ours = [sys.executable, "-m", "benchmarks.ours.sample_episodes", str(home)]
    steps = run("make", [*ours, "make", str(folder)])["steps"]
    shutil.rmtree(folder)
    rows = []
    for name, memory in (("in parts", arguments.memory), (f"in parts, {arguments.little_memory}", arguments.little_memory)):
        shutil.rmtree(home / "tables" / "ct_samples", ignore_errors=True)
        shutil.rmtree(home / "tables" / "sft_samples", ignore_errors=True)
        rows.append(run(name, [*ours, "parts", "--memory", memory]))
    if num_episodes <= arguments.whole:
        rows.append(run("at once", [*ours, "whole", "--memory", arguments.memory]))
    encoded = encode(home, is_whole=num_episodes <= arguments.whole)
    for kind, each in (("samples", rows), ("batches", encoded)):
        if len({json.dumps(row.pop("digest")) for row in each}) > 1:
            raise SystemExit(f"the {kind} of {num_episodes} episodes are not the same ones")
    rows += encoded
    shutil.rmtree(home)
    return [row | {"num_episodes": num_episodes, "steps": steps, "load": os.getloadavg()[0]} for row in rows]


def encode(home: Path, *, is_whole: bool) -> list[dict[str, Any]]:
    ours = [sys.executable, "-m", "benchmarks.ours.encode_samples", str(home)]
    run("snapshot", [*ours, "snapshot"])
    ways = ("files", "list") if is_whole else ("files",)
    return [run(f"encoded: {way}", [*ours, way]) for way in ways]


def show(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table("steps", "samples", "way", "seconds", "cpu s", "begins MB", "peak MB", "again s", "load")
    for row in rows:
        table.add_row(
            f"{row['steps']:,}",
            f"{row['samples']:,}",
            row["contestant"],
            f"{row['seconds']:.1f}",
            f"{row['cpu_s']:.1f}",
            f"{row['begins_mb']:,.0f}",
            f"{row['peak_mb']:,.0f}",
            f"{row['again_s']:.1f}" if "again_s" in row else "",
            f"{row['load']:.1f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(".bench/sampling"))
    parser.add_argument("--episodes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--whole", type=int, default=100_000, help="largest size that is tried at once")
    parser.add_argument("--memory", default="1GB", help="DuckDB's limit")
    parser.add_argument("--little-memory", default="256MB", help="a limit that rows have to be put aside for")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for num_episodes in arguments.episodes:
        rows += measure(arguments.root, num_episodes, arguments)
        show(rows, Console(width=140))
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
