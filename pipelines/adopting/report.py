"""`report` of `flywheel adopt`: greedy success on the held-out tasks of a site by family, of the policy that training began with and of the
one that it released; and a page with their episodes side by side. Figures are warehouse/evaluation's, how it looks is
pipelines/replay/adopted.html.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from pipelines import profiles
from pipelines.adopting.training import own_home
from pipelines.orchestration.runs import kept_profile
from pipelines.replay.page import write_page
from pipelines.replay.side_by_side import build_page
from pipelines.reporting.build import build_report
from pipelines.stages.evaluate_missing import evaluate_missing
from sandbox.adopting.adopt import note, read_summary
from sandbox.adopting.records import Folder, Site
from warehouse.core.home import Home
from warehouse.core.stages import SEED_ITERATION, role_name
from warehouse.evaluation.comparing import Instance, Part, Played, compare, played
from warehouse.evaluation.evaluations import REPORTED_SPLIT, evaluations
from warehouse.evaluation.statistics import Estimate, TaskCount, macro_average
from warehouse.lineage import registry
from warehouse.lineage.registry import SEED, Registered
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

REPORT, PAGE, EPISODES = "report", "report.html", "episodes.html"
MOST_SHOWN = 12
Counts = Mapping[str, Sequence[TaskCount]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A family, or all of them, on the instances that both policies have played."""

    name: str
    before: Estimate
    after: Estimate
    solved: tuple[int, int]
    part: Part

    def plain(self) -> dict[str, Any]:
        gain = self.part.paired.difference
        return {
            "tasks": self.part.paired.num_pairs,
            "solved_before": self.solved[0],
            "solved_after": self.solved[1],
            "before": _plain(self.before),
            "after": _plain(self.after),
            "gain": [round(each, 4) for each in (gain.mean, gain.interval.low, gain.interval.high)],
        }


def report(folder: Folder, site: Site, console: Console) -> dict[str, Any]:
    """Play what either policy has not played yet, write report.html and episodes.html, print a table; returns what summary.json says of it.
    Raises ConfigError or CheckpointError where nothing was trained, SandboxErrors where the application does not answer."""
    begun_s = time.monotonic()
    home = own_home(folder)
    home.check_exists()
    warehouse, profile = Warehouse(home), profiles.load(*kept_profile.chosen(home, None, {}))
    both = registry.made_by(warehouse, SEED_ITERATION, SEED), registry.released(warehouse)
    for policy in both:
        evaluate_missing(warehouse, policy, REPORTED_SPLIT, profile, console)
    of_first, of_second = (played(warehouse, policy.checkpoint_id, REPORTED_SPLIT) for policy in both)
    found = compare(of_first, of_second)
    families = [_row(site, part, of_first, of_second) for part in found.tasks]
    total = _row(site, found.total, of_first, of_second)
    build_page(warehouse, both, found, REPORTED_SPLIT, folder.path(EPISODES), most=MOST_SHOWN, live=True)
    stages = _stages(warehouse)
    what = {
        "before": both[0].checkpoint_id,
        "after": both[1].checkpoint_id,
        "released_by": f"{both[1].iteration}/{both[1].stage}",
        "all": total.plain() | {"p_two_sided": found.total.paired.p_two_sided},
        "families": {row.name: row.plain() for row in families},
        "stages": {name: _plain(success) for name, success in stages},
        "s": round(time.monotonic() - begun_s, 1),
    }
    noted = note(folder, REPORT, what)
    _write_page(folder, site, home, both, families, total, stages)
    _print(families, total, console)
    console.print(f"report: {folder.path(PAGE)}", soft_wrap=True, highlight=False)
    return noted


