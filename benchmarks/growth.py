"""What a home's history costs: commands, the report of one more iteration, and the work of an iteration, at 10 to 200 iterations.

Homes are synthetic (benchmarks/common/history.py), of 5,000 episodes an iteration: a million at 200. One home grows, and each size is a
copy of it. Each command is the real program in a process of its own, the least of --repeat runs; `start` is the same command in an empty
home, the interpreter with its imports. The report is built whole, then an iteration is added and it is built again. Work of an iteration is
that of the newest one, start-up left out. Processor seconds are those of all threads; the law is the exponent of N in a straight line
through the logarithms of the processor seconds without the start. A figure below FLOOR_S has none: it is the start that is measured there.

    python -m benchmarks.growth --json .bench/growth.json
    python -m benchmarks.growth --iterations 10 25 --only commands
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.history import Size, make_history
from benchmarks.ours.history_work import WORK
from benchmarks.routing_scale import run
from pipelines.reporting import build, overview
from pipelines.reporting import runs as report_runs
from warehouse.core.home import Home, page_name
from warehouse.reporting.iteration_summaries import summaries
from warehouse.storage.catalogue import TABLES
from warehouse.storage.files.table_files import Listing
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

SIZES = (10, 25, 50, 100, 200)
EPISODES = 5_000
FLOOR_S = 0.05
MOST_WHOLE = 25
"""Iterations up to which all pages are made to measure what one more costs; of longer homes their heads alone."""
KINDS = ("commands", "walks", "report", "work")
WALKS = {
    "lineage of the seed, down": ["lineage", "0000/seed_policy", "--direction", "down"],
    "lineage of all, two generations": ["lineage", "0001/released_policy", "--all", "--depth", "2"],
}
"""What reads all tables at each generation."""


def commands(home: Path, newest: str) -> dict[str, list[str]]:
    """What people ask of a home, by name."""
    with connect(Warehouse(Home(home)), tables=["episodes"], iterations=[newest]) as con:
        query = "select min(episode_id) from episodes where iteration = ? and stage = 'rollouts'"
        (episode,) = con.execute(query, [newest]).fetchone() or ("none",)
    return {
        "status": ["status", "--json"],
        "status, as text": ["status"],
        "lineage of a release": ["lineage", f"{newest}/released_policy"],
        "sql of one iteration": ["sql", f"select outcome, count(*) from episodes where iteration = '{newest}' group by all"],
        "sql as of iteration 5": ["sql", "select outcome, count(*) from episodes where iteration = '0005' group by all", "--as-of", "0005"],
        "explain": ["explain", str(episode)],
    }


def measure(arguments: Sequence[str], home: Path, *, may_fail: bool = False, repeat: int = 1) -> dict[str, float]:
    """Seconds and peak memory of one command of the program, of the run that took the least of the processor. An empty home has nothing
    that some ask for: there it `may_fail`."""
    return min((_measured(arguments, home, may_fail) for _ in range(repeat)), key=lambda row: row["cpu_s"])


def _measured(arguments: Sequence[str], home: Path, may_fail: bool) -> dict[str, float]:
    program = [sys.executable, "-m", "pipelines.cli", *arguments, "--home", str(home)]
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        process = subprocess.Popen(program, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.perf_counter() - began
        if process.returncode and not may_fail:
            output.seek(0)
            raise SystemExit(f"{arguments} failed: {output.read().decode()[-2000:]}")
    return {"wall_s": wall_s, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss / 1024}


def made_home(root: Path, num: int, arguments: argparse.Namespace) -> Path:
    """A home of that size: a copy of one that grows, or, where that is longer already, made by itself."""
    home, grown = root / f"home-{num}", root / "grown"
    if (home / "ready").exists():
        return home
    shutil.rmtree(home, ignore_errors=True)
    if (grown / "busy").exists():  # killed while it grew
        shutil.rmtree(grown)
    has = _num_iterations(grown)
    source, begin = (grown, has) if has <= num else (home, 0)
    source.mkdir(parents=True, exist_ok=True)
    (source / "busy").touch()
    size = Size(iterations=num, episodes=arguments.episodes)
    for _ in make_history(Home(source), size, begin=begin, together=arguments.together):
        pass
    (source / "busy").unlink()
    if source != home:
        shutil.copytree(source, home)
    (home / "ready").touch()
    return home


def _num_iterations(home: Path) -> int:
    return max((int(path.name) for path in (home / "work").glob("[0-9]*")), default=0)


def measure_home(root: Path, num: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    began = time.process_time()
    home = made_home(root, num, arguments)
    rows: list[dict[str, Any]] = [{"what": "home made", "kind": "home", "cpu_s": time.process_time() - began}]
    if "commands" in arguments.only:
        rows += _commands(commands(home, f"{num:04d}"), home, arguments)
    if "walks" in arguments.only:
        rows += _commands(WALKS, home, arguments)
    if "report" in arguments.only:
        rows += _reports(home, num, arguments)
    if "work" in arguments.only:
        ours = [sys.executable, "-m", "benchmarks.ours.history_work", str(home)]
        rows += [{"what": name, "kind": "work", "start_s": 0.0} | run(name, [*ours, name]) for name in WORK]
    return [row | {"iterations": num, "load": os.getloadavg()[0]} for row in rows]


def _commands(asked: dict[str, list[str]], home: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Each once before it is measured, so that what is kept beside the tables is there."""
    rows = []
    with tempfile.TemporaryDirectory() as empty:
        for name, words in asked.items():
            start = measure(words, Path(empty), may_fail=True, repeat=arguments.repeat)["cpu_s"]
            measure(words, home)
            rows.append({"what": name, "kind": "command", "start_s": start} | measure(words, home, repeat=arguments.repeat))
    return rows


