"""The live display of a run: stages with their state, and how far the working ones are. Reads Dagster's step events and the workers'
progress files.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import dagster as dg
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipelines.orchestration.runs.executor import LAUNCH_TAG
from pipelines.orchestration.work import progress
from warehouse.core.home import Home
from warehouse.core.stages import rl_stage

MARKS = {"SUCCESS": "[green]✓[/]", "FAILURE": "[red]✗[/]", "SKIPPED": "[dim]–[/]", "IN_PROGRESS": "[cyan]▸[/]"}
ENDED = ("SUCCESS", "FAILURE", "SKIPPED")
NEWS_S = 60.0
"""So often a log that is read later gets a line of what a stage is at."""
BAR_WIDTH = 16
RL_STEP = "rl_model__"


class _Step(NamedTuple):
    """One stage as it is shown."""

    name: str
    mark: str
    seconds: float | None
    """that it took, or has worked until now; None before it starts."""
    has_ended: bool
    """for good: one that is to be retried has not."""


class Display:
    """One run's display; `tag` is the launch tag by which its Dagster run is found."""

    def __init__(self, home: Home, iteration: str, title: str, instance: dg.DagsterInstance, tag: str) -> None:
        self._home, self._iteration, self._title, self._instance, self._tag = home, iteration, title, instance, tag
        self._started, self._began = time.monotonic(), time.time()
        self._run_id: str | None = None
        self._num_steps = 0
        self._reported: set[tuple[str, bool]] = set()
        self._news_due = self._started + NEWS_S

    def run(self) -> dg.DagsterRun | None:
        """The Dagster run as it is now, or None before it exists."""
        if self._run_id is None:
            runs = self._instance.get_runs(dg.RunsFilter(tags={LAUNCH_TAG: self._tag}), limit=1)
            self._run_id = runs[0].run_id if runs else None
        return self._instance.get_run_by_id(self._run_id) if self._run_id else None

    def render(self, width: int, height: int) -> RenderableType:
        """In at most so many columns and lines: of the figures the last give way, of the stages those that started first."""
        elapsed = time.monotonic() - self._started
        steps, snapshots = self._steps(), self._working()
        num_lines = max(1, height - len(snapshots) - 3)
        hidden = steps[: len(steps) - num_lines] if len(steps) > num_lines else []
        table = Table.grid(padding=(0, 1))
        if hidden:
            table.add_row("", Text(f"{len(hidden)} before", style="dim"), "")
        for step in steps[len(hidden) :]:
            seconds = "" if step.seconds is None else f"{step.seconds:.0f} s"
            table.add_row(step.mark, step.name, Text(seconds, style="" if step.has_ended else "dim"))
        if not steps:
            table.add_row("", Text("starting", style="dim"), "")
        bars = Table.grid(padding=(0, 1))
        for _ in range(4):
            bars.add_column(no_wrap=True)
        words = [_words(snapshot) for snapshot in snapshots]
        names = [Text(f"    {snapshot.stage}", style="cyan") for snapshot in snapshots]
        columns = names, [Text(how_far) for how_far, _ in words]
        taken = BAR_WIDTH + 3 + sum(max((text.cell_len for text in column), default=0) for column in columns)
        for name, snapshot, (how_far, figures) in zip(names, snapshots, words, strict=True):
            bar = ProgressBar(total=max(1, snapshot.total), completed=snapshot.done, width=BAR_WIDTH)
            bars.add_row(name, bar, Text(how_far), Text(_fitting(figures, width - taken)))
        ended = sum(step.has_ended for step in steps)
        how_far = f"  [dim]{ended} of {self._num_steps} stages[/]" if self._num_steps else ""
        return Group(Text.from_markup(f"[bold]{self._title}[/]  {_span(elapsed)}{how_far}"), table, bars)

    def news(self) -> list[str]:
        """Lines for a log, with rich's markup: one for each stage that has begun or ended since the last call, and now and then
        how far the working ones are."""
        lines = []
        for step in self._steps():
            if (step.name, step.has_ended) not in self._reported and (step.has_ended or step.mark == MARKS["IN_PROGRESS"]):
                self._reported.add((step.name, step.has_ended))
                took = f" {step.seconds:.0f} s" if step.has_ended and step.seconds is not None else ""
                lines.append(f"  {step.mark} {step.name}{took}")
        if time.monotonic() >= self._news_due:
            self._news_due = time.monotonic() + NEWS_S
            lines += [
                f"    {each.stage} {escape('  '.join((how_far, *figures)))}"
                for each in self._working()
                for how_far, figures in [_words(each)]
            ]
        return lines

    def _working(self) -> list[progress.Snapshot]:
        """Without those that a launch before this one left when it was killed."""
        return progress.working(self._home, self._iteration, since=self._began)

    def _steps(self) -> list[_Step]:
        """In the order in which they started."""
        run = self.run()
        if run is not None and run.execution_plan_snapshot_id is not None and not self._num_steps:
            self._num_steps = len(self._instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id).step_keys_to_execute)
        stats = self._instance.get_run_step_stats(run.run_id) if run else []
        return [
            _Step(
                name=_stage_of(step.step_key),
                mark=MARKS.get(step.status.value, " ") if step.status else " ",
                seconds=(step.end_time or time.time()) - step.start_time if step.start_time else None,
                has_ended=step.status is not None and step.status.value in ENDED,
            )
            for step in sorted(stats, key=lambda step: step.start_time or 0)
        ]


def _stage_of(step_key: str) -> str:
    """As other commands name it: rl_forms, where Dagster's step is rl_model__forms."""
    return rl_stage(step_key.removeprefix(RL_STEP)) if step_key.startswith(RL_STEP) else step_key


def _words(snapshot: progress.Snapshot) -> tuple[str, list[str]]:
    """How far it is and how long it still takes; its figures."""
    left = f"  {_span(snapshot.seconds_left)} left" if snapshot.seconds_left is not None else ""
    figures = [f"{name} {value:.3g}" for name, value in list(snapshot.metrics.items())[:4]]
    return f"{snapshot.done}/{snapshot.total or '?'} {snapshot.unit}{left}", figures


def _span(seconds: float) -> str:
    """45 s, 23 min, 2.4 h."""
    return f"{seconds:.0f} s" if seconds < 99.5 else f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def _fitting(figures: list[str], width: int) -> str:
    """As many of them as are whole in so many columns: half a number is a wrong one."""
    while figures and cell_len("  ".join(figures)) > width:
        figures = figures[:-1]
    return "  ".join(figures)
