"""Pictures of the tables: success by stage, the routing flow, mixtures, annotations, time. Each takes what was
read of them and gives an SVG.

The report and the metadata of Dagster's materializations show the same pictures. Training runs are run_charts.py's, gains gain_charts.py's;
how lines and boxes are drawn is svg.py's business.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from warehouse.core.stages import is_rl, role_name
from warehouse.evaluation.evaluations import REPORTED_SPLIT, Evaluation
from warehouse.evaluation.statistics import Estimate
from warehouse.reporting.iteration_summaries import Flow, IterationSummary
from warehouse.reporting.svg import COLOURS, Axis, Drawing, legend

ROUTE_STYLE = {"sft": "teal", "ct": "amber", "withheld": "grey"}
DECISION_STYLE = {"accept": "teal", "edit": "blue", "override": "violet", "beyond_repair": "grey"}
COMPONENT_STYLE = {
    "demonstration": "amber",
    "correction": "violet",
    "approved": "teal",
    "rollout": "blue",
    "gateway": "blue",
    "tutorial": "grey",
    "failure": "rose",
    "demoted": "olive",
    "in_situ": "cyan",
    "variation": "cyan",
    "general": "brown",
    "manual": "brown",
}

PURPOSE_LABELS = {"rollout": "rollouts", "annotation": "annotated", "gateway": "gateway"}


def _role_style(role: str) -> str:
    if is_rl(role):
        return "amber"
    return {"sft_model": "blue", "merged_policy": "teal", "released_policy": "violet"}.get(role, "grey")


def success_by_stage(found: Sequence[Evaluation], split: str = REPORTED_SPLIT, beside: str | None = "eval") -> str:
    """Success of every evaluated policy with its 95 % interval, iteration by iteration; hollow marks show the split `beside`."""
    shown = [(one, one.success) for one in found if one.split == split]
    others = {(one.iteration, one.role): one.success for one in found if one.split == beside and beside != split}
    columns = list(dict.fromkeys((one.iteration, one.role) for one, _ in shown))
    column_px, left, top, height = 78.0, 52.0, 44.0, 330.0
    width = max(600.0, left + column_px * len(columns) + 16)
    drawing = Drawing(width, height, f"Greedy success by iteration and stage, {split} split")
    drawing.text(left, 20, f"Greedy success, {split} split", "strong")
    drawing.text(left + 215, 20, "mean over tasks, 95 % interval" + (f"; hollow: {beside} split" if others else ""), "small muted")
    if not shown:
        drawing.text(left, 80, "nothing was evaluated yet", "muted")
        return drawing.render()
    lows = [success.interval.low for _, success in shown] + [other.mean for other in others.values()]
    axis = Axis(max(0.0, int(min(lows) * 10 - 0.2) / 10), 1.0, height - 54, top + 12)
    _grid(drawing, axis, left, drawing.width - 16, "{:.0%}")
    x_of = {column: left + column_px * (index + 0.5) for index, column in enumerate(columns)}
    _iteration_bands(drawing, columns, left, column_px, top, height)
    path = [(x_of[one.iteration, one.role], axis.px(success.mean)) for one, success in shown if not is_rl(one.role)]
    drawing.polyline(path, "grey")
    for one, success in shown:
        _mark(drawing, x_of[one.iteration, one.role], axis, one, success, others.get((one.iteration, one.role)))
    return drawing.render()


def _mark(drawing: Drawing, x: float, axis: Axis, one: Evaluation, estimate: Estimate, other: Estimate | None) -> None:
    style = _role_style(one.role)
    hint = (
        f"{one.iteration} {role_name(one.role)}: {estimate.mean:.3f} [{estimate.interval.low:.3f}, {estimate.interval.high:.3f}], "
        f"{estimate.num_episodes} episodes, {one.checkpoint_id}"
    )
    drawing.polyline([(x, axis.px(estimate.interval.low)), (x, axis.px(estimate.interval.high))], style)
    if other is not None:
        hollow = f"{other.mean:.3f} [{other.interval.low:.3f}, {other.interval.high:.3f}]"
        drawing.circle(x + 20, axis.px(other.mean), 4, f"hollow line {style}", hollow)
    drawing.circle(x, axis.px(estimate.mean), 5.5, style, hint)
    drawing.text(x, axis.px(estimate.interval.high) - 6, f"{estimate.mean:.3f}".removeprefix("0"), "small halo", "middle")


def _iteration_bands(
    drawing: Drawing, columns: Sequence[tuple[str, str]], left: float, column_px: float, top: float, height: float
) -> None:
    iterations = list(dict.fromkeys(iteration for iteration, _ in columns))
    for index, (_, role) in enumerate(columns):
        drawing.text(left + column_px * (index + 0.5), height - 36, role_name(role), "small", "middle")
    for position, iteration in enumerate(iterations):
        mine = [index for index, column in enumerate(columns) if column[0] == iteration]
        x, width = left + column_px * mine[0], column_px * len(mine)
        drawing.text(x + width / 2, height - 16, f"iteration {int(iteration)}", "small muted", "middle")
        if position:
            drawing.line(x, top - 6, x, height - 10, "grid")


def _grid(drawing: Drawing, axis: Axis, left: float, right: float, form: str) -> None:
    for tick in axis.ticks():
        y = axis.px(tick)
        drawing.line(left, y, right, y, "grid")
        drawing.text(left - 8, y + 4, form.format(tick), "small muted", "end")


def routing_flow(iteration: str, found: Iterable[Flow]) -> str:
    """Where the episodes of an iteration went: from what they were run for, over their route, to the reason."""
    flows = {(flow.purpose, flow.route, flow.reason): flow.num for flow in found}
    total = sum(flows.values())
    drawing = Drawing(720, 320, f"Routing of iteration {int(iteration)}")
    drawing.text(14, 22, f"Routing, iteration {int(iteration)}", "strong")
    drawing.text(160, 22, f"{total} episodes: why they were run, where they went, what decided", "small muted")
    if not total:
        drawing.text(14, 70, "nothing was routed yet", "muted")
        return drawing.render()
    routes = [route for route in ROUTE_STYLE if any(key[1] == route for key in flows)]
    reasons = sorted({key[1:] for key in flows}, key=lambda k: (routes.index(k[0]), -sum(n for f, n in flows.items() if f[1:] == k), k[1]))
    scale = (320 - 56 - 12 * max(2, len(reasons) - 1)) / total
    left = _stack(drawing, 96, sorted({key[0] for key in flows}), _sums(flows, 0), scale, before=True)
    middle = _stack(drawing, 330, routes, _sums(flows, 1), scale)
    right = _stack(drawing, 560, reasons, {key: sum(n for f, n in flows.items() if f[1:] == key) for key in reasons}, scale)
    _ribbons(drawing, 108, 330, left, middle, _pairs(flows, lambda key: (key[0], key[1])), lambda pair: pair[1], scale)
    _ribbons(drawing, 342, 560, middle, right, _pairs(flows, lambda key: (key[1], key[1:])), lambda pair: pair[0], scale)
    return drawing.render()


def _sums(flows: Mapping[tuple[str, str, str], int], position: int) -> dict[Any, int]:
    sums: dict[Any, int] = defaultdict(int)
    for key, num in flows.items():
        sums[key[position]] += num
    return sums


def _pairs(flows: Mapping[tuple[str, str, str], int], pair_of: Any) -> dict[tuple[Any, Any], int]:
    pairs: dict[tuple[Any, Any], int] = defaultdict(int)
    for key, num in flows.items():
        pairs[pair_of(key)] += num
    return pairs


def _stack(
    drawing: Drawing, x: float, nodes: Sequence[Any], sizes: Mapping[Any, int], scale: float, *, before: bool = False
) -> dict[Any, float]:
    """One column of nodes from the top down; returns the upper edge of each."""
    tops, y = {}, 42.0
    total = sum(sizes[node] for node in nodes)
    for node in nodes:
        height = max(2.0, sizes[node] * scale)
        route = node[0] if isinstance(node, tuple) else node
        label = (
            node[1]
            if isinstance(node, tuple)
            else {"rollout": "rollouts", "annotation": "annotated", "gateway": "the gateway"}.get(node, node)
        )
        drawing.rect(x, y, 12, height, f"bar {ROUTE_STYLE.get(route, 'blue')}", radius=2, hint=f"{label}: {sizes[node]}")
        middle = y + height / 2
        if before:
            drawing.text(x - 8, middle, label, "small", "end")
            drawing.text(x - 8, middle + 13, str(sizes[node]), "small muted", "end")
        else:
            style = "small strong" if route == node else "small"
            drawing.text(x + 18, middle + 4, f"{label}  {sizes[node]} ({sizes[node] / total:.0%})", style)
        tops[node] = y
        y += height + 12
    return tops


def _ribbons(
    drawing: Drawing,
    x1: float,
    x2: float,
    tops1: Mapping[Any, float],
    tops2: Mapping[Any, float],
    pairs: Mapping[tuple[Any, Any], int],
    route_of: Any,
    scale: float,
) -> None:
    used1, used2 = dict(tops1), dict(tops2)
    order1, order2 = list(tops1), list(tops2)
    bend = (x1 + x2) / 2
    for pair in sorted(pairs, key=lambda p: (order1.index(p[0]), order2.index(p[1]))):
        height = max(1.0, pairs[pair] * scale)
        y1, y2 = used1[pair[0]], used2[pair[1]]
        used1[pair[0]], used2[pair[1]] = y1 + height, y2 + height
        data = (
            f"M{x1:.1f},{y1:.1f}C{bend:.1f},{y1:.1f} {bend:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"
            f"V{y2 + height:.1f}C{bend:.1f},{y2 + height:.1f} {bend:.1f},{y1 + height:.1f} {x1:.1f},{y1 + height:.1f}Z"
        )
        drawing.path(data, f"flow {ROUTE_STYLE[route_of(pair)]}", str(pairs[pair]))


def annotation_bars(summaries: Mapping[str, IterationSummary]) -> str:
    """Decisions of the annotators by iteration; empty when there are none."""
    counts: dict[str, Mapping[str, float]] = {
        f"iteration {int(iteration)}": {decision.replace("_", " "): num for decision, num in summary.decisions.items()}
        for iteration, summary in summaries.items()
        if summary.decisions
    }
    styles = {decision.replace("_", " "): style for decision, style in DECISION_STYLE.items()}
    return _bars("Annotated steps", counts, styles, "{:.0f}") if counts else ""


def mixture_bars(summaries: Mapping[str, IterationSummary], kind: str) -> str:
    """What an epoch of the `kind` dataset (ct or sft) is made of, in expected draws by component and iteration; empty without one."""
    stage = f"{kind}_dataset"
    draws = {f"iteration {int(iteration)}": summary.draws[stage] for iteration, summary in summaries.items() if stage in summary.draws}
    return _bars(f"{kind.upper()} samples an epoch", draws, COMPONENT_STYLE, "{:.0f}") if draws else ""


def time_bars(seconds: Mapping[str, Mapping[str, float]]) -> str:
    """Wall time of the stages by iteration, in seconds; empty when nothing is known."""
    stages = list(dict.fromkeys(stage for of in seconds.values() for stage in of))
    styles = {role_name(stage): COLOURS[index % len(COLOURS)] for index, stage in enumerate(stages)}
    named = {label: {role_name(stage): value for stage, value in of.items()} for label, of in seconds.items() if of}
    return _bars("Time by stage", named, styles, "{:.0f} s") if named else ""


def _bars(title: str, rows: Mapping[str, Mapping[str, float]], styles: Mapping[str, str], form: str) -> str:
    """Horizontal stacked bars with the parts' labels in them where there is room."""
    left, bar_px, gap_px, top, length_px = 96.0, 26.0, 14.0, 66.0, 600.0
    drawing = Drawing(left + length_px + 80, top + len(rows) * (bar_px + gap_px) + 4, title)
    drawing.text(14, 22, title, "strong")
    legend(drawing, 14, 46, [(style, name) for name, style in styles.items() if any(name in parts for parts in rows.values())])
    longest = max(sum(parts.values()) for parts in rows.values()) or 1.0
    for index, (label, parts) in enumerate(rows.items()):
        x, y = left, top + index * (bar_px + gap_px)
        drawing.text(left - 10, y + bar_px / 2 + 4, label, "small", "end")
        for name in (name for name in styles if name in parts):
            width = parts[name] / longest * length_px
            drawing.rect(x, y, max(0.0, width - 1), bar_px, f"bar {styles[name]}", radius=2, hint=f"{name}: {form.format(parts[name])}")
            x += width
        drawing.text(x + 8, y + bar_px / 2 + 4, form.format(sum(parts.values())), "small muted")
    return drawing.render()
