"""Tables and pictures in an object store beside the same on a disk: how long a commit, a read and pictures take, and how many requests.

The store is moto's server on this machine, so the times are of this code and that server, not of a network: `--delay-ms` has each request
take longer, as it does from a machine to S3. All is measured in turn, on the disk and in the store, in each of several rounds.

    python -m benchmarks.object_store                     # two minutes
    python -m benchmarks.object_store --delay-ms 20
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.common.object_store import BUCKET, an_object_store, environment
from tests.faulty_proxy import Fault, Proxy, a_faulty_proxy
from warehouse.core.home import Home
from warehouse.core.identity import bytes_id
from warehouse.core.store import Store, _client_of
from warehouse.storage.files import data_files
from warehouse.storage.log import table_log
from warehouse.storage.screenshots.stored import pictures
from warehouse.storage.sql import query
from warehouse.storage.tables import Warehouse

COMMITS, ROWS = 20, 200
PICTURES, PICTURE_BYTES, PICTURES_AT_ONCE = 200, 20_000, 20


def measured(warehouse: Warehouse, other: Warehouse, seed: int, count: Callable[[], object] = lambda: None) -> dict[str, tuple[float, int]]:
    """Milliseconds of each operation, and how many of them that were. `other` reads what `warehouse` has written: on the disk it is the
    same, with a store a host that has no copies yet."""
    drawn = random.Random(seed)
    found = {}

    def timed(name: str, num: int, do: Callable[[], object]) -> None:
        count()
        started = time.perf_counter()
        do()
        found[name] = ((time.perf_counter() - started) * 1000 / num, num)
        count()

    def append() -> None:
        for number in range(COMMITS):
            warehouse.append_partition("verdicts", _verdicts(number), iteration=f"{seed:04d}", stage="verdicts")

    def forget_checks() -> None:
        data_files._CHECKED.clear()
        table_log._CHECKED.clear()

    images = [drawn.randbytes(PICTURE_BYTES) for _ in range(PICTURES)]
    ids = [bytes_id("screen", data) for data in images]
    rows = [
        {"screenshot_id": id_, "format": "png", "width_px": 1, "height_px": 1, "data": data} for id_, data in zip(ids, images, strict=True)
    ]

    def add() -> None:
        for begin in range(0, PICTURES, PICTURES_AT_ONCE):
            warehouse.add_screenshots(rows[begin : begin + PICTURES_AT_ONCE])

    totals = "select count(*), sum(score) from verdicts"
    timed(f"append {ROWS} rows", COMMITS, append)
    forget_checks()
    timed("first query", 1, lambda: query.run(other, totals))
    timed("query again", 10, lambda: [query.run(other, totals) for _ in range(10)])
    timed(f"add {PICTURES_AT_ONCE} pictures", PICTURES // PICTURES_AT_ONCE, add)
    forget_checks()
    timed(f"first look at {PICTURES_AT_ONCE} pictures", 1, lambda: pictures(other, ids[:PICTURES_AT_ONCE]))
    timed("look again", 5, lambda: [pictures(other, ids[:PICTURES_AT_ONCE]) for _ in range(5)])
    return found


def _verdicts(number: int) -> list[dict[str, Any]]:
    row = {"judge": "j", "judge_version": "1", "kind": "verdict", "origin": "verifier", "score": 1.0, "threshold": 0.5, "passed": True}
    return [row | {"reasons": ["because"], "episode_id": f"ep-{number}-{index}"} for index in range(ROWS)]


def in_turn(rounds: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    """By operation: milliseconds on the disk and in the store, of each round."""
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        disk = Warehouse(Home(folder / f"disk-{number}", None))
        for name, (ms, _) in measured(disk, disk, number).items():
            found.setdefault(name, {"disk": [], "store": []})["disk"].append(ms)
        for name, (ms, _) in measured(*_hosts(folder, str(number)), number).items():
            found[name]["store"].append(ms)
    return found


def requests(proxy: Proxy, folder: Path) -> dict[str, float]:
    """How many requests one operation is, counted by the proxy that they go through."""
    counts: list[int] = []
    found = measured(*_hosts(folder, "counted"), 0, lambda: counts.append(len(proxy.met)))
    return {name: (counts[2 * place + 1] - counts[2 * place]) / num for place, (name, (_, num)) in enumerate(found.items())}


def _hosts(folder: Path, name: str) -> tuple[Warehouse, Warehouse]:
    store = Store.of(f"s3://{BUCKET}/{name}")
    return Warehouse(Home(folder / f"one-{name}", store)), Warehouse(Home(folder / f"other-{name}", store))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of each request")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, an_object_store(Path(name) / "log") as server, a_faulty_proxy(server.port) as proxy:

        def slowly(method: str, path: str) -> Fault:
            time.sleep(options.delay_ms / 1000)
            return Fault.NONE

        proxy.decide = slowly
        os.environ.update(environment(proxy.address if options.delay_ms else server.address))
        found = in_turn(options.rounds, Path(name))
        os.environ.update(environment(proxy.address))
        _client_of.cache_clear()
        counted = requests(proxy, Path(name))
    show(found, counted, options.delay_ms)
    if options.json is not None:
        options.json.write_text(json.dumps({name: of | {"requests": counted[name]} for name, of in found.items()}, indent=2))


def show(found: dict[str, dict[str, list[float]]], counted: dict[str, float], delay_ms: float) -> None:
    table = RichTable(
        "operation", "disk, ms", "store, ms", "ratio", "requests", title=f"{delay_ms:g} ms a request; median (smallest – largest)"
    )
    for name, of in found.items():
        ratios = [store / disk for disk, store in zip(of["disk"], of["store"], strict=True)]
        cells = [f"{statistics.median(each):.1f} ({min(each):.1f} – {max(each):.1f})" for each in (of["disk"], of["store"], ratios)]
        table.add_row(name, *cells, f"{counted[name]:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
