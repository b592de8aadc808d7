"""Pictures of training runs: a page's small charts, a question each, and their main curves as one drawing, of one run or over iterations.

Which metric is which is the trainers' business (docs/rl.md); one that a run did not leave has no chart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb

from warehouse.core.stages import role_name
from warehouse.reporting.svg import COLOURS, Axis, Drawing, legend, short

WIDTH, HEIGHT = 320.0, 176.0
MAX_POINTS_WITH_HINTS = 80
SAME = 1e-9
"""A curve that moves by less, of its size, does not move: means of equal numbers differ in their last digits."""
Points = list[tuple[int, float]]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart: its title and subtitle, and its metrics with their labels. `is_main`: its first metric is among the curves that are
    drawn together."""

    title: str
    subtitle: str
    metrics: tuple[tuple[str, str], ...]
    is_main: bool = False


def _one(title: str, metric: str, subtitle: str = "") -> Panel:
    return Panel(title=title, subtitle=subtitle, metrics=((metric, ""),))


def _main(title: str, metric: str, subtitle: str = "") -> Panel:
    return Panel(title=title, subtitle=subtitle, metrics=((metric, ""),), is_main=True)


GROUPS: dict[str, tuple[Panel, ...]] = {
    "Supervised": (_main("loss", "loss", "nats a learned token"), _main("held-out loss", "eval_loss")),
    "Outcome": (
        _main("reward", "reward", "verified, without shaping"),
        _main("success", "success", "mean over tasks, sampled"),
        _main("steps per episode", "steps_per_episode"),
        _main("think tokens a step", "think_tokens_per_step"),
        _one("tokens a step", "tokens_per_step"),
        _one("invalid actions", "invalid_actions", "share of steps"),
        Panel(
            title="rewarded alike",
            subtitle="share: nothing to learn from",
            metrics=(("uniform_fraction", "episodes of a task"), ("group_zero_std", "groups")),
        ),
        Panel(
            title="episodes that did not end",
            subtitle="share",
            metrics=(("truncated", "truncated"), ("timed_out", "timed out"), ("unanswered", "unanswered steps")),
        ),
    ),
    "Policy update": (
        _main("entropy", "entropy", "nats a token"),
        _main("KL", "kl", "approximate, nats a step, last epoch"),
        Panel(
            title="clip fraction",
            subtitle="share of tokens",
            is_main=True,
            metrics=(("clip_fraction", "all"), ("clip_fraction_low", "below"), ("clip_fraction_high", "above")),
        ),
        Panel(
            title="λ of the policy",
            subtitle="effective GAE trace",
            metrics=(("lambda_policy", "mean"), ("lambda_policy_min", "lowest"), ("lambda_policy_max", "highest")),
        ),
        _main("gradient norm", "grad_norm"),
        _main("learning rate", "learning_rate"),
        _one("replay loss", "replay_loss"),
        _main("engine against learner", "mismatch_kl", "KL before the first update"),
        Panel(
            title="off-policy correction",
            subtitle="by token",
            metrics=(("correction_mean", "mean weight"), ("correction_dropped", "share left out")),
        ),
        Panel(
            title="faults that were handled",
            subtitle="",
            metrics=(("exploded", "KL exploded"), ("rolled_back", "undone"), ("skipped_minibatches", "left out")),
        ),
    ),
    "Critic": (
        Panel(
            title="explained variance",
            subtitle="of returns",
            is_main=True,
            metrics=(("explained_variance", "all episodes"), ("gate_explained_variance", "held out")),
        ),
        _main("value loss", "value_loss"),
        _one("critic steers", "critic_steers", "1: advantages come from the critic"),
    ),
    "Streaming": (
        Panel(
            title="staleness",
            subtitle="updates behind, by token",
            is_main=True,
            metrics=(("staleness_mean", "mean"), ("staleness_max", "highest")),
        ),
        _one("episodes a batch", "episodes"),
        _one("sessions at work", "lease_busy_share", "share of their time held by unfinished episodes"),
        _one("environment steps a second", "env_steps_per_s"),
        _one("tokens written a second", "gen_tokens_per_s"),
        _one("generation during updates", "overlap_share", "share of the time that learning took"),
        Panel(
            title="seconds",
            subtitle="of a round",
            metrics=(("wait_s", "wait"), ("gen_s", "generation"), ("env_s", "environment"), ("update_s", "update")),
        ),
    ),
}
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
        panel = Panel(title="shaping", subtitle="added to an episode's reward", metrics=shaping)
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


