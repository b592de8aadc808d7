"""The report: HTML files that show what the wheel did, with no address outside themselves. One page for all iterations, one for each, one
for each training run; they link to each other and lie in one folder.

What they say is report_data.py, report_gains.py, report_runs.py and report_episodes.py; pictures are warehouse/charts.py and
warehouse/run_charts.py; how it looks is report*.html. All is read from the tables, so any old iteration can be reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import duckdb
import jinja2
from markupsafe import Markup

from pipelines import report_data, report_gains, report_runs
from pipelines.report_episodes import trajectories
from warehouse import charts, run_charts
from warehouse.errors import ConfigError
from warehouse.home import Home, atomic_write
from warehouse.iterations_graph import iterations_graph
from warehouse.merge_report import mixtures_chart
from warehouse.query import connect
from warehouse.run_charts import page_name
from warehouse.svg import STYLE
from warehouse.tables import Warehouse

TEMPLATES = Path(__file__).parent
INDEX = "index.html"


def build_report(warehouse: Warehouse, home: Home, output: Path) -> Path:
    """Write the report of everything in the warehouse to `output`, and beside it a page for each iteration and each training run, each
    whole or not at all; returns `output`. An empty warehouse gives a page that says so."""
    environment = _environment(output.name)
    with connect(warehouse) as con:
        keys, runs = report_data.iterations(con), report_runs.runs(con)
        for key in keys:
            _write(environment, "report_iteration.html", output.parent / page_name(key), _iteration(con, key, keys))
        for run in runs:
            _write(environment, "report_run.html", output.parent / page_name(run.iteration, run.run), _run(con, run))
        return _write(environment, "report.html", output, _everything(con, warehouse, home, keys, runs))


def build_iteration(warehouse: Warehouse, iteration: str, folder: Path) -> Path:
    """Write the page of an iteration and of its training runs into `folder`. Raises ConfigError for an iteration that made nothing."""
    environment = _environment(INDEX)
    with connect(warehouse) as con:
        keys = report_data.iterations(con)
        if iteration not in keys:
            raise ConfigError(f"there is no iteration {iteration!r} to report; there are {', '.join(keys) or 'none yet'}")
        for run in report_runs.runs(con, iteration):
            _write(environment, "report_run.html", folder / page_name(iteration, run.run), _run(con, run))
        return _write(environment, "report_iteration.html", folder / page_name(iteration), _iteration(con, iteration, keys))


def build_run(warehouse: Warehouse, name: str, folder: Path) -> Path:
    """Write the page of one training run, named ITERATION/RUN such as 0002/rl_forms, into `folder`. Raises ConfigError for one that left
    no curves."""
    with connect(warehouse) as con:
        runs = report_runs.runs(con)
        found = next((run for run in runs if f"{run.iteration}/{run.run}" == name), None)
        if found is None:
            known = ", ".join(f"{run.iteration}/{run.run}" for run in runs) or "none yet"
            raise ConfigError(f"there is no training run {name!r} to report; there are {known}")
        page = folder / page_name(found.iteration, found.run)
        return _write(_environment(INDEX), "report_run.html", page, _run(con, found))


def _environment(index: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        index=index, page_name=page_name, role_name=charts.role_name, split=report_data.REPORTED_SPLIT, svg=_svg, svg_style=_svg(STYLE),
        interval_mark=lambda estimate: _svg(run_charts.interval_mark(estimate)),
    )  # fmt: skip
    return environment


def _write(environment: jinja2.Environment, template: str, output: Path, content: dict[str, object]) -> Path:
    atomic_write(output, environment.get_template(template).render(**content).encode())
    return output


def _everything(
    con: duckdb.DuckDBPyConnection, warehouse: Warehouse, home: Home, keys: list[str], runs: list[report_runs.RunName]
) -> dict[str, object]:
    seconds = report_data.stage_seconds(home)
    order = {"ct_model": 0, "sft_model": 1}
    names = sorted(sorted({run.run for run in runs}), key=lambda run: order.get(run, 2))
    return {
        "iterations": keys,
        "runs": runs,
        "tiles": report_data.tiles(con, seconds) if keys else [],
        "success": _svg(charts.success_by_stage(con, split=report_data.REPORTED_SPLIT)),
        "successes": charts.stage_successes(con),
        "heat": report_data.heat(con),
        "releases": report_data.releases(con),
        "flows": [_svg(charts.routing_flow(con, key)) for key in keys],
        "mixtures": _drawn(charts.mixture_bars(con, kind) for kind in ("sft", "ct")),
        "annotations": _drawn([charts.annotation_bars(con)]),
        "curves": _drawn(charts.iteration_curves(con, run) for run in names),
        "trajectories": {key: trajectories(con, key) for key in keys},
        "lineage": _svg(iterations_graph(con).to_svg()) if keys else "",
        "times": _drawn([charts.time_bars(seconds)]),
        "tables": report_data.tables(con, warehouse.versions()),
    }


def _iteration(con: duckdb.DuckDBPyConnection, key: str, keys: list[str]) -> dict[str, object]:
    gains = report_gains.iteration_gains(con, key, report_data.REPORTED_SPLIT)
    by_rl = [(gain.domain, gain.gain.difference) for gain in gains.gains if gain.gain is not None]
    runs = report_runs.runs(con, key)
    return {
        "iteration": key,
        "iterations": keys,
        "gains": gains,
        "tiles": report_gains.tiles(gains),
        "gain_chart": _svg(run_charts.gain_chart([(domain, of.mean, of.interval) for domain, of in by_rl])) if by_rl else "",
        "mixtures_chart": _svg(mixtures_chart(gains.mixtures)),
        "budget_chart": _svg(run_charts.budget_chart(gains.budgets)),
        "runs": runs,
        "curves": _drawn(charts.training_curves(con, key, run.run) for run in runs),
    }


def _run(con: duckdb.DuckDBPyConnection, name: report_runs.RunName) -> dict[str, object]:
    return {"run": report_runs.run_data(con, name), "runs": report_runs.runs(con, name.iteration)}


def _drawn(pictures: Iterable[str]) -> list[Markup]:
    return [_svg(picture) for picture in pictures if picture]


def _svg(picture: str) -> Markup:
    """Our own drawing, whose texts are escaped where it is made."""
    return Markup(picture)
