"""Pictures of one training run and of what it gained: a small chart a question, each an SVG of its own, so that a page lays out as many as
fit beside each other. They stand inside a page that says svg.STYLE once.

Which metric is which is the trainers' business (docs/rl.md); one that a run did not leave has no chart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb

from warehouse.statistics import Estimate, Interval
from warehouse.svg import COLOURS, Axis, Drawing, legend, short

WIDTH, HEIGHT = 320.0, 176.0
MAX_POINTS_WITH_HINTS = 80
SAME = 1e-9
"""A curve that moves by less, of its size, does not move: means of equal numbers differ in their last digits."""
Points = list[tuple[int, float]]


def page_name(iteration: str, run: str | None = None) -> str:
    """File of an iteration's page in the report, or of a run's, which these charts are on."""
    return f"iteration-{iteration}.html" if run is None else f"run-{iteration}-{run}.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart: its title, what it tells, and its metrics with their labels."""

    title: str
    tells: str
    metrics: tuple[tuple[str, str], ...]


def _one(title: str, metric: str, tells: str = "") -> Panel:
    return Panel(title=title, tells=tells, metrics=((metric, ""),))


GROUPS: dict[str, tuple[Panel, ...]] = {
    "Outcome": (
        _one("reward", "reward", "verified, without shaping"),
        _one("success", "success", "mean over tasks, sampled"),
        _one("steps per episode", "steps_per_episode"),
        _one("think tokens a step", "think_tokens_per_step"),
        _one("tokens a step", "tokens_per_step"),
        _one("invalid actions", "invalid_actions", "share of steps"),
        Panel(title="rewarded alike", tells="share: nothing to learn from", metrics=(
            ("uniform_fraction", "episodes of a task"), ("group_zero_std", "groups"),
        )),
        Panel(title="episodes that did not end", tells="share", metrics=(
            ("truncated", "truncated"), ("timed_out", "timed out"), ("unanswered", "unanswered steps"),
        )),
    ),
    "Policy update": (
        _one("entropy", "entropy", "nats a token"),
        _one("KL", "kl", "approximate, nats a step, last epoch"),
        Panel(title="clip fraction", tells="share of tokens", metrics=(
            ("clip_fraction_low", "below"), ("clip_fraction_high", "above"), ("clip_fraction", "all"),
        )),
        Panel(title="λ of the policy", tells="effective GAE trace", metrics=(
            ("lambda_policy", "mean"), ("lambda_policy_min", "lowest"), ("lambda_policy_max", "highest"),
        )),
        _one("gradient norm", "grad_norm"),
        _one("learning rate", "learning_rate"),
        _one("replay loss", "replay_loss"),
        _one("engine against learner", "mismatch_kl", "KL before the first update"),
        Panel(title="off-policy correction", tells="by token", metrics=(
            ("correction_mean", "mean weight"), ("correction_dropped", "share left out"),
        )),
        Panel(title="faults that were handled", tells="", metrics=(
            ("exploded", "KL exploded"), ("rolled_back", "undone"), ("skipped_minibatches", "left out"),
        )),
    ),
    "Critic": (
        Panel(title="explained variance", tells="of returns", metrics=(
            ("explained_variance", "all episodes"), ("gate_explained_variance", "held out"),
        )),
        _one("value loss", "value_loss"),
        _one("critic steers", "critic_steers", "1: advantages come from the critic"),
    ),
    "Streaming": (
        Panel(title="staleness", tells="updates behind, by token", metrics=(("staleness_mean", "mean"), ("staleness_max", "highest"))),
        _one("episodes a batch", "episodes"),
        _one("sessions at work", "lease_busy_share", "share of their time held by unfinished episodes"),
        _one("environment steps a second", "env_steps_per_s"),
        _one("tokens written a second", "gen_tokens_per_s"),
        _one("generation during updates", "overlap_share", "share of the time that learning took"),
        Panel(title="seconds", tells="of a round", metrics=(
            ("wait_s", "wait"), ("gen_s", "generation"), ("env_s", "environment"), ("update_s", "update"),
        )),
    ),
    "Supervised": (
        _one("loss", "loss", "nats a learned token"),
        _one("held-out loss", "eval_loss"),
    ),
}  # fmt: skip
"""Charts of a run's page, by what they are about. A group without a metric is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    title: str
    charts: tuple[str, ...]


def run_groups(con: duckdb.DuckDBPyConnection, iteration: str, run: str) -> list[Group]:
    """The charts of a run, group by group; shaping components and tasks get groups of their own."""
    curves = run_curves(con, iteration, run)
    groups = []
    for title, panels in GROUPS.items():
        drawn = [_chart(panel, curves) for panel in panels]
        drawn += [staleness_bars(curves)] if title == "Streaming" else []
        groups.append(Group(title=title, charts=tuple(chart for chart in drawn if chart)))
    shaping = tuple((name, name.partition("/")[2]) for name in curves if name.startswith("shaping/"))
    if shaping:
        panel = Panel(title="shaping", tells="added to an episode's reward", metrics=shaping)
        groups.append(Group(title="Reward shaping", charts=(_chart(panel, curves),)))
    tasks = [name for name in curves if name.startswith("success/")]
    by_task = tuple(_chart(_one(name.partition("/")[2], name), curves, floor=0.0, ceiling=1.0) for name in tasks)
    groups.append(Group(title="Success by task while learning", charts=by_task))
    return [group for group in groups if group.charts]


def run_curves(con: duckdb.DuckDBPyConnection, iteration: str, run: str) -> dict[str, Points]:
    """Every metric of a run, by name: (step, value) in order."""
    query = "select metric, step, value from training_metrics where iteration = ? and run = ? order by metric, step"
    curves: dict[str, Points] = defaultdict(list)
    for metric, step, value in con.execute(query, [iteration, run]).fetchall():
        curves[metric].append((step, value))
    return dict(curves)


def _chart(panel: Panel, curves: Mapping[str, Points], *, floor: float | None = None, ceiling: float | None = None) -> str:
    """One panel; empty where the run has none of its metrics, or they never change and the panel has no range of its own."""
    series = {label: curves[metric] for metric, label in panel.metrics if metric in curves}
    values = [value for points in series.values() for _, value in points]
    if not values or (ceiling is None and len(values) > 1 and max(values) - min(values) <= SAME * max(1.0, abs(max(values)))):
        return ""
    steps = [step for points in series.values() for step, _ in points]
    drawing = Drawing(WIDTH, HEIGHT, f"{panel.title}, {panel.tells}" if panel.tells else panel.title)
    drawing.text(12, 20, panel.title, "strong")
    if len(series) > 1 or "" not in series:
        legend(drawing, 12, 38, [(COLOURS[index % len(COLOURS)], label) for index, label in enumerate(series)])
    elif panel.tells:
        drawing.text(12, 37, panel.tells, "small muted")
    left, top, right, bottom = 50.0, 52.0, WIDTH - 14, HEIGHT - 26
    y_axis = Axis(min(values) if floor is None else floor, max(values) if ceiling is None else ceiling, bottom, top)
    x_axis = Axis(min(steps), max(steps), left, right)
    for tick in _ticks(y_axis):
        drawing.line(left, y_axis.px(tick), right, y_axis.px(tick), "grid")
        drawing.text(left - 6, y_axis.px(tick) + 4, short(tick), "small muted", "end")
    drawing.text(left, bottom + 16, str(min(steps)), "small muted")
    drawing.text(right, bottom + 16, str(max(steps)), "small muted", "end")
    for index, (label, points) in enumerate(series.items()):
        _line(drawing, points, x_axis, y_axis, COLOURS[index % len(COLOURS)], label)
    return drawing.render(alone=False)


def staleness_bars(curves: Mapping[str, Points]) -> str:
    """Share of a run's tokens by how many updates their weights lagged behind, a mean over its rounds; empty where none lagged."""
    lags = {name.partition("/")[2]: points for name, points in curves.items() if name.startswith("staleness/")}
    num_rounds = max((len(points) for points in lags.values()), default=1)
    shares = {lag: sum(value for _, value in points) / num_rounds for lag, points in lags.items()}
    if set(shares) <= {"0"}:
        return ""
    drawing = Drawing(WIDTH, HEIGHT, "Tokens by staleness")
    drawing.text(12, 20, "tokens by staleness", "strong")
    drawing.text(12, 37, "share, by updates behind", "small muted")
    axis, left = Axis(0.0, max(shares.values()), HEIGHT - 26, 58.0), 24.0
    column = (WIDTH - 2 * left) / len(shares)
    for place, (lag, share) in enumerate(sorted(shares.items(), key=lambda item: (len(item[0]), item[0]))):
        x, y = left + column * place, axis.px(share)
        drawing.rect(x + 3, y, column - 6, HEIGHT - 26 - y, "bar blue", radius=2, hint=f"{lag}: {share:.1%}")
        drawing.text(x + column / 2, y - 4, f"{share:.0%}", "small", "middle")
        drawing.text(x + column / 2, HEIGHT - 10, lag, "small muted", "middle")
    return drawing.render(alone=False)