def training_curves(con: duckdb.DuckDBPyConnection, iteration: str, run: str) -> str:
    """The main curves of one training run; empty when it left none."""
    curves = run_curves(con, iteration, run)
    return _main_curves({metric: {"": points} for metric, points in curves.items()}, f"{role_name(run)}, iteration {int(iteration)}")


def iteration_curves(con: duckdb.DuckDBPyConnection, run: str) -> str:
    """The main curves of one stage, one line an iteration; empty when there are none."""
    query = "select metric, iteration, step, value from training_metrics where run = ? order by metric, iteration, step"
    metrics: dict[str, dict[str, Points]] = defaultdict(lambda: defaultdict(list))
    for metric, iteration, step, value in con.execute(query, [run]).fetchall():
        metrics[metric][f"iteration {int(iteration)}"].append((step, value))
    return _main_curves(metrics, role_name(run))


def _main_curves(metrics: Mapping[str, Mapping[str, Points]], title: str) -> str:
    """One drawing of what moves among the main metrics: metric → label of a line → its points."""
    panels = [(panel.title, metrics.get(panel.metrics[0][0], {})) for of in GROUPS.values() for panel in of if panel.is_main]
    shown = [(name, series) for name, series in panels if _moves(series)]
    if not shown:
        return ""
    per_row = min(4, len(shown))
    width, height, top = 226.0, 138.0, 40.0
    drawing = Drawing(per_row * width + 12, top + height * -(-len(shown) // per_row), f"Training curves of {title}")
    drawing.text(12, 20, title, "strong")
    labels = list(dict.fromkeys(label for _, series in shown for label in series))
    if labels != [""]:
        legend(drawing, 26 + 7.4 * len(title), 20, [(COLOURS[place % len(COLOURS)], label) for place, label in enumerate(labels)])
    for place, (name, series) in enumerate(shown):
        x, y = 12 + width * (place % per_row), top + height * (place // per_row)
        drawing.text(x + 40, y + 13, name, "small")
        _plot(drawing, (x + 40, y + 20, x + width - 16, y + height - 26), series, labels)
    return drawing.render()


def _chart(panel: Panel, curves: Mapping[str, Points], *, floor: float | None = None, ceiling: float | None = None) -> str:
    """One panel; empty where the run has none of its metrics, or they never change and the panel has no range of its own."""
    series = {label: curves[metric] for metric, label in panel.metrics if metric in curves}
    if not series or (ceiling is None and not _moves(series)):
        return ""
    drawing = Drawing(WIDTH, HEIGHT, f"{panel.title}, {panel.subtitle}" if panel.subtitle else panel.title)
    drawing.text(12, 20, panel.title, "strong")
    if len(series) > 1 or "" not in series:
        legend(drawing, 12, 38, [(COLOURS[place % len(COLOURS)], label) for place, label in enumerate(series)])
    elif panel.subtitle:
        drawing.text(12, 37, panel.subtitle, "small muted")
    _plot(drawing, (50.0, 52.0, WIDTH - 14, HEIGHT - 26), series, list(series), floor=floor, ceiling=ceiling)
    return drawing.render(alone=False)


def _moves(series: Mapping[str, Points]) -> bool:
    """Whether there is a curve to look at: several values that are not all the same, or a single one."""
    values = [value for points in series.values() for _, value in points]
    return len(values) == 1 or (len(values) > 1 and max(values) - min(values) > SAME * max(1.0, abs(max(values))))


def _plot(
    drawing: Drawing,
    box: Box,
    series: Mapping[str, Points],
    labels: Sequence[str],
    *,
    floor: float | None = None,
    ceiling: float | None = None,
) -> None:
    """Lines over their steps inside `box`, each in the colour of its label's place among `labels`; values from `floor` to `ceiling`."""
    left, top, right, bottom = box
    values = [value for points in series.values() for _, value in points]
    steps = [step for points in series.values() for step, _ in points]
    y_axis = Axis(min(values) if floor is None else floor, max(values) if ceiling is None else ceiling, bottom, top)
    x_axis = Axis(min(steps), max(steps), left, right)
    for tick in _ticks(y_axis):
        drawing.line(left, y_axis.px(tick), right, y_axis.px(tick), "grid")
        drawing.text(left - 6, y_axis.px(tick) + 4, short(tick), "small muted", "end")
    drawing.text(left, bottom + 16, str(min(steps)), "small muted")
    drawing.text(right, bottom + 16, str(max(steps)), "small muted", "end")
    for label, points in series.items():
        _line(drawing, points, x_axis, y_axis, COLOURS[labels.index(label) % len(COLOURS)], label)


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
