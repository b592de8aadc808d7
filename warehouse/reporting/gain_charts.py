"""Pictures of what was gained: marks of single success rates, gains around zero, success within a step budget. They stand inside a page
that says svg.STYLE once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warehouse.evaluation.statistics import Estimate, Interval
from warehouse.reporting.svg import COLOURS, Axis, Drawing, legend


def change_mark(before: float | None, after: float | None) -> str:
    """A success rate before (hollow) and after (full) on a line from 0 to 1."""
    drawing = Drawing(150, 20, " → ".join(f"{rate:.2f}" for rate in (before, after) if rate is not None))
    axis = Axis(0.0, 1.0, 9, 141)
    for tick in (0.0, 0.5, 1.0):
        drawing.line(axis.px(tick), 4, axis.px(tick), 16, "grid")
    if before is not None and after is not None:
        drawing.polyline([(axis.px(before), 10), (axis.px(after), 10)], "teal" if after >= before else "rose")
    if before is not None:
        drawing.circle(axis.px(before), 10, 4, "hollow line grey")
    if after is not None:
        drawing.circle(axis.px(after), 10, 4.5, "teal" if before is None or after >= before else "rose")
    return drawing.render(alone=False)


def interval_mark(estimate: Estimate) -> str:
    """A success rate and its interval on a line from 0 to 1."""
    drawing = Drawing(150, 20, f"{estimate.mean:.3f} [{estimate.interval.low:.3f}, {estimate.interval.high:.3f}]")
    axis = Axis(0.0, 1.0, 9, 141)
    for tick in (0.0, 0.5, 1.0):
        drawing.line(axis.px(tick), 4, axis.px(tick), 16, "grid")
    drawing.polyline([(axis.px(estimate.interval.low), 10), (axis.px(estimate.interval.high), 10)], "blue")
    drawing.circle(axis.px(estimate.mean), 10, 4.5, "blue")
    return drawing.render(alone=False)


def gain_chart(gains: Sequence[tuple[str, float, Interval]]) -> str:
    """Gains in points with their intervals, a row each (label, mean, interval), around zero."""
    row_px, top, left, width = 30.0, 44.0, 110.0, 480.0
    drawing = Drawing(width, top + row_px * len(gains) + 30, "Gains in success, points")
    drawing.text(12, 22, "Gain in greedy success, points", "strong")
    drawing.text(225, 22, "95 % interval, paired by instance", "small muted")
    reach = max([0.1, *(abs(edge) for _, mean, interval in gains for edge in (mean, interval.low, interval.high))])
    axis = Axis(-reach, reach, left, width - 60)
    bottom = top + row_px * len(gains)
    for tick in axis.ticks(5):
        drawing.line(axis.px(tick), top - 8, axis.px(tick), bottom, "grid")
        drawing.text(axis.px(tick), bottom + 16, f"{100 * tick:+.0f}" if tick else "0", "small muted", "middle")
    for index, (label, mean, interval) in enumerate(gains):
        y = top + row_px * (index + 0.5) - 4
        style = "grey" if not interval.excludes_zero else "teal" if mean > 0 else "rose"
        drawing.text(left - 12, y + 4, label, "small", "end")
        drawing.polyline([(axis.px(interval.low), y), (axis.px(interval.high), y)], style)
        drawing.circle(axis.px(mean), y, 5, style, f"{100 * mean:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]")
        drawing.text(width - 50, y + 4, f"{100 * mean:+.1f}", "small")
    return drawing.render(alone=False)


def budget_chart(curves: Mapping[str, Sequence[tuple[str, Estimate]]], title: str, *, alone: bool = False) -> str:
    """Success with 95 % intervals by step budget, a line a policy or domain: label → (budget, success), from the smallest budget on, which
    stand at even distances. Empty where nothing was evaluated; `alone` gives a file of its own."""
    budgets = list(dict.fromkeys(budget for curve in curves.values() for budget, _ in curve))
    if not budgets:
        return ""
    left, top, bottom, right = 56.0, 66.0, 300.0, 620.0
    drawing = Drawing(right + 24, bottom + 46, title)
    drawing.text(14, 22, title, "strong")
    legend(drawing, 14, 46, [(COLOURS[place % len(COLOURS)], label) for place, label in enumerate(curves)])
    axis = Axis(0.0, 1.0, bottom, top)
    for tick in axis.ticks():
        drawing.line(left, axis.px(tick), right, axis.px(tick), "grid")
        drawing.text(left - 8, axis.px(tick) + 4, f"{tick:.0%}", "small muted", "end")
    column_px = (right - left) / len(budgets)
    for place, budget in enumerate(budgets):
        drawing.text(left + column_px * (place + 0.5), bottom + 18, budget, "small muted", "middle")
    drawing.text((left + right) / 2, bottom + 36, "step budget of an episode", "small muted", "middle")
    apart_px = min(7.0, 0.7 * column_px / len(curves))
    for place, (label, curve) in enumerate(curves.items()):
        style, shift = COLOURS[place % len(COLOURS)], (place - (len(curves) - 1) / 2) * apart_px
        marks = [(left + column_px * (budgets.index(budget) + 0.5) + shift, budget, success) for budget, success in curve]
        drawing.polyline([(x, axis.px(success.mean)) for x, _, success in marks], style)
        for x, budget, success in marks:
            low, high = success.interval.low, success.interval.high
            drawing.polyline([(x, axis.px(low)), (x, axis.px(high))], style)
            drawing.circle(x, axis.px(success.mean), 4, style, f"{label}, {budget}: {success.mean:.3f} [{low:.3f}, {high:.3f}]")
    return drawing.render(alone=alone)
