"""What one iteration gained, read from the warehouse: RL against its SFT start by domain, the merge against the specialists, success
within a step budget. Policies are compared on the instances that both were evaluated on.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from pipelines.reporting.overview import Tile
from warehouse.core.stages import is_rl, rl_stage, role_name
from warehouse.evaluation.evaluations import Evaluation, evaluations, success_by_domain
from warehouse.evaluation.merge_results import Mixture, Retention, mixtures, retentions
from warehouse.evaluation.statistics import Difference, Estimate, PairedComparison, TaskCount, compare_paired, macro_average

Outcomes = Mapping[tuple[str, Hashable], bool]
"""(task, seed) → solved. Crashed episodes have no outcome."""
MAX_BUDGETS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainGain:
    """One domain: the SFT start, the specialist, the merge, and what separates them. None where one of the two was not evaluated."""

    domain: str
    start: Estimate | None
    specialist: Estimate | None
    merged: Estimate | None
    gain: PairedComparison | None
    """the specialist against its SFT start."""
    merge_gain: PairedComparison | None
    """the merge against the SFT start."""
    difference: Difference | None
    """the merge minus the specialist."""
    kept: Retention | None
    """the merge's share of the specialist's success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationGains:
    policies: tuple[Evaluation, ...]
    domains: tuple[str, ...]
    success: Mapping[tuple[str, str], Estimate]
    """(role, domain) → success; the domain "" is the mean over all tasks."""
    gains: tuple[DomainGain, ...]
    budgets: Mapping[str, Sequence[tuple[int, Estimate]]]
    merge_weights: Mapping[str, float]
    mixtures: Sequence[Mixture]
    """what the search of the merge's weights tried."""


_EPISODES = """
select e.task_name, e.seed, e.outcome = 'success', e.num_steps from episodes e
semi join evaluations v on v.iteration = e.iteration and v.checkpoint_id = e.policy_id and v.split = e.split and v.task_id = e.task_id
    and v.checkpoint_role = $role
where e.iteration = $iteration and e.split = $split and e.purpose = 'evaluation' and e.outcome <> 'crashed'
    and ($domain is null or e.domain = $domain)
order by all
"""


def outcomes(con: duckdb.DuckDBPyConnection, iteration: str, role: str, split: str, domain: str | None = None) -> Outcomes:
    """What a policy solved of a split in an iteration's evaluation, of one domain or of all; empty for one that was not evaluated."""
    params = {"iteration": iteration, "role": role, "split": split, "domain": domain}
    return {(task, seed): solved for task, seed, solved, _ in con.execute(_EPISODES, params).fetchall()}


def compared(after: Outcomes, before: Outcomes) -> PairedComparison | None:
    """None where they have no instance in common, as in homes whose evaluation episodes were not kept."""
    return compare_paired(after, before) if after.keys() & before.keys() else None


def iteration_gains(con: duckdb.DuckDBPyConnection, iteration: str, split: str) -> IterationGains:
    """Everything that an iteration's page says about what was gained, on one split."""
    policies = evaluations(con, iteration=iteration, split=split)
    domains = sorted({domain for policy in policies for domain in policy.counts})
    kept = {retention.domain: retention for retention in retentions(con, iteration, split)}
    success = success_by_domain(con, iteration, split) | {(policy.role, ""): policy.success for policy in policies}
    return IterationGains(
        policies=tuple(policies),
        domains=tuple(domains),
        success=success,
        gains=tuple(_gain(con, iteration, split, domain, success, kept.get(domain)) for domain in domains),
        budgets=_budgets(con, iteration, split, policies),
        merge_weights=merge_weights(con, iteration),
        mixtures=mixtures(con, iteration),
    )


