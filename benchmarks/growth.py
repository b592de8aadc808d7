"""What a home's history costs: commands, the report of one more iteration, and the work of an iteration, at 10 to 200 iterations.

Homes are synthetic (benchmarks/common/history.py), of 5,000 episodes an iteration: a million at 200. Each command is the real program in a
process of its own; `start` is the same command in an empty home, the interpreter with its imports. The report is built whole, then an
iteration is added and it is built again. Work of an iteration is that of the newest one, start-up left out. Processor seconds are those of
all threads; the law is the exponent of N in a straight line through the logarithms of the processor seconds without the start. A figure
below FLOOR_S has none: it is the start that is measured there.

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
from warehouse.home import Home
from warehouse.query import connect
from warehouse.tables import Warehouse

SIZES = (10, 25, 50, 100, 200)
EPISODES = 5_000
FLOOR_S = 0.05


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
        "explain": ["explain", str(episode)],
    }


def measure(arguments: Sequence[str], home: Path, *, may_fail: bool = False) -> dict[str, float]:
    """Seconds and peak memory of one command of the program. An empty home has nothing that some ask for: there it `may_fail`."""
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


def measure_home(root: Path, num: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    home = root / f"home-{num}"
    began = time.process_time()
    if not (home / "ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        for _ in make_history(Home(home), Size(iterations=num, episodes=arguments.episodes)):
            pass
        (home / "ready").touch()
    rows: list[dict[str, Any]] = [{"what": "home made", "kind": "home", "cpu_s": time.process_time() - began}]
    if "commands" in arguments.only:
        rows += _commands(home, num, arguments)
    if "work" in arguments.only:
        ours = [sys.executable, "-m", "benchmarks.ours.history_work", str(home)]
        rows += [{"what": name, "kind": "work", "start_s": 0.0} | run(name, [*ours, name]) for name in WORK]
    return [row | {"iterations": num, "load": os.getloadavg()[0]} for row in rows]


def _commands(home: Path, num: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows, newest = [], f"{num:04d}"
    with tempfile.TemporaryDirectory() as empty:
        report = ["report", "--output", str(home / "report" / "index.html")]
        shutil.rmtree(home / "report", ignore_errors=True)
        shutil.rmtree(home / "cache", ignore_errors=True)
        start = measure(["report", "--output", f"{empty}/report/index.html"], Path(empty))["cpu_s"]
        rows.append({"what": "report, all of it", "kind": "command", "start_s": start} | measure(report, home))
        for name, words in commands(home, newest).items():
            start = measure(words, Path(empty), may_fail=True)["cpu_s"]
            measure(words, home)
            rows.append({"what": name, "kind": "command", "start_s": start} | measure(words, home))
        start = measure(report, Path(empty))["cpu_s"]
        rows.append({"what": "report, nothing new", "kind": "command", "start_s": start} | measure(report, home))
        if not (home / "one-more").exists():
            for _ in make_history(Home(home), Size(iterations=num + 1, episodes=arguments.episodes), begin=num):
                pass
            (home / "one-more").touch()
            rows.append({"what": "report of one more", "kind": "command", "start_s": start} | measure(report, home))
    return rows


def law(points: Sequence[tuple[int, float]]) -> float | None:
    """The exponent b of cost = a · N^b by least squares on the logarithms; None for costs too small to tell."""
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
            name, f"{last.get('start_s', 0):.1f}", *(f"{of[num]['cpu_s']:.2f}" if num in of else "" for num in sizes),
            f"{last.get('wall_s', 0):.1f}", f"{last.get('peak_mb', 0):,.0f}", "" if exponent is None else f"{exponent:.2f}",
        )  # fmt: skip
    console.print(table)
    console.print(f"load of the machine {min(row['load'] for row in rows):.0f} to {max(row['load'] for row in rows):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(".bench/growth"))
    parser.add_argument("--iterations", type=int, nargs="+", default=SIZES)
    parser.add_argument("--episodes", type=int, default=EPISODES, help="in each iteration")
    parser.add_argument("--only", nargs="+", choices=("commands", "work"), default=("commands", "work"))
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
