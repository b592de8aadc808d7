"""The report: one HTML file that shows what the wheel did, with no address outside itself. What it says is report_data.py and
warehouse/charts.py, how it looks is report.html.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import jinja2
from markupsafe import Markup

from pipelines import report_data
from warehouse import charts
from warehouse.home import Home, atomic_write
from warehouse.iterations_graph import iterations_graph
from warehouse.query import connect
from warehouse.tables import Warehouse

TEMPLATE = Path(__file__).with_name("report.html")


def build_report(warehouse: Warehouse, home: Home, output: Path) -> Path:
    """Write the report of everything in the warehouse to `output`, whole or not at all; returns `output`. An empty warehouse gives a page
    that says so."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    atomic_write(output, page.render(**_content(warehouse, home)).encode())
    return output


def _content(warehouse: Warehouse, home: Home) -> dict[str, object]:
    with connect(warehouse) as con:
        keys = report_data.iterations(con)
        seconds = report_data.stage_seconds(home)
        runs = [run for (run,) in con.execute("select distinct run from training_metrics order by run").fetchall()]
        runs.sort(key=lambda run: ("ct_model", "sft_model").index(run) if run in ("ct_model", "sft_model") else 2)
        return {
            "iterations": keys,
            "tiles": report_data.tiles(con, seconds) if keys else [],
            "success": _svg(charts.success_by_stage(con, split=report_data.REPORTED_SPLIT)),
            "successes": charts.stage_successes(con),
            "role_name": charts.role_name,
            "heat": report_data.heat(con),
            "releases": report_data.releases(con),
            "flows": [_svg(charts.routing_flow(con, key)) for key in keys],
            "mixtures": _drawn(charts.mixture_bars(con, kind) for kind in ("sft", "ct")),
            "annotations": _drawn([charts.annotation_bars(con)]),
            "curves": _drawn(charts.iteration_curves(con, run) for run in runs),
            "trajectories": {key: report_data.trajectories(con, key) for key in keys},
            "lineage": _svg(iterations_graph(con).to_svg()) if keys else "",
            "times": _drawn([charts.time_bars(seconds)]),
            "tables": report_data.tables(con, warehouse.versions()),
        }


def _drawn(pictures: Iterable[str]) -> list[Markup]:
    return [_svg(picture) for picture in pictures if picture]


def _svg(picture: str) -> Markup:
    """Our own drawing, whose texts are escaped where it is made."""
    return Markup(picture)
