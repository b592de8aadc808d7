"""The report: HTML files that show what the iterations did, with no outside address. One page for all iterations, one for each, one
for each training run; they link to each other and lie in one folder.

What they say is overview.py, gains.py, runs.py and episodes.py; pictures are warehouse/reporting/charts.py and
warehouse/*_charts.py; how it looks is *.html. All is read from the tables, so any old iteration can be reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import jinja2
from markupsafe import Markup

from agent.judging import reports as judging_reports
from agent.judging.reports import judge_figures
from pipelines.reporting import gains as gains_of
from pipelines.reporting import overview
from pipelines.reporting import runs as runs_of
from pipelines.reporting.episodes import EpisodeCard, trajectories
from pipelines.reporting.games import games_tables
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home, atomic_write, page_name
from warehouse.core.identity import content_id, digests_id, file_digest
from warehouse.core.stages import rank, role_name
from warehouse.evaluation.evaluations import REPORTED_SPLIT, evaluations
from warehouse.evaluation.novelty import novelty
from warehouse.lineage.iterations_graph import iterations_graph
from warehouse.lineage.release_ledger import read_ledger
from warehouse.reporting import charts, gain_charts, run_charts
from warehouse.reporting.iteration_summaries import TABLES_READ, IterationSummary, summaries
from warehouse.reporting.merge_report import mixtures_chart
from warehouse.reporting.svg import STYLE
from warehouse.storage.catalogue import TABLES
from warehouse.storage.files.table_files import Listing
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

TEMPLATES = Path(__file__).parent
INDEX = "index.html"
PAGE_TABLES = (
    "annotations",
    "checkpoints",
    "episodes",
    "evaluations",
    "judge_reports",
    "merge_candidates",
    "routes",
    "screenshots",
    "steps",
    "training_metrics",
)
"""Tables that the pages of iterations and of runs are made of."""
READ_HERE = 5
"""Newest iterations whose episodes are on the page of all iterations; those of each are on its own page."""
TOGETHER = 8
"""Iterations whose pages are made at a time."""
MAX_LINES = 24
"""Iterations that the curves of all iterations are drawn of."""
HEAD_BYTES = 1024
_MADE_OF = re.compile(rb'<meta name="made-of" content="([^"]+)">')


def build_report(warehouse: Warehouse, home: Home, output: Path) -> Path:
    """Write the report of everything in the warehouse to `output`, and beside it a page for each iteration and each training run, each
    whole or not at all; returns `output`. An empty warehouse gives a page that says so. A page that is there already and was made of the
    same rows stays: the work is that of the iterations that are new."""
    environment, listing = _environment(output.name), Listing(warehouse, TABLES)
    keys, summaries_by_key = overview.iterations(listing), summaries(warehouse, listing)
    checked = overview.checks(home, output.parent)
    site = _Site(warehouse, listing, environment, output, keys, runs_of.runs(summaries_by_key), checked)
    site.write(keys)
    return _write(environment, "report.html", output, _everything(warehouse, home, listing, summaries_by_key, site))


def build_iteration(warehouse: Warehouse, iteration: str, folder: Path) -> Path:
    """Write the page of an iteration and of its training runs into `folder`. Raises ConfigError for an iteration that made nothing."""
    listing = Listing(warehouse, dict.fromkeys((*PAGE_TABLES, *TABLES_READ)))
    keys = overview.iterations(listing)
    if iteration not in keys:
        raise ConfigError(f"there is no iteration {iteration!r} to report; there are {', '.join(keys) or 'none yet'}")
    checked = overview.checks(warehouse.home, folder, iteration)
    output = folder / INDEX
    runs = runs_of.runs(summaries(warehouse, listing))
    _Site(warehouse, listing, _environment(INDEX), output, keys, runs, checked).write([iteration])
    return folder / page_name(iteration)


def build_run(warehouse: Warehouse, name: str, folder: Path) -> Path:
    """Write the page of one training run, named ITERATION/RUN such as 0002/rl_forms, into `folder`. Raises ConfigError for one that left
    no curves."""
    runs = runs_of.runs(summaries(warehouse))
    found = next((run for run in runs if f"{run.iteration}/{run.run}" == name), None)
    if found is None:
        known = ", ".join(f"{run.iteration}/{run.run}" for run in runs) or "none yet"
        raise ConfigError(f"there is no training run {name!r} to report; there are {known}")
    page = folder / page_name(found.iteration, found.run)
    with _rows_of(warehouse, [found.iteration]) as con:
        return _write(_environment(INDEX), "run.html", page, _run(con, warehouse, found, _of(runs, found.iteration)))


class _Site:
    """The pages of iterations and runs, in the folder of `index`. Each says in its head what it was made of."""

    def __init__(
        self,
        warehouse: Warehouse,
        listing: Listing,
        environment: jinja2.Environment,
        index: Path,
        keys: list[str],
        runs: list[runs_of.RunName],
        checked: list[dict[str, Any]],
    ) -> None:
        self._warehouse, self._environment, self._index, self.checked = warehouse, environment, index, checked
        self.keys, self.runs = keys, runs
        self._digests = listing.digests(PAGE_TABLES, taken_back=["annotations"])
        # Pictures are only ever added to, unless a purge has written the others again.
        self._pictures = min(((file.added_ms, file.path) for file in listing.files["screenshots"]), default=(0, ""))

    def write(self, keys: Sequence[str]) -> None:
        """The pages of these iterations and of their runs, where they are not there as they should be."""
        stale = {key: pages for key in keys if (pages := self._stale(key))}
        for first in range(0, len(stale), TOGETHER):
            batch = list(stale)[first : first + TOGETHER]
            with _rows_of(self._warehouse, batch) as con:
                for key in batch:
                    self._write_stale(con, key, stale[key])

    def _stale(self, key: str) -> dict[str, str]:
        """Of an iteration, run → what its page is to be made of; the iteration's own page is that of no run ("")."""
        runs = [run.run for run in self._runs_of(key)]
        of_rows = [self._digests.get(key, ""), self._pictures, self._index.name, _code(), runs]
        wanted = {run: content_id("made-of", [*of_rows, run]) for run in runs}
        wanted[""] = content_id("made-of", [*of_rows, self._beside(key), self._checked(key)])
        return {run: digest for run, digest in wanted.items() if _made_of(self._path(key, run)) != digest}

    def _write_stale(self, con: duckdb.DuckDBPyConnection, key: str, pages: Mapping[str, str]) -> None:
        for run in self._runs_of(key):
            if run.run in pages:
                content = _run(con, self._warehouse, run, self._runs_of(key)) | {"made_of": pages[run.run]}
                _write(self._environment, "run.html", self._path(key, run.run), content)
        if "" in pages:
            content = _iteration(con, self._warehouse, key, self._runs_of(key), self._beside(key), self._checked(key))
            content["made_of"] = pages[""]
            _write(self._environment, "iteration.html", self._path(key), content)

    def _runs_of(self, key: str) -> list[runs_of.RunName]:
        return _of(self.runs, key)

    def _beside(self, key: str) -> list[str]:
        """The iteration with those before and after it."""
        place = self.keys.index(key)
        return self.keys[max(0, place - 1) : place + 2]

    def _checked(self, key: str) -> list[dict[str, Any]]:
        return [each for each in self.checked if each["iteration"] == key]

    def _path(self, key: str, run: str = "") -> Path:
        return self._index.parent / page_name(key, run or None)


