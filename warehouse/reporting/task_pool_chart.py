"""The picture of a task pool: what a policy solves of each family, and which share of its domain the next collection gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warehouse.evaluation.solve_rates import Solved
from warehouse.evaluation.statistics import wilson
from warehouse.reporting.svg import Axis, Drawing, legend

ROW_PX = 18.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPoolRow:
    domain: str
    family: str
    solved: Solved | None
    num: int


def task_pool_chart(rows: Sequence[TaskPoolRow], low: float, high: float) -> str:
    """A row a family, grouped by domain: solve rate with its 95 % interval (hollow: never tried) over the bounds that are aimed at, and
    the instances that are chosen."""
    left, middle, right, top = 190.0, 430.0, 650.0, 74.0
    domains = list(dict.fromkeys(row.domain for row in rows))
    drawing = Drawing(right + 50, top + ROW_PX * (len(rows) + len(domains)) + 24, "What the policy solves, and what it is given")
    drawing.text(14, 22, "What the policy solves, and what it is given", "strong")
    legend(drawing, 14, 44, [("blue", "solve rate"), ("teal", "instances chosen")])
    rate = Axis(0.0, 1.0, left, middle)
    number = Axis(0.0, float(max([1, *(row.num for row in rows)])), middle + 30, right)
    bottom = top + ROW_PX * (len(rows) + len(domains))
    drawing.rect(rate.px(low), top - 8, rate.px(high) - rate.px(low), bottom - top + 8, "flow grey", hint=f"aimed at: {low:g} to {high:g}")
    for tick in (0.0, 0.5, 1.0):
        drawing.text(rate.px(tick), bottom + 14, f"{tick:.0%}", "small muted", "middle")
    y = top
    for domain in domains:
        drawing.text(14, y + 4, domain, "small strong")
        y += ROW_PX
        for row in (row for row in rows if row.domain == domain):
            drawing.text(left - 12, y + 4, row.family, "small", "end")
            _rate(drawing, rate, row, y)
            drawing.rect(number.px(0), y - 5, number.px(row.num) - number.px(0), 10, "bar teal", hint=f"{row.family}: {row.num} instances")
            drawing.text(number.px(row.num) + 6, y + 4, str(row.num), "small muted")
            y += ROW_PX
    return drawing.render()


def _rate(drawing: Drawing, axis: Axis, row: TaskPoolRow, y: float) -> None:
    if row.solved is None:
        drawing.text(axis.px(0.5), y + 4, "never tried", "small muted", "middle")
        return
    solved, played = row.solved.num_success, row.solved.num_episodes
    interval = wilson(solved, played)
    drawing.polyline([(axis.px(interval.low), y), (axis.px(interval.high), y)], "blue")
    drawing.circle(axis.px(solved / played), y, 4, "blue", f"{row.family}: {solved} of {played}")
