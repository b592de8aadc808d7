"""The report: HTML files that show what the wheel did, with no address outside themselves. One page for all iterations, one for each, one
for each training run; they link to each other and lie in one folder.

What they say is overview.py, gains.py, runs.py and episodes.py; pictures are warehouse/charts.py and
warehouse/*_charts.py; how it looks is *.html. All is read from the tables, so any old iteration can be reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import duckdb
import jinja2
from markupsafe import Markup

from agent.judging_reports import judge_figures
from pipelines.report import gains as gains_of
from pipelines.report import overview
from pipelines.report import runs as runs_of
from pipelines.report.episodes import trajectories
from warehouse import charts, gain_charts, run_charts
from warehouse.errors import ConfigError
from warehouse.evaluations import REPORTED_SPLIT, evaluations
from warehouse.home import Home, atomic_write, page_name
from warehouse.iterations_graph import iterations_graph
from warehouse.merge_report import mixtures_chart
from warehouse.query import connect
from warehouse.stages import rank, role_name
from warehouse.svg import STYLE
from warehouse.tables import Warehouse

TEMPLATES = Path(__file__).parent
INDEX = "index.html"


def build_report(warehouse: Warehouse, home: Home, output: Path) -> Path:
    """Write the report of everything in the warehouse to `output`, and beside it a page for each iteration and each training run, each
    whole or not at all; returns `output`. An empty warehouse gives a page that says so."""
    environment = _environment(output.name)
    with connect(warehouse) as con:
        keys, runs = overview.iterations(con), runs_of.runs(con)
        for key in keys:
            _write(environment, "iteration.html", output.parent / page_name(key), _iteration(con, home, key, keys, output.parent))
        for run in runs:
            _write(environment, "run.html", output.parent / page_name(run.iteration, run.run), _run(con, run))
        return _write(environment, "report.html", output, _everything(con, warehouse, home, keys, runs, output.parent))


def build_iteration(warehouse: Warehouse, iteration: str, folder: Path) -> Path:
    """Write the page of an iteration and of its training runs into `folder`. Raises ConfigError for an iteration that made nothing."""
    environment = _environment(INDEX)
    with connect(warehouse) as con:
        keys = overview.iterations(con)
        if iteration not in keys:
            raise ConfigError(f"there is no iteration {iteration!r} to report; there are {', '.join(keys) or 'none yet'}")
        for run in runs_of.runs(con, iteration):
            _write(environment, "run.html", folder / page_name(iteration, run.run), _run(con, run))
        content = _iteration(con, warehouse.home, iteration, keys, folder)
        return _write(environment, "iteration.html", folder / page_name(iteration), content)


def build_run(warehouse: Warehouse, name: str, folder: Path) -> Path:
    """Write the page of one training run, named ITERATION/RUN such as 0002/rl_forms, into `folder`. Raises ConfigError for one that left
    no curves."""
    with connect(warehouse) as con:
        runs = runs_of.runs(con)
        found = next((run for run in runs if f"{run.iteration}/{run.run}" == name), None)
        if found is None:
            known = ", ".join(f"{run.iteration}/{run.run}" for run in runs) or "none yet"
            raise ConfigError(f"there is no training run {name!r} to report; there are {known}")
        page = folder / page_name(found.iteration, found.run)
        return _write(_environment(INDEX), "run.html", page, _run(con, found))


def _environment(index: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        index=index, page_name=page_name, role_name=role_name, split=REPORTED_SPLIT, svg=_svg, svg_style=_svg(STYLE),
        interval_mark=lambda estimate: _svg(gain_charts.interval_mark(estimate)),
    )  # fmt: skip
    return environment


def _write(environment: jinja2.Environment, template: str, output: Path, content: dict[str, object]) -> Path:
    atomic_write(output, environment.get_template(template).render(**content).encode())
    return output


def _everything(
    con: duckdb.DuckDBPyConnection, warehouse: Warehouse, home: Home, keys: list[str], runs: list[runs_of.RunName], folder: Path
) -> dict[str, object]:
    seconds = overview.stage_seconds(home)
    names = sorted({run.run for run in runs}, key=rank)
    return {
        "iterations": keys,
        "runs": runs,
        "tiles": overview.tiles(con, seconds) if keys else [],
        "success": _svg(charts.success_by_stage(con)),
        "successes": evaluations(con),
        "heat": overview.heat(con),
        "releases": overview.releases(con),
        "flows": [_svg(charts.routing_flow(con, key)) for key in keys],
        "mixtures": _drawn(charts.mixture_bars(con, kind) for kind in ("sft", "ct")),
        "annotations": _drawn([charts.annotation_bars(con)]),
        "curves": _drawn(run_charts.iteration_curves(con, run) for run in names),
        "trajectories": {key: trajectories(con, key) for key in keys},
        "lineage": _svg(iterations_graph(con).to_svg()) if keys else "",
        "times": _drawn([charts.time_bars(seconds)]),
        "tables": overview.tables(con, warehouse.versions()),
        "checks": overview.checks(home, folder),
    }


def _iteration(con: duckdb.DuckDBPyConnection, home: Home, key: str, keys: list[str], folder: Path) -> dict[str, object]:
    gains = gains_of.iteration_gains(con, key, REPORTED_SPLIT)
    by_rl = [(gain.domain, gain.gain.difference) for gain in gains.gains if gain.gain is not None]
    runs = runs_of.runs(con, key)
    return {
        "iteration": key,
        "iterations": keys,
        "gains": gains,
        "tiles": gains_of.tiles(gains),
        "gain_chart": _svg(gain_charts.gain_chart([(domain, of.mean, of.interval) for domain, of in by_rl])) if by_rl else "",
        "mixtures_chart": _svg(mixtures_chart(gains.mixtures)),
        "budget_chart": _svg(_budget_chart(gains)),
        "judges": judge_figures(con, key),
        "runs": runs,
        "checks": overview.checks(home, folder, key),
        "curves": _drawn(run_charts.training_curves(con, key, run.run) for run in runs),
    }


def _budget_chart(gains: gains_of.IterationGains) -> str:
    curves = {name: [(str(budget), success) for budget, success in curve] for name, curve in gains.budgets.items()}
    return gain_charts.budget_chart(curves, "Greedy success within a step budget")


def _run(con: duckdb.DuckDBPyConnection, name: runs_of.RunName) -> dict[str, object]:
    return {"run": runs_of.run_data(con, name), "runs": runs_of.runs(con, name.iteration)}


def _drawn(pictures: Iterable[str]) -> list[Markup]:
    return [_svg(picture) for picture in pictures if picture]


def _svg(picture: str) -> Markup:
    """Our own drawing, whose texts are escaped where it is made."""
    return Markup(picture)  # nosec B704 # drawn here, its texts escaped (warehouse/svg.py)