def _reports(home: Path, num: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """On a copy, which an iteration is added to."""
    copy = home.with_name("reported")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(home, copy)
    shutil.rmtree(copy / "cache", ignore_errors=True)
    report = ["report", "--output", str(copy / "report" / "index.html")]
    with tempfile.TemporaryDirectory() as empty:
        start = measure(["report", "--output", f"{empty}/report/index.html"], Path(empty), repeat=arguments.repeat)["cpu_s"]
    found = {}
    if num <= MOST_WHOLE:
        found["report, all of it"] = measure(report, copy)
    else:
        _write_heads(Home(copy), copy / "report" / "index.html")
        measure(report, copy)
    found["report, nothing new"] = measure(report, copy, repeat=arguments.repeat)
    for _ in make_history(Home(copy), Size(iterations=num + 1, episodes=arguments.episodes), begin=num):
        pass
    found["report of one more"] = measure(report, copy)
    shutil.rmtree(copy)
    return [{"what": name, "kind": "command", "start_s": start} | row for name, row in found.items()]


def _write_heads(home: Home, index: Path) -> None:
    """In the place of every page of an iteration or a run, one that says what it is to be made of: no more of it is read."""
    warehouse = Warehouse(home)
    listing = Listing(warehouse, TABLES)
    keys, runs = overview.iterations(listing), report_runs.runs(summaries(warehouse, listing))
    site = build._Site(warehouse, listing, build._environment(index.name), index, keys, runs, overview.checks(home, index.parent))
    index.parent.mkdir()
    for key in keys:
        for run_name, digest in site._stale(key).items():
            (index.parent / page_name(key, run_name or None)).write_text(f'<meta name="made-of" content="{digest}">')


def law(points: Sequence[tuple[int, float]]) -> float | None:
    """The exponent b of cost = a · N^b by least squares on the logarithms; None for costs too small to measure."""
    usable = [(math.log(num), math.log(cost)) for num, cost in points if cost >= FLOOR_S]
    if len(usable) < 2:
        return None
    mean_x, mean_y = (sum(values) / len(usable) for values in zip(*usable, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in usable)
    return sum((x - mean_x) * (y - mean_y) for x, y in usable) / spread if spread else None


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    sizes = list(dict.fromkeys(row["iterations"] for row in rows))
    table = Table("what", "start", *(f"{num} its, CPU s" for num in sizes), "wall s", "peak MB", "N^")
    for name in dict.fromkeys(row["what"] for row in rows):
        of = {row["iterations"]: row for row in rows if row["what"] == name}
        exponent = law([(num, row["cpu_s"] - row.get("start_s", 0.0)) for num, row in of.items()])
        last = of[max(of)]
        table.add_row(
            name,
            f"{last.get('start_s', 0):.1f}",
            *(f"{of[num]['cpu_s']:.2f}" if num in of else "" for num in sizes),
            f"{last.get('wall_s', 0):.1f}",
            f"{last.get('peak_mb', 0):,.0f}",
            "" if exponent is None else f"{exponent:.2f}",
        )
    console.print(table)
    console.print(f"load of the machine {min(row['load'] for row in rows):.0f} to {max(row['load'] for row in rows):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(".bench/growth"))
    parser.add_argument("--iterations", type=int, nargs="+", default=SIZES)
    parser.add_argument("--episodes", type=int, default=EPISODES, help="in each iteration")
    parser.add_argument("--together", type=int, default=1, help="iterations whose rows are committed at once: homes are made sooner")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each command")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for num in arguments.iterations:
        rows += measure_home(arguments.root, num, arguments)
        show(rows, Console(width=160))
        if arguments.json:
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
