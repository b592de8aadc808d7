"""The curve of inference-time scaling: success by step budget, a line a domain. Values and picture; who measures them is pipelines'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warehouse.statistics import Estimate
from warehouse.svg import COLOURS, Axis, Drawing, legend


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPoint:
    """Greedy success of one domain's tasks under one step budget. `cut_off`: share of episodes that the budget ended."""

    domain: str
    label: str
    amount: float
    success: Estimate
    steps_per_episode: float
    cut_off: float


def budget_curves(points: Sequence[BudgetPoint], title: str) -> str:
    """Success with 95 % intervals over the budgets, at even distances; empty without points."""
    if not points:
        return ""
    budgets = list(dict.fromkeys(point.label for point in sorted(points, key=lambda point: point.amount)))
    domains = list(dict.fromkeys(point.domain for point in points))
    left, top, bottom, right = 56.0, 66.0, 300.0, 620.0
    drawing = Drawing(right + 24, bottom + 46, title)
    drawing.text(14, 22, title, "strong")
    legend(drawing, 14, 46, [(COLOURS[place % len(COLOURS)], domain) for place, domain in enumerate(domains)])
    axis = Axis(0.0, 1.0, bottom, top)
    for tick in axis.ticks():
        drawing.line(left, axis.px(tick), right, axis.px(tick), "grid")
        drawing.text(left - 8, axis.px(tick) + 4, f"{tick:.0%}", "small muted", "end")
    column_px = (right - left) / len(budgets)
    for place, label in enumerate(budgets):
        drawing.text(left + column_px * (place + 0.5), bottom + 18, label, "small muted", "middle")
    drawing.text((left + right) / 2, bottom + 36, "step budget of an episode", "small muted", "middle")
    for place, domain in enumerate(domains):
        style, shift = COLOURS[place % len(COLOURS)], (place - (len(domains) - 1) / 2) * 7
        mine = [point for point in points if point.domain == domain]
        marks = [(left + column_px * (budgets.index(point.label) + 0.5) + shift, point) for point in mine]
        drawing.polyline([(x, axis.px(point.success.mean)) for x, point in marks], style)
        for x, point in marks:
            interval = point.success.interval
            drawing.polyline([(x, axis.px(interval.low)), (x, axis.px(interval.high))], style)
            hint = f"{domain}, {point.label}: {point.success.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
            drawing.circle(x, axis.px(point.success.mean), 4, style, hint)
    return drawing.render()
