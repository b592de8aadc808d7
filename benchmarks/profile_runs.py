"""What one iteration of a profile gives, by domain, and what a merge keeps of each specialist.

    full       three iterations of the quickstart, as in `make run`: their time
    sandbox    one iteration of the profile sandbox
    generated  one iteration of the profile generated
    joint      one iteration of the quickstart with one more RL run on both domains together, and larger steps than it takes

Greedy success on holdout, on novel instances where episodes were kept (warehouse/evaluation/novelty.py). A specialist is the policy
`rl_DOMAIN`; what the merge keeps of it is its success on that domain over the specialist's. Homes lie under .bench/profiles; interrupted, a
run goes on, but its time is reported only where one launch did all of it.

    python -m benchmarks.profile_runs sandbox generated joint full --publish
    python -m benchmarks.profile_runs --homes .bench/iterations/quickstart-0 .bench/iterations/quickstart-1     of homes of earlier runs
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.homes import launches, run_flywheel, seconds
from benchmarks.common.provenance import MEASURED, Publish, publish
from warehouse.core.home import Home
from warehouse.evaluation.novelty import reported_counts
from warehouse.evaluation.statistics import TaskCount, macro_average, wilson
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

ROOT = Path(".bench/profiles")
RUNS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "full": (["--iterations", "3", "--profile", "quickstart"], {}),
    "sandbox": (["--iterations", "1", "--profile", "sandbox"], {}),
    "generated": (["--iterations", "1", "--profile", "generated"], {}),
    "joint": (
        ["--iterations", "1", "--profile", "quickstart"],
        {"tasks.joint": [["pointing", "forms"]], "rl.learning_rate": 5e-4, "rl.epochs": 3, "rl.minibatch_episodes": 32, "rl.max_kl": 0.1},
    ),
}
"""Options of `flywheel run`, and settings."""
MERGED, SPECIALIST = "merged_policy", "rl_"


def policies_of(home: Home) -> dict[str, dict[str, Any]]:
    """By iteration and role: what was solved of each domain, and the mean over tasks with its error and interval."""
    counts: dict[tuple[str, str], list[TaskCount]] = {}
    warehouse = Warehouse(home)
    with connect(warehouse, tables=["evaluations"]) as con:
        domains = dict(con.execute("select distinct task_name, domain from evaluations").fetchall())
    for iteration, role, count in reported_counts(warehouse):
        counts.setdefault((iteration, role), []).append(count)
    found: dict[str, dict[str, Any]] = {}
    for (iteration, role), of_tasks in sorted(counts.items()):
        found.setdefault(iteration, {})[role] = _figures(of_tasks, domains)
    return found


def _figures(counts: Iterable[TaskCount], domains: Mapping[str, str]) -> dict[str, Any]:
    by_domain: dict[str, dict[str, int]] = {}
    for count in (counts := list(counts)):
        figures = by_domain.setdefault(domains[count.task], {"solved": 0, "episodes": 0})
        figures["solved"] += count.num_success
        figures["episodes"] += count.num_episodes
    whole = macro_average(counts)
    numbers = {"mean": whole.mean, "standard_error": whole.standard_error, "low": whole.interval.low, "high": whole.interval.high}
    return {"domains": by_domain, **{name: round(value, 3) for name, value in numbers.items()}}


def kept_by_merge(policies: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By iteration and domain: the merge's success over the specialist's, where that solved anything."""
    found: dict[str, dict[str, float]] = {}
    for iteration, of_roles in policies.items():
        for role, specialist in of_roles.items():
            domain = role.removeprefix(SPECIALIST)
            if role != domain and MERGED in of_roles and domain in specialist["domains"]:
                merged, own = (_rate(each["domains"][domain]) for each in (of_roles[MERGED], specialist))
                if own:
                    found.setdefault(iteration, {})[domain] = round(merged / own, 3)
    return found


def _rate(figures: Mapping[str, int]) -> float:
    return figures["solved"] / figures["episodes"]


def result_of(home: Home) -> dict[str, Any]:
    """The figures of a home that are shown and published."""
    took_s, policies = seconds(home), policies_of(home)
    minutes = {} if took_s is None else {"minutes": round(took_s / 60, 1)}
    return {"measured": launches(home), **minutes, "policies": policies, "kept_by_merge": kept_by_merge(policies)}


def show(name: str, result: Mapping[str, Any], console: Console) -> None:
    domains = sorted({domain for roles in result["policies"].values() for each in roles.values() for domain in each["domains"]})
    took = f", {result['minutes']} minutes" if "minutes" in result else ""
    table = Table(title=f"{name}{took}: solved holdout episodes (95 % interval)")
    for column in ("iteration", "policy", *domains, "mean over tasks"):
        table.add_column(column)
    for iteration, roles in result["policies"].items():
        for role, each in roles.items():
            cells = [_cell(each["domains"].get(domain)) for domain in domains]
            table.add_row(iteration, role, *cells, f"{each['mean']:.3f} ± {each['standard_error']:.3f}")
    console.print(table)
    for iteration, kept in result["kept_by_merge"].items():
        console.print(f"  {iteration}: the merge keeps " + ", ".join(f"{share:.1%} of rl_{domain}" for domain, share in kept.items()))


def _cell(figures: Mapping[str, int] | None) -> str:
    if figures is None:
        return ""
    interval = wilson(figures["solved"], figures["episodes"])
    return f"{figures['solved']}/{figures['episodes']} ({interval.low:.2f} to {interval.high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help=f"which of {', '.join(RUNS)} to run (default: all, unless --homes are given)")
    parser.add_argument("--homes", type=Path, nargs="*", default=[], help="homes of earlier runs, to report as well")
    parser.add_argument("--publish", action=Publish, help="put the figures into docs/measured/profile_runs.json")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.runs if name not in RUNS]:
        parser.error(f"no run is called {', '.join(unknown)}: there are {', '.join(RUNS)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console, results = Console(), {}
    for name in arguments.runs or ([] if arguments.homes else RUNS):
        home = Home((ROOT / name).absolute())
        run_flywheel(home, *RUNS[name], console)
        results[name] = result_of(home)
        show(name, results[name], console)
    for folder in arguments.homes:
        if not folder.is_dir():
            parser.error(f"{folder} is not a folder; name homes of `flywheel run`")
        results[folder.name] = result_of(Home(folder.absolute()))
        show(folder.name, results[folder.name], console)
    if arguments.publish:
        path = MEASURED / "profile_runs.json"
        kept = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else {}
        publish("profile_runs", {"runs": {**kept, **results}})


if __name__ == "__main__":
    main()
