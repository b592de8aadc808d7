"""What merging kept of the specialists, and what the search for its weights found, read from the tables. merge_report.py shows it.

A specialist's own domain is in its stage's name. Success is averaged over the tasks of a domain, with 95 % intervals.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from warehouse.core.stages import SPECIALIST, domain_of
from warehouse.evaluation.evaluations import REPORTED_SPLIT, success_by_domain
from warehouse.evaluation.statistics import Difference, Estimate, Interval, TaskCount, difference, macro_average

KEPT_SHARE = 0.95
"""Share of a specialist's success on its own domain that a merge is asked to keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """A specialist on its own domain, and what was merged of it and of others there."""

    domain: str
    role: str
    split: str
    specialist: Estimate
    merged: Estimate

    @property
    def share(self) -> float | None:
        """Of the specialist's success that the merge has; None where the specialist solves nothing."""
        return self.merged.mean / self.specialist.mean if self.specialist.mean > 0 else None

    @property
    def margin(self) -> Difference:
        """Success of the merge beyond KEPT_SHARE of the specialist's."""
        return difference(_scaled(self.specialist, KEPT_SHARE), self.merged)

    @property
    def is_kept(self) -> bool:
        return self.margin.mean >= 0

    @property
    def verdict(self) -> str:
        """In words, and how sure the episodes make of it."""
        low, high = self.margin.interval.low, self.margin.interval.high
        if self.is_kept:
            return "kept" if low < 0 else "kept, proven"
        return "lost, proven" if high < 0 else "lost, within the interval"


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(
        mean=estimate.mean * factor,
        standard_error=estimate.standard_error * factor,
        num_tasks=estimate.num_tasks,
        num_episodes=estimate.num_episodes,
        interval=Interval(low=estimate.interval.low * factor, high=estimate.interval.high * factor),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """One candidate of the search. `weights` maps the specialists' stages to their weights."""

    candidate: int
    method: str
    weights: dict[str, float]
    is_chosen: bool
    all_tasks: Estimate
    domains: dict[str, Estimate]

    @property
    def label(self) -> str:
        shares = " / ".join(f"{weight:.3g}" for weight in self.weights.values())
        return f"{shares} {self.method}" if self.method == SPECIALIST else shares


def retentions(con: duckdb.DuckDBPyConnection, iteration: str, split: str = REPORTED_SPLIT) -> list[Retention]:
    """What the merged policy keeps of each specialist on its own domain, from `evaluations`; joint policies are not specialists."""
    found = success_by_domain(con, iteration, split)
    return [
        Retention(domain=domain, role=role, split=split, specialist=estimate, merged=found["merged_policy", domain])
        for (role, domain), estimate in found.items()
        if domain_of(role) == domain and ("merged_policy", domain) in found
    ]


def mixtures(con: duckdb.DuckDBPyConnection, iteration: str) -> list[Mixture]:
    """Every candidate of the iteration's search, in the order in which they were tried; none where the weights were given."""
    query = (
        "select candidate, method, weights, is_chosen, domain, task_name, num_success, num_episodes from merge_candidates "
        "where iteration = ? and num_episodes > 0 order by candidate, domain, task_name"
    )
    counts: dict[tuple[int, str, str, bool], dict[str, list[TaskCount]]] = defaultdict(lambda: defaultdict(list))
    for *key, domain, task, num_success, num_episodes in con.execute(query, [iteration]).fetchall():
        one = TaskCount(task=task, num_success=num_success, num_episodes=num_episodes)
        counts[key[0], key[1], key[2], key[3]][domain].append(one)
    return [
        Mixture(
            candidate=candidate,
            method=method,
            weights=json.loads(weights),
            is_chosen=is_chosen,
            all_tasks=macro_average([count for group in of.values() for count in group]),
            domains={domain: macro_average(group) for domain, group in of.items()},
        )
        for (candidate, method, weights, is_chosen), of in counts.items()
    ]


def kept_by_search(tried: Sequence[Mixture]) -> list[Retention]:
    """What the chosen mixture keeps of each specialist on the instances that the search chose by (`eval`)."""
    chosen = next((mixture for mixture in tried if mixture.is_chosen), None)
    if chosen is None:
        return []
    alone = {max(mixture.weights, key=lambda stage: mixture.weights[stage]): mixture for mixture in tried if _is_specialist(mixture)}
    return [
        Retention(domain=domain, role=role, split="eval", specialist=mixture.domains[domain], merged=chosen.domains[domain])
        for role, mixture in alone.items()
        if (domain := domain_of(role)) is not None and domain in mixture.domains and domain in chosen.domains
    ]


def _is_specialist(mixture: Mixture) -> bool:
    """A specialist itself: named so, or the corner of a method whose corners are the specialists."""
    corner = sorted(mixture.weights.values())[-1] == 1 and sum(map(bool, mixture.weights.values())) == 1
    return mixture.method == SPECIALIST or (corner and mixture.method in ("linear", "slerp"))