def _row(site: Site, part: Part, of_first: Mapping[Instance, Played], of_second: Mapping[Instance, Played]) -> Row:
    is_all = not part.domain
    keys = [key for key, one in of_first.items() if key in of_second and (is_all or one.task == part.name)]
    counts = [_counts([of[key] for key in keys]) for of in (of_first, of_second)]
    return Row(
        name="all families" if is_all else part.name.removeprefix(f"{site.name}-"),
        before=macro_average(counts[0]),
        after=macro_average(counts[1]),
        solved=(sum(each.num_success for each in counts[0]), sum(each.num_success for each in counts[1])),
        part=part,
    )


def _counts(episodes: Sequence[Played]) -> list[TaskCount]:
    by_task: dict[str, list[bool]] = {}
    for one in episodes:
        by_task.setdefault(one.task, []).append(one.solved)
    return [TaskCount(task=task, num_success=sum(solved), num_episodes=len(solved)) for task, solved in by_task.items()]


def _stages(warehouse: Warehouse) -> list[tuple[str, Estimate]]:
    """Of every iteration each policy that it made, with its success on the held-out tasks."""
    with connect(warehouse, tables=["evaluations"]) as con:
        return [(f"{one.iteration} {role_name(one.role)}", one.success) for one in evaluations(con, split=REPORTED_SPLIT)]


def _write_page(
    folder: Folder,
    site: Site,
    home: Home,
    both: tuple[Registered, Registered],
    families: Sequence[Row],
    total: Row,
    stages: Sequence[tuple[str, Estimate]],
) -> Path:
    summary = read_summary(folder)
    build_report(Warehouse(home), home, home.reports / "index.html")
    return write_page(
        "adopted.html",
        folder.path(PAGE),
        site=site,
        both=both,
        rows=[*families, total],
        total=total,
        stages=stages,
        made=figures(summary),
        entered_with=summary["train"]["entered_with"],
        episodes=EPISODES,
        iterations_page=str((home.reports / "index.html").relative_to(folder.root)),
    )


def figures(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the parts found and how long they took, in words, from summary.json. A part that has not run is left out."""
    found = []
    crawl, tasks, proof, source = (summary.get(part, {}) for part in ("crawl", "tasks", "proof", "source"))
    if crawl:
        found.append(("pages read", str(crawl["pages"].get("used", 0))))
    if tasks:
        found.append(("candidate tasks", str(tasks["candidates"])))
    if proof:
        found.append(("sound", f"{proof['sound']} of {proof['played']} that were played"))
        found.append(("solved by their recorded way", f"{proof['oracle_solves']} of {proof['played']}"))
    if source:
        found.append(("tasks by split", ", ".join(f"{num} {split}" for split, num in source["splits"].items())))
    if crawl and proof and (hours := (crawl["s"] + proof["s"]) / 3600):
        found.append(("sound tasks an hour of crawl and proof", f"{proof['sound'] / hours:.0f}"))
    minutes = {part: summary[part]["s"] / 60 for part in ("crawl", "proof", "train", "report") if "s" in summary.get(part, {})}
    found.append(("minutes", ", ".join(f"{part} {took:.1f}" for part, took in minutes.items())))
    return found


def _print(families: Sequence[Row], total: Row, console: Console) -> None:
    table = RichTable(title="Greedy success on held-out tasks, before and after, with 95 % intervals", title_justify="left")
    for column in ("family", "tasks", "before", "after", "gain, points"):
        table.add_column(column, justify="left" if column == "family" else "right", no_wrap=True)
    for row in (*families, total):
        gain = row.part.paired.difference
        table.add_row(
            row.name,
            str(row.part.paired.num_pairs),
            said(row.before),
            said(row.after),
            f"{100 * gain.mean:+.0f} [{100 * gain.interval.low:+.0f}, {100 * gain.interval.high:+.0f}]",
            end_section=row is families[-1],
        )
    console.print(table)


def said(success: Estimate) -> str:
    return f"{success.mean:.2f} [{success.interval.low:.2f}, {success.interval.high:.2f}]"


def _plain(success: Estimate) -> list[float]:
    """Mean, lower and upper limit."""
    return [round(each, 4) for each in (success.mean, success.interval.low, success.interval.high)]
