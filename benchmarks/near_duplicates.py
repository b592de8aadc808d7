"""Near-duplicate screening of 100,000 trajectories beside `datasketch`: recall on planted duplicates, seconds, peak memory.

A trajectory is the set of what it saw and did: about a hundred strings (element lines and actions), most of them shared with others of
its task. A tenth are copies of an earlier one in which a few strings were replaced, down to a Jaccard index of --threshold. Everyone begins
with the same Arrow file of lists of strings, hashes them, and reports pairs whose exact Jaccard index reaches the threshold; recall is the
share of the planted pairs. datasketch runs as its documentation has it (SHA-1, 128 permutations, MinHash.bulk, MinHashLSH with the exact
check behind it), with a faster hash function, and with its bands chosen for recall, in a venv of its own under .bench/.

    python -m benchmarks.near_duplicates --json .bench/near_duplicates.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.common.process import peak_mb
from benchmarks.common.venv import python_of
from warehouse.quality.near_duplicates import similar_pairs, to_documents

DATASKETCH = ("datasketch==2.0.0", "pyarrow==26.0.1")
TASKS, LINES_PER_TASK, NUM_LINES = 200, 400, 100
PLANTED = 0.1


def make(path: Path, num: int, threshold: float, seed: int = 0) -> None:
    """(tokens, original): lists of strings; of a planted duplicate the number of what it is a copy of, else -1."""
    rng = np.random.default_rng(seed)
    tokens: list[list[str]] = []
    originals = []
    for i in range(num):
        if i > 100 and rng.random() < PLANTED:
            original = int(rng.integers(i))
            while originals[original] >= 0:
                original = int(rng.integers(i))
            copy = list(tokens[original])
            # k of n strings replaced leaves (n - k) / (n + k) alike.
            most = int(len(copy) * (1 - threshold) / (1 + threshold))
            for at in rng.permutation(len(copy))[: int(rng.integers(0, most + 1))]:
                copy[at] = f'"changed {rng.integers(1 << 40)}" <text>'
            tokens.append(copy)
            originals.append(original)
            continue
        task = int(rng.integers(TASKS))
        lines = rng.choice(LINES_PER_TASK, NUM_LINES * 3 // 5, replace=False)
        own = rng.integers(1 << 40, size=NUM_LINES * 2 // 5)
        tokens.append([f'"item {task} {line}" <button>' for line in lines] + [f'"name {name}" <text>' for name in own])
        originals.append(-1)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"tokens": tokens, "original": originals}), path)


def ours(path: Path, threshold: float) -> dict[str, Any]:
    began, cpu = time.perf_counter(), time.process_time()
    with duckdb.connect() as con:
        table = con.sql(f"select list_transform(tokens, lambda t: hash(t)) as tokens from '{path}'").to_arrow_table()
    pairs = similar_pairs(to_documents(table["tokens"]), threshold)
    found = set(zip(pairs.second.tolist(), pairs.first.tolist(), strict=True))
    return figures(path, found, began, cpu)


def figures(path: Path, found: set[tuple[int, int]], began: float, cpu: float) -> dict[str, Any]:
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    originals = pq.read_table(path, columns=["original"])["original"].to_pylist()
    planted = {(i, original) for i, original in enumerate(originals) if original >= 0}
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "peak_mb": peak_mb(),
        "pairs": len(found),
        "planted": len(planted),
        "recall": len(planted & found) / max(1, len(planted)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(".bench/near-duplicates"))
    parser.add_argument("--num", type=int, default=100_000)
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours:
        print(json.dumps(ours(arguments.ours, arguments.threshold)))
        return
    path = arguments.root / f"{arguments.num}-{arguments.threshold}.parquet"
    if not path.exists():
        make(path, arguments.num, arguments.threshold)
    peer = Path(__file__).parent / "peers" / "near_datasketch.py"
    python = python_of(Path(".bench/datasketch"), DATASKETCH)
    threshold = str(arguments.threshold)
    commands = {
        "flywheel": [sys.executable, "-m", "benchmarks.near_duplicates", "--ours", str(path), "--threshold", threshold],
        "datasketch": [str(python.absolute()), str(peer), str(path), threshold, "sha1", "0.5"],
        "datasketch, crc32": [str(python.absolute()), str(peer), str(path), threshold, "crc32", "0.5"],
        "datasketch, crc32, for recall": [str(python.absolute()), str(peer), str(path), threshold, "crc32", "0.98"],
    }
    rows = []
    for name, command in commands.items():
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows.append({"contestant": name, "documents": arguments.num} | json.loads(out.strip().splitlines()[-1]))
    table = Table("contestant", "seconds", "cpu s", "peak MB", "pairs", "recall of planted", "times ours")
    for row in rows:
        table.add_row(
            row["contestant"],
            f"{row['seconds']:.1f}",
            f"{row['cpu_s']:.1f}",
            f"{row['peak_mb']:,.0f}",
            f"{row['pairs']:,}",
            f"{row['recall']:.4f}",
            f"{row['seconds'] / rows[0]['seconds']:.1f}",
        )
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
