"""Data Docs: Great Expectations' own result pages made to stand alone, and one index of all of them.

The pages as shipped fetch style sheets, scripts and a logo from other sites and show nothing much without them. Here those are taken out
and a small style sheet put in, so that the pages read the same on a machine without a network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from warehouse.core.home import Home, atomic_write
from warehouse.core.locks import FileLock

if TYPE_CHECKING:
    from warehouse.quality.expectations import Failure, ValidationReport

FOLDER = "data_docs"
_EXTERNAL = re.compile(
    r"<script\b[^>]*>.*?</script>|<link\b[^>]*>|<img\b[^>]*>|<footer\b.*?</footer>|<p>\s*Stay current on everything GX.*?</p>"
    r"|[\w-]+:\s*url\([^)]*\);?",
    re.DOTALL,
)
_STYLE = """<style>
body { font: 14px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 24px auto; max-width: 1100px; padding: 0 16px }
table { border-collapse: collapse; margin: 8px 0; width: 100% }
th, td { border: 1px solid #ddd; padding: 5px 9px; text-align: left; vertical-align: top }
th { background: #f5f5f5 } h1, h2, h3, h4, h5 { margin: 18px 0 6px } ul { margin: 4px 0 } a { color: #2457a6 }
nav ol, nav ul { list-style: none; padding: 0 } #navbar .nav { columns: 3 } pre { white-space: pre-wrap; margin: 0 }
.ok { color: #1c6b2a } .bad { color: #a63a2b; font-weight: 600 }
.fa-check-circle::before { content: "✔"; color: #1c6b2a } .fa-times::before { content: "✘"; color: #a63a2b }
.fa-exclamation-triangle::before { content: "⚠"; color: #9a6200 } .ge-walkthrough, .modal, .btn { display: none }
.badge { background: #eef; border-radius: 4px; padding: 0 5px } .table-responsive { overflow-x: auto }
</style>"""


def build_data_docs(home: Home, reports: Sequence[ValidationReport]) -> Path:
    """Write one page for each report and the index of all pages so far; returns the index. Safe from several processes.

    A report of the same table, iteration and stage replaces the page that was there.
    """
    folder = home.reports / FOLDER
    with FileLock(home.locks / "data_docs.lock"):
        for report in reports:
            name = f"{report.table}.{report.stage}" if report.stage else report.table
            summary = {
                "iteration": report.iteration,
                "table": report.table,
                "stage": report.stage,
                "success": report.success,
                "num_rows": report.num_rows,
                "num_expectations": report.num_expectations,
                "num_failures": len(report.failures),
            }
            atomic_write(folder / report.iteration / f"{name}.html", _page(report).encode())
            atomic_write(folder / report.iteration / f"{name}.json", json.dumps(summary).encode())
        index = folder / "index.html"
        atomic_write(index, _index(home).encode())
    return index


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTable:
    """What the suite of one table found in one iteration when it last ran."""

    iteration: str
    table: str
    stage: str | None
    success: bool
    num_rows: int
    num_expectations: int
    num_failures: int
    page: Path


def checked_tables(home: Home, iteration: str | None = None) -> list[CheckedTable]:
    """What the pages so far say, newest iteration first."""
    pages = sorted((home.reports / FOLDER).glob(f"{iteration or '*'}/*.json"), key=lambda path: path.stem)
    found = [CheckedTable(**json.loads(path.read_text()), page=path.with_suffix(".html")) for path in pages]
    return sorted(found, key=lambda checked: checked.iteration, reverse=True)


def _page(report: ValidationReport) -> str:
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view.view import DefaultJinjaPageView

    report.result.meta["run_id"] = {"run_name": report.iteration, "run_time": datetime.now(UTC).isoformat(timespec="seconds")}
    html = str(DefaultJinjaPageView().render(ValidationResultsPageRenderer().render(report.result)))
    html = _EXTERNAL.sub("", html)
    # Links to pages of a site that is not built: the suite page and the site's own index.
    html = re.sub(r'href="(?:\.\./)+index\.html"', 'href="../index.html"', html)
    html = re.sub(r'<a href="(?:\.\./)+expectations/[^"]*"[^>]*>(.*?)</a>', r"\1", html, flags=re.DOTALL)
    html = re.sub(r"<body\b[^>]*>", lambda body: body.group() + _failures(report), html, count=1)
    return html.replace("</head>", f"{_STYLE}</head>", 1)


def _failures(report: ValidationReport) -> str:
    """What a person came to see, above everything else: the failed expectations with their first failing rows."""
    if report.success:
        return f'<h1 class="ok">{escape(report.table)} {escape(report.iteration)}: all {report.num_expectations} expectations hold</h1>'
    rows = "".join(
        f"<tr><td>{escape(failure.expectation)}</td><td>{escape(failure.column or '')}</td><td>{failure.num_unexpected:,}</td>"
        f"<td><pre>{escape(_shown(failure))}</pre></td></tr>"
        for failure in report.failures
    )
    return (
        f'<h1 class="bad">{escape(report.table)} {escape(report.iteration)}: '
        f"{len(report.failures)} of {report.num_expectations} expectations failed</h1>"
        f"<table><tr><th>expectation</th><th>column</th><th>rows</th><th>first failing rows</th></tr>{rows}</table>"
    )


def _shown(failure: Failure) -> str:
    return "\n".join([failure.detail] * bool(failure.detail) + [str(dict(row)) for row in failure.rows])


def _index(home: Home) -> str:
    rows = "\n".join(_index_row(checked, f"{checked.page.parent.name}/{checked.page.name}") for checked in checked_tables(home))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Data Docs</title>{_STYLE}</head><body><h1>Data Docs</h1>'
        "<p>Great Expectations suites made from the table catalogue, newest iteration first.</p>"
        "<table><tr><th>iteration</th><th>table</th><th>stage</th><th>rows</th><th>expectations</th><th>result</th></tr>"
        f"{rows}</table></body></html>\n"
    )


def _index_row(checked: CheckedTable, address: str) -> str:
    result = '<span class="ok">✔ all hold</span>' if checked.success else f'<span class="bad">✘ {checked.num_failures} failed</span>'
    cells = (
        escape(checked.iteration),
        f'<a href="{escape(address)}">{escape(checked.table)}</a>',
        escape(checked.stage or "all"),
        f"{checked.num_rows:,}",
        str(checked.num_expectations),
        result,
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
