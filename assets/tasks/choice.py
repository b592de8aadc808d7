"""Which task families a collection plays, and how often: those that the policy solves now and then. Pure functions of counts; what is known
of a policy is warehouse/evaluation/solve_rates.py, the seeds and the table are assets/tasks/pool.py.

Per domain, a share `explore` goes to families that nothing speaks for (never tried, or almost surely outside the bounds); the rest goes to
the others by the posterior probability that the policy's solve rate lies within the bounds. With few episodes that probability stays near
its prior, so that few episodes do not decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assets.settings.profile import SelfChallengeSettings
from sandbox.tasks.task import Task
from warehouse.evaluation.solve_rates import Solved

NEGLIGIBLE = 0.05
"""A family that is in the bounds with less probability gets no more than exploration gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How many instances of a family are played, and why."""

    task: Task
    num: int
    solved: Solved | None
    likelihood: float | None
    """That its solve rate lies within the bounds; None where it was never tried."""
    why: str


def choose(tasks: Sequence[Task], rates: Mapping[str, Solved], settings: SelfChallengeSettings, per_task: int, most: int) -> list[Choice]:
    """For every family, in their order: as many instances a domain as if each family had `per_task`; none of a family over `most`.

    Where nothing has been tried in a domain, each of its families gets `per_task`.
    """
    domains: dict[str, list[Task]] = {}
    for task in tasks:
        domains.setdefault(task.domain, []).append(task)
    chosen = {choice.task.task_id: choice for group in domains.values() for choice in _of_domain(group, rates, settings, per_task, most)}
    return [chosen[task.task_id] for task in tasks]


def _of_domain(
    tasks: Sequence[Task], rates: Mapping[str, Solved], settings: SelfChallengeSettings, per_task: int, most: int
) -> list[Choice]:
    if not any(task.task_id in rates for task in tasks):
        return [Choice(task=task, num=per_task, solved=None, likelihood=None, why="seed") for task in tasks]
    likelihoods = [rates[task.task_id].likelihood_between(settings.low, settings.high) if task.task_id in rates else None for task in tasks]
    counts = share_out(_weights(likelihoods, settings.explore), per_task * len(tasks), most)
    return [
        Choice(
            task=task,
            num=num,
            solved=rates.get(task.task_id),
            likelihood=likelihood,
            why=_why(rates.get(task.task_id), likelihood, settings),
        )
        for task, num, likelihood in zip(tasks, counts, likelihoods, strict=True)
    ]


def _weights(likelihoods: Sequence[float | None], explore: float) -> list[float]:
    """Shares that add up to 1."""
    aimed = [likelihood if likelihood is not None and likelihood >= NEGLIGIBLE else 0.0 for likelihood in likelihoods]
    others = [not weight for weight in aimed]
    if not any(aimed):
        return [1 / len(aimed)] * len(aimed)
    if not any(others):
        others = [True] * len(aimed)
    return [(1 - explore) * weight / sum(aimed) + explore * is_other / sum(others) for weight, is_other in zip(aimed, others, strict=True)]


def share_out(weights: Sequence[float], total: int, most: int) -> list[int]:
    """Whole numbers that add up to `total` (or to the number that fits), nearest to the weights: by largest remainder, the first of
    equals first. None is over `most`: what one cannot take goes to the others."""
    counts = [0] * len(weights)
    left = min(total, most * len(weights))
    open_ = [at for at, weight in enumerate(weights) if weight > 0] or list(range(len(weights)))
    while left:
        whole = sum(weights[at] for at in open_)
        ideal = {at: left * weights[at] / whole if whole else left / len(open_) for at in open_}
        given = {at: min(int(ideal[at] + 1e-9), most - counts[at]) for at in open_}
        rest = left - sum(given.values())
        for at in sorted(open_, key=lambda at: (-(ideal[at] - int(ideal[at] + 1e-9)), at)):
            if rest and given[at] < most - counts[at] and given[at] <= ideal[at]:
                given[at] += 1
                rest -= 1
        for at, num in given.items():
            counts[at] += num
        left = rest
        open_ = [at for at in open_ if counts[at] < most] or [at for at in range(len(weights)) if counts[at] < most]
    return counts


def _why(solved: Solved | None, likelihood: float | None, settings: SelfChallengeSettings) -> str:
    if solved is None or likelihood is None:
        return "explore: never tried"
    bounds = f"{likelihood:.2f} that the rate lies in [{settings.low:g}, {settings.high:g}]"
    figures = f"solved {solved.num_success} of {solved.num_episodes}, {bounds}"
    return f"{'aim' if likelihood >= NEGLIGIBLE else 'explore'}: {figures}"