def tiles(gains: IterationGains) -> list[Tile]:
    """The iteration in a few figures."""
    found = []
    for role in ("sft_model", "merged_policy"):
        estimate = gains.success.get((role, ""))
        if estimate is not None:
            note = f"[{estimate.interval.low:.3f}, {estimate.interval.high:.3f}], {estimate.num_episodes} episodes, all tasks"
            found.append(Tile(label=role_name(role), value=f"{estimate.mean:.3f}", note=note))
    for gain in gains.gains:
        if gain.gain is not None:
            interval = gain.gain.difference.interval
            note = f"[{100 * interval.low:+.1f}, {100 * interval.high:+.1f}] points, {gain.gain.num_pairs} pairs"
            found.append(Tile(label=f"RL on {gain.domain}", value=f"{100 * gain.gain.difference.mean:+.1f}", note=note))
    return found


def _gain(
    con: duckdb.DuckDBPyConnection,
    iteration: str,
    split: str,
    domain: str,
    success: Mapping[tuple[str, str], Estimate],
    kept: Retention | None,
) -> DomainGain:
    roles = {"start": "sft_model", "specialist": rl_stage(domain), "merged": "merged_policy"}
    solved = {name: outcomes(con, iteration, role, split, domain) for name, role in roles.items()}
    beside = compared(solved["merged"], solved["specialist"])
    return DomainGain(
        domain=domain,
        gain=compared(solved["specialist"], solved["start"]),
        merge_gain=compared(solved["merged"], solved["start"]),
        difference=beside.difference if beside else None,
        kept=kept,
        start=success.get((roles["start"], domain)),
        specialist=success.get((roles["specialist"], domain)),
        merged=success.get((roles["merged"], domain)),
    )


def _budgets(
    con: duckdb.DuckDBPyConnection, iteration: str, split: str, policies: Sequence[Evaluation]
) -> dict[str, list[tuple[int, Estimate]]]:
    """Success of each policy within so many steps. A policy does not see its budget, and greedy episodes repeat: an episode that was solved
    in n steps is solved under every budget of at least n, and under none below."""
    found: dict[str, dict[str, list[int | None]]] = {}
    for policy in policies:
        by_task: dict[str, list[int | None]] = defaultdict(list)
        params = {"iteration": iteration, "role": policy.role, "split": split, "domain": None}
        for task, _, solved, num_steps in con.execute(_EPISODES, params).fetchall():
            by_task[task].append(num_steps if solved else None)
        if by_task:
            found[role_name(policy.role)] = by_task
    longest = max((steps or 0 for of_policy in found.values() for of in of_policy.values() for steps in of), default=0)
    budgets = _budget_steps(longest) if longest > 1 else []
    return {name: [(budget, macro_average(_within(of, budget))) for budget in budgets] for name, of in found.items()}


def _within(by_task: Mapping[str, Sequence[int | None]], budget: int) -> list[TaskCount]:
    return [
        TaskCount(task=task, num_success=sum(steps is not None and steps <= budget for steps in of), num_episodes=len(of))
        for task, of in by_task.items()
    ]


def _budget_steps(longest: int) -> list[int]:
    """Budgets up to the longest solved episode: all of them where they are few, else spread evenly over their logarithm."""
    if longest <= MAX_BUDGETS:
        return list(range(1, longest + 1))
    return sorted({round(longest ** (index / (MAX_BUDGETS - 1))) for index in range(MAX_BUDGETS)})


def merge_weights(con: duckdb.DuckDBPyConnection, iteration: str) -> dict[str, float]:
    """Weight of each specialist in the merge, by the stage that trained it; empty where there was none."""
    query = "select config from checkpoints where iteration = ? and stage = 'merged_policy'"
    row = con.execute(query, [iteration]).fetchone()
    weights = json.loads(row[0]).get("weights") if row else None
    if not isinstance(weights, dict):
        return {}
    made = con.execute("select checkpoint_id, stage from checkpoints where iteration = ?", [iteration]).fetchall()
    stage_of = {checkpoint_id: stage for checkpoint_id, stage in made if is_rl(stage)}
    return {stage_of.get(str(parent), str(parent)): float(weight) for parent, weight in weights.items()}