def _ticks(axis: Axis) -> list[float]:
    """About four round values, and never fewer than two."""
    return next((ticks for num in (4, 6, 8) if len(ticks := axis.ticks(num)) > 1), axis.ticks(10))


def _line(drawing: Drawing, points: Points, x_axis: Axis, y_axis: Axis, style: str, label: str) -> None:
    places = [(x_axis.px(step), y_axis.px(value)) for step, value in points]
    drawing.polyline(places, style)
    shown = range(len(points)) if len(points) <= MAX_POINTS_WITH_HINTS else [len(points) - 1]
    for index in shown:
        step, value = points[index]
        drawing.circle(*places[index], 2.2, style, f"{label} {short(value)} at {step}".strip())


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


def budget_chart(curves: Mapping[str, Sequence[tuple[int, Estimate]]]) -> str:
    """Success against the number of steps an episode may take, a line a policy; empty where nothing was evaluated."""
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return ""
    width, height, left, top = 480.0, 260.0, 52.0, 56.0
    drawing = Drawing(width, height, "Success within a step budget")
    drawing.text(12, 22, "Greedy success within a step budget", "strong")
    legend(drawing, 12, 42, [(COLOURS[index % len(COLOURS)], label) for index, label in enumerate(curves)])
    y_axis = Axis(0.0, 1.0, height - 34, top)
    x_axis = Axis(min(budget for budget, _ in points), max(budget for budget, _ in points), left, width - 20)
    for tick in y_axis.ticks():
        drawing.line(left, y_axis.px(tick), width - 20, y_axis.px(tick), "grid")
        drawing.text(left - 8, y_axis.px(tick) + 4, f"{tick:.0%}", "small muted", "end")
    for budget in sorted({budget for budget, _ in points}):
        drawing.text(x_axis.px(budget), height - 14, str(budget), "small muted", "middle")
    for index, (label, curve) in enumerate(curves.items()):
        style = COLOURS[index % len(COLOURS)]
        drawing.polyline([(x_axis.px(budget), y_axis.px(estimate.mean)) for budget, estimate in curve], style)
        for budget, estimate in curve:
            span = f"[{estimate.interval.low:.3f}, {estimate.interval.high:.3f}]"
            drawing.circle(x_axis.px(budget), y_axis.px(estimate.mean), 3.5, style, f"{label}, {budget} steps: {estimate.mean:.3f} {span}")
    return drawing.render(alone=False)
