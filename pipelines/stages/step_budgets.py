"""Inference-time scaling: the same policy on the same instances with growing step budgets, as `flywheel eval --step-budgets` reports it.

A budget takes the place of a task's own `max_steps`, as a number of steps (`20`) or as a multiple of it (`2x`); nothing else changes, so
what more steps are worth is what the curve shows (UI-TARS-2, arXiv 2509.02544, section on inference-time scaling).
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.progress import Progress
from rich.table import Table as RichTable

from agent.episode.episode import Episode, EpisodeRequest, Outcome
from agent.policy.policy import Policy
from assets.settings.profile import Profile
from pipelines.stages.evaluate import greedy_requests, task_counts
from pipelines.stages.sandboxes import open_collector
from sandbox.tasks.task import Split
from warehouse.core.errors import ConfigError
from warehouse.evaluation.statistics import Estimate, macro_average
from warehouse.reporting.gain_charts import budget_chart

MAX_STEPS = 1000
ALL_TASKS = "all tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBudget:
    """`amount` steps, or `amount` times a task's own."""

    label: str
    amount: float
    is_multiple: bool

    def of(self, request: EpisodeRequest) -> EpisodeRequest:
        """The same instance with this budget."""
        steps = round(self.amount * request.task.max_steps) if self.is_multiple else int(self.amount)
        task = request.task.model_copy(update={"max_steps": min(MAX_STEPS, max(1, steps))})
        return request.model_copy(update={"task": task})


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPoint:
    """Greedy success of one domain's tasks under one step budget. `cut_off`: share of episodes that the budget ended."""

    domain: str
    label: str
    success: Estimate
    steps_per_episode: float
    cut_off: float


def parse_budgets(text: str) -> tuple[StepBudget, ...]:
    """`5,10,20` or `0.5x,1x,2x`, each once. Raises ConfigError."""
    budgets = []
    for part in (part.strip() for part in text.split(",")):
        number, is_multiple = part.removesuffix("x"), part.endswith("x")
        try:
            amount = float(number)
        except ValueError:
            amount = 0.0
        if not 0 < amount <= MAX_STEPS or not (is_multiple or amount.is_integer()):
            raise ConfigError(
                f"--step-budgets {text!r}: {part!r} is neither a number of steps up to {MAX_STEPS} nor a multiple of the task's own; "
                "give e.g. 5,10,20,40 or 0.5x,1x,2x,4x"
            )
        budgets.append(StepBudget(label=part, amount=amount, is_multiple=is_multiple))
    if len({(budget.amount, budget.is_multiple) for budget in budgets}) != len(budgets):
        raise ConfigError(f"--step-budgets {text!r} names a budget twice: give each once")
    if len({budget.is_multiple for budget in budgets}) > 1:
        raise ConfigError(f"--step-budgets {text!r} mixes numbers of steps and multiples: give one kind, so that they make one curve")
    return tuple(sorted(budgets, key=lambda budget: budget.amount))


def scale_steps(
    profile: Profile, engine: Policy, split: Split, per_task: int, budgets: Sequence[StepBudget], console: Console
) -> list[BudgetPoint]:
    """Run every budget on the fixed instances of a split; one point a budget and domain, and one over all tasks."""
    episodes = asyncio.run(_run(profile, engine, split, per_task, budgets, console))
    return [point for budget in budgets for point in budget_points(budget, episodes[budget.label])]


async def _run(
    profile: Profile, engine: Policy, split: Split, per_task: int, budgets: Sequence[StepBudget], console: Console
) -> dict[str, list[Episode]]:
    requests = greedy_requests(profile.acting, engine.policy_id, split, per_task)
    found: dict[str, list[Episode]] = {}
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("episodes", total=len(requests) * len(budgets))
        async with open_collector(profile.acting) as collector:
            for budget in budgets:
                found[budget.label] = []
                async for episode in collector.collect(engine, [budget.of(request) for request in requests]):
                    found[budget.label].append(episode.model_copy(update={"screenshots": {}}))
                    bar.advance(task)
    return found


def budget_points(budget: StepBudget, episodes: Sequence[Episode]) -> list[BudgetPoint]:
    """Success of one budget by domain and over all tasks, averaged over tasks; crashed episodes do not count."""
    groups: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if episode.outcome is not Outcome.CRASHED:
            groups[episode.request.task.domain].append(episode)
            groups[ALL_TASKS].append(episode)
    return [
        BudgetPoint(
            domain=domain,
            label=budget.label,
            success=macro_average(task_counts(group)),
            steps_per_episode=fmean(len(episode.steps) for episode in group),
            cut_off=sum(episode.outcome is Outcome.TRUNCATED for episode in group) / len(group),
        )
        for domain, group in sorted(groups.items(), key=lambda item: (item[0] == ALL_TASKS, item[0]))
    ]


def print_points(points: Sequence[BudgetPoint], title: str, console: Console) -> None:
    """A row a domain and budget."""
    table = RichTable(title=title)
    for column in ("domain", "step budget", "success", "95 % interval", "steps an episode", "cut off", "episodes"):
        table.add_column(column, justify="left" if column == "domain" else "right")
    for domain in dict.fromkeys(point.domain for point in points):
        for point in (point for point in points if point.domain == domain):
            interval = point.success.interval
            table.add_row(
                domain,
                point.label,
                f"{point.success.mean:.3f}",
                f"{interval.low:.3f} – {interval.high:.3f}",
                f"{point.steps_per_episode:.1f}",
                f"{point.cut_off:.0%}",
                str(point.success.num_episodes),
            )
        table.add_section()
    console.print(table)


def write_points(points: Sequence[BudgetPoint], title: str, svg: Path | None, as_json: Path | None) -> None:
    """The curve as a drawing, the figures for a machine."""
    if svg is not None:
        curves = defaultdict[str, list[tuple[str, Estimate]]](list)
        for point in points:
            curves[point.domain].append((point.label, point.success))
        svg.write_text(budget_chart(curves, title, alone=True), encoding="utf-8")
    if as_json is not None:
        rows = [
            {
                "domain": point.domain,
                "budget": point.label,
                "success": point.success.mean,
                "low": point.success.interval.low,
                "high": point.success.interval.high,
                "episodes": point.success.num_episodes,
                "steps": point.steps_per_episode,
                "cut_off": point.cut_off,
            }
            for point in points
        ]
        as_json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