def _made_of(page: Path) -> str | None:
    """What a page says in its head that it was made of."""
    try:
        with page.open("rb") as file:
            found = _MADE_OF.search(file.read(HEAD_BYTES))
    except OSError:
        return None
    return found[1].decode() if found else None


@cache
def _code() -> str:
    """Digest of what draws the pages: those of another version of the program are made again."""
    rooms = (TEMPLATES, Path(charts.__file__).parent, Path(judging_reports.__file__).parent)
    paths = [path for room in rooms for path in sorted(room.glob("*")) if path.suffix in (".py", ".sql", ".html")]
    return digests_id("code", [(f"{path.parent.name}/{path.name}", file_digest(path)) for path in paths])


@contextmanager
def _rows_of(warehouse: Warehouse, iterations: Sequence[str]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that sees a few iterations. What is asked again and again is held in memory; steps are not, they are the bulk."""
    tables = [table for table in PAGE_TABLES if TABLES[table].partitioned]
    with connect(warehouse, tables=tables, iterations=iterations, natively=True) as con:
        for table in tables:
            if table != "steps":
                made = f"create temp table {table} as from main.{table} where list_contains($keys, iteration)"
                con.execute(made, {"keys": list(iterations)})
        yield con


def _of(runs: Iterable[runs_of.RunName], iteration: str) -> list[runs_of.RunName]:
    return [run for run in runs if run.iteration == iteration]


def _environment(index: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        index=index,
        page_name=page_name,
        role_name=role_name,
        split=REPORTED_SPLIT,
        svg=_svg,
        svg_style=_svg(STYLE),
        interval_mark=lambda estimate: _svg(gain_charts.interval_mark(estimate)),
    )
    return environment


def _write(environment: jinja2.Environment, template: str, output: Path, content: dict[str, object]) -> Path:
    atomic_write(output, environment.get_template(template).render(**content).encode())
    return output


def _everything(
    warehouse: Warehouse, home: Home, listing: Listing, summaries_by_key: Mapping[str, IterationSummary], site: _Site
) -> dict[str, object]:
    keys, seconds, ledger = site.keys, overview.stage_seconds(home), read_ledger(warehouse, of_before=False)
    names = sorted({run.run for run in site.runs}, key=rank)
    drawn = _spread(keys, MAX_LINES)
    with connect(warehouse, tables=["evaluations"], natively=True) as con:
        con.execute("create temp table evaluations as from main.evaluations")
        evaluated = evaluations(con)
        games = games_tables(con, specialists=False)
        lineage = _svg(iterations_graph(con, summaries_by_key).to_svg()) if keys else ""
    reported = [one.iteration for one in evaluated if one.split == REPORTED_SPLIT]
    novel = novelty(warehouse, reported[-1], listing=listing) if keys and reported else None
    tiles = overview.tiles(evaluated, novel, summaries_by_key, seconds) if keys else []
    with connect(warehouse, tables=["training_metrics"], iterations=drawn, natively=True) as con:
        curves = _drawn(run_charts.iteration_curves(con, run) for run in names)
    return {
        "iterations": keys,
        "runs": site.runs,
        "tiles": tiles,
        "success": _svg(charts.success_by_stage(evaluated)),
        "successes": evaluated,
        "heat": overview.heat(evaluated),
        "games": games,
        "releases": overview.releases(summaries_by_key),
        "live": None if ledger.live_id is None else ledger.name(ledger.live_id),
        "held": ledger.with_state("held"),
        "people_decided": [entry for entry in ledger.entries if entry.is_persons],
        "flows": [_svg(charts.routing_flow(key, summaries_by_key[key].flows)) for key in keys],
        "mixtures": _drawn(charts.mixture_bars(summaries_by_key, kind) for kind in ("sft", "ct")),
        "annotations": _drawn([charts.annotation_bars(summaries_by_key)]),
        "curves": curves,
        "num_undrawn": len(keys) - len(drawn),
        "trajectories": _trajectories(warehouse, keys[-READ_HERE:]),
        "elsewhere": keys[:-READ_HERE],
        "lineage": lineage,
        "times": _drawn([charts.time_bars(seconds)]),
        "tables": overview.tables(listing),
        "checks": site.checked,
    }


def _spread(keys: Sequence[str], num: int) -> list[str]:
    """At most so many of them, evenly from the first to the last."""
    if len(keys) <= num:
        return list(keys)
    return [keys[round(place * (len(keys) - 1) / (num - 1))] for place in range(num)]


def _trajectories(warehouse: Warehouse, iterations: Sequence[str]) -> dict[str, list[EpisodeCard]]:
    with _rows_of(warehouse, iterations) as con:
        return {key: trajectories(con, warehouse, key) for key in iterations}


def _iteration(
    con: duckdb.DuckDBPyConnection,
    warehouse: Warehouse,
    key: str,
    runs: list[runs_of.RunName],
    beside: list[str],
    checked: list[dict[str, Any]],
) -> dict[str, object]:
    gains = gains_of.iteration_gains(con, key, REPORTED_SPLIT)
    by_rl = [(gain.domain, gain.gain.difference) for gain in gains.gains if gain.gain is not None]
    return {
        "iteration": key,
        "iterations": beside,
        "gains": gains,
        "tiles": gains_of.tiles(gains),
        "gain_chart": _svg(gain_charts.gain_chart([(domain, of.mean, of.interval) for domain, of in by_rl])) if by_rl else "",
        "mixtures_chart": _svg(mixtures_chart(gains.mixtures)),
        "budget_chart": _svg(_budget_chart(gains)),
        "games": games_tables(con, iteration=key),
        "judges": judge_figures(con, key),
        "runs": runs,
        "checks": checked,
        "curves": _drawn(run_charts.training_curves(con, key, run.run) for run in runs),
        "trajectories": trajectories(con, warehouse, key),
    }


def _budget_chart(gains: gains_of.IterationGains) -> str:
    curves = {name: [(str(budget), success) for budget, success in curve] for name, curve in gains.budgets.items()}
    return gain_charts.budget_chart(curves, "Greedy success within a step budget")


def _run(con: duckdb.DuckDBPyConnection, warehouse: Warehouse, name: runs_of.RunName, beside: list[runs_of.RunName]) -> dict[str, object]:
    return {"run": runs_of.run_data(con, warehouse, name), "runs": beside}


def _drawn(pictures: Iterable[str]) -> list[Markup]:
    return [_svg(picture) for picture in pictures if picture]


def _svg(picture: str) -> Markup:
    """Our own drawing, whose texts are escaped where it is made."""
    return Markup(picture)  # nosec B704 # nosemgrep: markup-of-stored-text # drawn here, its texts escaped (warehouse/reporting/svg.py)
