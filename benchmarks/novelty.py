"""How much of what homes were reported on is novel, task by task, and what policies solve of that.

    python -m benchmarks.novelty .bench/iterations/quickstart-0 .bench/iterations/quickstart-1 --split holdout --json novelty.json

Reads homes, plays nothing. An instance is novel where no first screen like its own was learned from (warehouse/evaluation/novelty.py);
homes of before splits were by content have others. Success is the mean over tasks, on all instances and on the novel ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from warehouse.core.home import Home, atomic_write
from warehouse.evaluation.evaluations import REPORTED_SPLIT, evaluations
from warehouse.evaluation.novelty import Novelty, novel_counts, novelty
from warehouse.evaluation.statistics import macro_average
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

HOME = Path(".bench/iterations/quickstart-0")
"""The first home of iteration_curves.py."""


def figures(home: Home, split: str) -> list[dict[str, Any]]:
    """An entry an evaluated iteration: its novelty, and each policy's success with and without what is not novel."""
    found, warehouse = [], Warehouse(home)
    with connect(warehouse, tables=["evaluations"]) as con:
        every = evaluations(con, split=split)
    for iteration in dict.fromkeys(one.iteration for one in every):
        novel, counts = novelty(warehouse, iteration, split), novel_counts(warehouse, iteration, split)
        policies = {
            one.role: {"all": asdict(one.success), "novel": asdict(macro_average(counts[one.role])) if counts.get(one.role) else None}
            for one in every
            if one.iteration == iteration
        }
        found.append({"home": home.root.name, "iteration": iteration, "novelty": novel, "policies": policies})
    return found


def show(found: Sequence[dict[str, Any]], console: Console) -> None:
    drawn = Table(title="Greedy success, mean over tasks")
    for column in ("home", "iteration", "policy", "all", "episodes", "novel", "episodes"):
        drawn.add_column(column)
    for each in found:
        for role, of in each["policies"].items():
            novel = of["novel"]
            cells = ("", "") if novel is None else (f"{novel['mean']:.3f}", str(novel["num_episodes"]))
            drawn.add_row(each["home"], each["iteration"], role, f"{of['all']['mean']:.3f}", str(of["all"]["num_episodes"]), *cells)
    console.print(drawn)
    for each in found:
        novel_of: Novelty | None = each["novelty"]
        if novel_of is not None:
            console.print(f"{each['home']} {each['iteration']}: {novel_of.summary}", highlight=False)
    newest = next((each["novelty"] for each in reversed(found) if each["novelty"] is not None), None)
    if newest is not None:
        console.print(newest.table, highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("homes", nargs="*", type=Path, default=[HOME], help=f"homes of `flywheel run` (default: {HOME})")
    parser.add_argument("--split", default=REPORTED_SPLIT, help=f"default: {REPORTED_SPLIT}")
    parser.add_argument("--json", type=Path, help="write the figures")
    options = parser.parse_args()
    found = [each for path in options.homes for each in figures(Home(path.absolute()), options.split)]
    show(found, Console())
    if options.json is not None:
        reported = [{**each, "novelty": None if each["novelty"] is None else asdict(each["novelty"])} for each in found]
        atomic_write(options.json, (json.dumps(reported, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
