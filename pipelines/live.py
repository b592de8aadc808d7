"""The live display of a run: stages with their state, and how far the working ones are. Reads Dagster's step events and the workers'
progress files.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import dagster as dg
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipelines import progress
from pipelines.executor import LAUNCH_TAG
from warehouse.home import Home

MARKS = {
    "SUCCESS": "[green]✓[/]",
    "FAILURE": "[red]✗[/]",
    "SKIPPED": "[dim]–[/]",
    "IN_PROGRESS": "[cyan]▸[/]",
}
ENDED = ("SUCCESS", "FAILURE", "SKIPPED")
STALE_S = 600.0


class _Step(NamedTuple):
    """One stage as it is shown."""

    name: str
    mark: str
    seconds: str
    """empty while it works."""
    has_ended: bool
    """for good: one that is to be tried again has not."""


class Display:
    """One run's display; `tag` is the launch tag by which its Dagster run is found."""

    def __init__(self, home: Home, iteration: str, title: str, instance: dg.DagsterInstance, tag: str) -> None:
        self._home, self._iteration, self._title, self._instance, self._tag = home, iteration, title, instance, tag
        self._started = time.monotonic()
        self._run_id: str | None = None
        self._told: set[str] = set()

    def run(self) -> dg.DagsterRun | None:
        """The Dagster run as it is now, or None before it exists."""
        if self._run_id is None:
            runs = self._instance.get_runs(dg.RunsFilter(tags={LAUNCH_TAG: self._tag}), limit=1)
            self._run_id = runs[0].run_id if runs else None
        return self._instance.get_run_by_id(self._run_id) if self._run_id else None

    def render(self) -> RenderableType:
        elapsed = time.monotonic() - self._started
        table = Table.grid(padding=(0, 1))
        for step in self._steps():
            table.add_row(step.mark, step.name, step.seconds, "")
        for snapshot in self._working():
            left = snapshot.seconds_left
            figures = "  ".join(f"{name} {value:.3g}" for name, value in list(snapshot.metrics.items())[:4])
            bar = ProgressBar(total=max(1, snapshot.total), completed=snapshot.done, width=24)
            tail = f"{snapshot.done}/{snapshot.total or '?'} {snapshot.unit}  {figures}" + (
                f"  {left:.0f} s left" if left is not None else ""
            )
            table.add_row("", Text(f"  {snapshot.stage}", style="cyan"), bar, tail)
        return Group(Text.from_markup(f"[bold]{self._title}[/]  {elapsed:.0f} s"), table)

    def ended(self) -> list[str]:
        """A line for each stage that has ended since this was last asked, with rich's markup."""
        news = [step for step in self._steps() if step.has_ended and step.name not in self._told]
        self._told.update(step.name for step in news)
        return [f"  {step.mark} {step.name} {step.seconds}" for step in news]

    def _steps(self) -> list[_Step]:
        """In the order in which they started."""
        run = self.run()
        stats = self._instance.get_run_step_stats(run.run_id) if run else []
        return [
            _Step(
                name=step.step_key,
                mark=MARKS.get(step.status.value, " ") if step.status else " ",
                seconds=f"{step.end_time - step.start_time:.0f} s" if step.end_time and step.start_time else "",
                has_ended=step.status is not None and step.status.value in ENDED,
            )
            for step in sorted(stats, key=lambda step: step.start_time or 0)
        ]

    def _working(self) -> list[progress.Snapshot]:
        folder = self._home.work / self._iteration
        if not folder.is_dir():
            return []
        found = [progress.read(stage) for stage in sorted(folder.iterdir()) if stage.is_dir() and not (stage / "result.json").exists()]
        return [snapshot for snapshot in found if snapshot is not None and time.time() - snapshot.updated_at < STALE_S]
