"""Single flipped bits in the files of tables, and what a reader then says.

A small home is made: partitions written and replaced, a checkpoint of a log, a withdrawal, screenshots. Each trial flips one bit of one
file (data file, log, checkpoint of a log, hint, chain) and reads everything again: each table at its newest version and at one before, its
history, a query. The outcome is `noticed` (CorruptTable), `the same` (every answer as before), `silent` (an answer differs and nobody said
so) or `another error`. Then the bit is flipped back.

`--cost` measures what checking costs instead, on a table of that many rows: processor seconds of writing, of the first read in a process,
and of the reads after it, whole and of one column, with the checks and without.

    python -m benchmarks.damage --flips 1000 --json .bench/damage.json
    python -m benchmarks.damage --cost 200000 --json .bench/damage-cost.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from warehouse.core import durable
from warehouse.core.errors import CorruptTable
from warehouse.core.home import Home
from warehouse.core.identity import bytes_id
from warehouse.datasets.withdrawal import withdraw
from warehouse.storage import tables
from warehouse.storage.files import data_files
from warehouse.storage.log import table_log
from warehouse.storage.sql import query
from warehouse.storage.tables import Warehouse

READ = ("ct_samples", "verdicts", "screenshots")
JOINED = "SELECT episode_id, count(*) AS n FROM verdicts JOIN ct_samples USING (episode_id) GROUP BY 1"
NOTICED, SAME, SILENT, OTHER = "noticed", "the same", "silent", "another error"


def verdict(index: int) -> dict[str, Any]:
    return {
        "episode_id": f"ep-{index:06d}",
        "judge": "verifier",
        "judge_version": "1",
        "kind": "verdict",
        "origin": "verifier",
        "score": index % 1000 / 1000,
        "threshold": 0.5,
        "passed": index % 2 == 0,
        "reasons": [f"reason {index}"],
    }


def sample(index: int) -> dict[str, Any]:
    message = {"role": "user", "content": f"press button {index}", "screenshot_id": None, "loss": 1.0}
    return {
        "sample_id": f"ct-{index:06d}",
        "episode_id": f"ep-{index + 200:06d}",
        "domain": "forms",
        "origin": "rollout",
        "messages": [message],
        "verdict": False,
        "withdrawn": False,
    }


def make_home(root: Path) -> Warehouse:
    """Tables with several versions, replaced partitions, a checkpoint in the middle of a log, and a tombstone."""
    warehouse = Warehouse(Home(root))
    with patch.object(table_log, "COMMITS_PER_CHECKPOINT", 4), patch.object(tables, "COMMITS_PER_CHECKPOINT", 4):
        for iteration in range(1, 7):
            rows = [verdict(iteration * 100 + index) for index in range(40)]
            warehouse.replace_partition("verdicts", rows, iteration=f"{iteration:04d}", stage="verdicts")
        warehouse.replace_partition("verdicts", [verdict(7)], iteration="0001", stage="verdicts")
    samples = [sample(index) for index in range(30)]
    warehouse.replace_partition("ct_samples", samples, iteration="0001", stage="ct_samples")
    withdraw(warehouse, "ct_samples", ["ct-000003"], iteration="0002")
    for batch in range(3):
        pictures = [random.Random(batch * 5 + index).randbytes(2000) for index in range(5)]
        rows = [
            {"screenshot_id": bytes_id("screen", data), "format": "png", "width_px": 1, "height_px": 1, "data": data} for data in pictures
        ]
        warehouse.add_screenshots(rows)
    return warehouse


def answers(warehouse: Warehouse) -> dict[str, Any]:
    """What a reader gets to see. Rows are compared without their order: files are read side by side."""
    found: dict[str, Any] = {}
    for table in READ:
        version = warehouse.version(table)
        found[table] = (version, _rows(warehouse.read(table)))
        found[f"{table} before"] = _rows(warehouse.read(table, version=max(1, version - 2)))
        found[f"{table} history"] = warehouse.history(table)
    found["as of"] = warehouse.versions("0001")
    found["query"] = _rows(query.run(warehouse, JOINED))
    return found


def _rows(data: pa.Table) -> list[str]:
    return sorted(repr(row) for row in data.to_pylist())


def damageable(root: Path) -> list[Path]:
    """Every file of the tables, and of the chain beside them."""
    return sorted(path for folder in ("tables", "chain") for path in (root / folder).rglob("*") if path.is_file())


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (old,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([old ^ 1 << bit % 8]))


def trial(warehouse: Warehouse, path: Path, bit: int, truth: dict[str, Any]) -> tuple[str, str]:
    """Outcome of one flipped bit, and what was said."""
    before = path.read_bytes()
    flip(path, bit)
    try:
        found = answers(Warehouse(warehouse.home))
        changed = [name for name, answer in found.items() if answer != truth[name]]
        return (SILENT, ", ".join(changed)) if changed else (SAME, "")
    except CorruptTable as error:
        return NOTICED, str(error)
    except Exception as error:
        return OTHER, f"{type(error).__name__}: {error}"
    finally:
        path.write_bytes(before)


def flips(root: Path, num: int, seed: int) -> list[dict[str, Any]]:
    """Each trial takes a kind of file by turns, a file of that kind by its size, and any bit of it."""
    warehouse = make_home(root)
    truth, rng = answers(warehouse), random.Random(seed)
    kinds: dict[str, list[Path]] = {}
    for path in damageable(root):
        if path.stat().st_size:
            kinds.setdefault(kind_of(path), []).append(path)
    results = []
    for number in range(num):
        kind = sorted(kinds)[number % len(kinds)]
        (path,) = rng.choices(kinds[kind], [path.stat().st_size for path in kinds[kind]])
        bit = rng.randrange(path.stat().st_size * 8)
        outcome, said = trial(warehouse, path, bit, truth)
        results.append({"kind": kind, "file": path.relative_to(root).as_posix(), "bit": bit, "outcome": outcome, "said": said})
    if answers(Warehouse(warehouse.home)) != truth:
        raise RuntimeError("the home is not as it was: a reader has changed it")
    return results


def kind_of(path: Path) -> str:
    if path.parent.name == "chain":
        return "chain"
    if path.parent.name == "_delta_log":
        return {".json": "log", ".parquet": "checkpoint of a log"}.get(path.suffix, "hint")
    return "data"


@contextmanager
def unchecked() -> Iterator[None]:
    """Reads without comparing checksums, writes without waiting for the disk: as it was before there were any."""
    with (
        patch.object(data_files, "check_file", lambda path: None),
        patch.object(os, "fsync", lambda descriptor: None),
        patch.object(durable.zlib, "crc32", lambda data, value=0: 0),
    ):
        yield


def cost(root: Path, num_rows: int, repeats: int = 3) -> list[dict[str, Any]]:
    """Processor seconds, the least of `repeats`, with the checks and without."""
    rows = pa.Table.from_pylist([verdict(index) | {"reasons": [os.urandom(200).hex()]} for index in range(num_rows)])
    results = []
    for name, context in (("without", unchecked), ("with", _nothing)):
        measured: dict[str, float] = {}
        for repeat in range(repeats):
            warehouse = Warehouse(Home(root / f"{name}-{repeat}"))

            def write(warehouse: Warehouse = warehouse) -> None:
                warehouse.replace_partition("verdicts", rows, iteration="0001", stage="verdicts")

            def read(columns: list[str] | None = None, warehouse: Warehouse = warehouse) -> None:
                warehouse.read("verdicts", columns=columns)

            with context():
                steps: dict[str, Callable[[], None]] = {
                    "write": write,
                    "first read, one column": lambda: read(["episode_id"]),
                    "first read": read,
                    "next read": read,
                    "next read, one column": lambda: read(["episode_id"]),
                }
                for step, act in steps.items():
                    if step.startswith("first"):
                        data_files._CHECKED.clear()
                        table_log._CHECKED.clear()
                    began, wall = time.process_time(), time.perf_counter()
                    act()
                    for unit, value in (("cpu_s", time.process_time() - began), ("wall_s", time.perf_counter() - wall)):
                        key = f"{step} {unit}"
                        measured[key] = min(measured.get(key, value), value)
            num_bytes = sum(path.stat().st_size for path in warehouse.folder("verdicts").rglob("*.parquet"))
        results.append({"checks": name, "rows": num_rows, "bytes": num_bytes} | measured)
    return results


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cost", type=int, metavar="ROWS", help="measure what checking costs on a table of so many rows")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as scratch:
        if options.cost:
            results = cost(Path(scratch), options.cost)
            table = Table("seconds", "without", "with", "ratio")
            for key in [key for key in results[0] if key.endswith("_s")]:
                without, checked = results[0][key], results[1][key]
                table.add_row(key, f"{without:.4f}", f"{checked:.4f}", f"{checked / max(without, 1e-9):.2f}")
        else:
            results = flips(Path(scratch), options.flips, options.seed)
            counts = Counter((result["kind"], result["outcome"]) for result in results)
            table = Table("file", NOTICED, SAME, SILENT, OTHER)
            for kind in sorted({result["kind"] for result in results}):
                table.add_row(kind, *(str(counts[kind, outcome]) for outcome in (NOTICED, SAME, SILENT, OTHER)))
            table.add_row("all", *(str(sum(counts[key] for key in counts if key[1] == what)) for what in (NOTICED, SAME, SILENT, OTHER)))
    console.print(table)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
