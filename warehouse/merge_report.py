"""What merging the specialists kept and what the search of its weights found: figures, tables and a picture, from the tables.

A specialist's own domain is in its stage's name (`rl_<domain>`). Success is averaged over the tasks of a domain, with 95 % intervals.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb

from warehouse.statistics import Difference, Estimate, Interval, TaskCount, difference, macro_average
from warehouse.svg import COLOURS, Axis, Drawing, legend

SPECIALIST_PREFIX = "rl_"
JOINT_PREFIX = "rl_joint_"
KEPT_SHARE = 0.95
"""Share of a specialist's success on its own domain that a merge is asked to keep."""
MAX_MIXTURES_DRAWN = 24


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
        mean=estimate.mean * factor, standard_error=estimate.standard_error * factor, num_tasks=estimate.num_tasks,
        num_episodes=estimate.num_episodes, interval=Interval(low=estimate.interval.low * factor, high=estimate.interval.high * factor),
    )  # fmt: skip


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
        return f"{shares} {self.method}" if self.method == "specialist" else shares


def successes(con: duckdb.DuckDBPyConnection, iteration: str, split: str = "holdout") -> dict[tuple[str, str], Estimate]:
    """(policy's role, domain) → success, of every policy that was evaluated on the split: SFT, specialists, joint ones, the merge."""
    query = (
        "select checkpoint_role, domain, task_name, sum(num_success)::bigint, sum(num_episodes)::bigint from evaluations "
        "where iteration = ? and split = ? and num_episodes > 0 group by all order by all"
    )
    counts: dict[tuple[str, str], list[TaskCount]] = defaultdict(list)
    for role, domain, task, num_success, num_episodes in con.execute(query, [iteration, split]).fetchall():
        counts[role, domain].append(TaskCount(task=task, num_success=num_success, num_episodes=num_episodes))
    return {key: macro_average(of) for key, of in counts.items()}


def successes_table(found: Mapping[tuple[str, str], Estimate]) -> str:
    """Markdown: a row a policy, a column a domain. Specialists, joint training and the merge stand side by side."""
    domains = sorted({domain for _, domain in found})
    rank = {"sft_model": 0, "merged_policy": 3}
    roles = sorted({role for role, _ in found}, key=lambda role: (rank.get(role, 1 + role.startswith(JOINT_PREFIX)), role))
    rows = [["policy", *domains], ["---"] * (1 + len(domains))]
    return _markdown([*rows, *([role, *(_cell(found[role, of]) if (role, of) in found else "–" for of in domains)] for role in roles)])


def retentions(con: duckdb.DuckDBPyConnection, iteration: str, split: str = "holdout") -> list[Retention]:
    """What the merged policy keeps of each specialist on its own domain, from `evaluations`; joint policies are no specialists."""
    found = successes(con, iteration, split)
    return [
        Retention(domain=domain, role=role, split=split, specialist=estimate, merged=found["merged_policy", domain])
        for (role, domain), estimate in found.items()
        if role == SPECIALIST_PREFIX + domain and ("merged_policy", domain) in found
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
            candidate=candidate, method=method, weights=json.loads(weights), is_chosen=is_chosen,
            all_tasks=macro_average([count for group in of.values() for count in group]),
            domains={domain: macro_average(group) for domain, group in of.items()},
        )
        for (candidate, method, weights, is_chosen), of in counts.items()
    ]  # fmt: skip


def kept_by_search(tried: Sequence[Mixture]) -> list[Retention]:
    """What the chosen mixture keeps of each specialist on the instances that the search chose by (`eval`)."""
    chosen = next((mixture for mixture in tried if mixture.is_chosen), None)
    if chosen is None:
        return []
    alone = {max(mixture.weights, key=lambda stage: mixture.weights[stage]): mixture for mixture in tried if _is_specialist(mixture)}
    pairs = [(role, role.removeprefix(SPECIALIST_PREFIX), mixture) for role, mixture in alone.items()]
    return [
        Retention(domain=domain, role=role, split="eval", specialist=mixture.domains[domain], merged=chosen.domains[domain])
        for role, domain, mixture in pairs
        if domain in mixture.domains and domain in chosen.domains
    ]


def _is_specialist(mixture: Mixture) -> bool:
    """A specialist itself: named so, or the corner of a method whose corners are the specialists."""
    corner = sorted(mixture.weights.values())[-1] == 1 and sum(map(bool, mixture.weights.values())) == 1
    return mixture.method == "specialist" or (corner and mixture.method in ("linear", "slerp"))


def retention_table(rows: Sequence[Retention]) -> str:
    """Markdown: each specialist against the merge on its own domain."""
    if not rows:
        return "no specialist and merge were evaluated on the same domain"
    table = [["domain", "split", "specialist", "merge", "kept", f"{KEPT_SHARE:.0%} of the specialist"], ["---"] * 6]
    for row in rows:
        share = f"{row.share:.0%}" if row.share is not None else "–"
        table.append([row.domain, row.split, _cell(row.specialist), _cell(row.merged), share, row.verdict])
    return _markdown(table)


def mixtures_table(tried: Sequence[Mixture]) -> str:
    """Markdown: every mixture, its success on each domain and over all tasks, the chosen one in bold."""
    stages, domains = list(tried[0].weights), sorted({domain for mixture in tried for domain in mixture.domains})
    rows = [["method", *stages, *domains, "all tasks"], ["---"] * (2 + len(stages) + len(domains))]
    for mixture in tried:
        successes = [_cell(mixture.domains[domain]) if domain in mixture.domains else "–" for domain in domains]
        cells = [mixture.method, *(f"{weight:.3g}" for weight in mixture.weights.values()), *successes, _cell(mixture.all_tasks)]
        rows.append([f"**{cell}**" if mixture.is_chosen else cell for cell in cells])
    return _markdown(rows)


def mixtures_chart(tried: Sequence[Mixture]) -> str:
    """A row a mixture, the best first: success over all tasks and on each domain with 95 % intervals; empty without one."""
    if not tried:
        return ""
    shown = sorted(tried, key=lambda mixture: (-mixture.all_tasks.mean, mixture.candidate))[:MAX_MIXTURES_DRAWN]
    domains = sorted({domain for mixture in shown for domain in mixture.domains})
    styles = {"all tasks": "grey", **{domain: COLOURS[place % len(COLOURS)] for place, domain in enumerate(domains)}}
    left, top, mark_px = 190.0, 76.0, 9.0
    row_px = mark_px * (len(domains) + 1) + 12
    drawing = Drawing(780, top + row_px * len(shown) + 34, "Success of every mixture on the eval split")
    drawing.text(14, 22, "Mixtures of the specialists, eval split", "strong")
    drawing.text(14, 42, "weights of " + " / ".join(shown[0].weights) + "; 95 % intervals; the chosen one is marked", "small muted")
    legend(drawing, 14, 62, [(style, name) for name, style in styles.items()])
    axis = Axis(0.0, 1.0, left, drawing.width - 20)
    for tick in axis.ticks():
        drawing.line(axis.px(tick), top, axis.px(tick), top + row_px * len(shown), "grid")
        drawing.text(axis.px(tick), top + row_px * len(shown) + 18, f"{tick:.0%}", "small muted", "middle")
    for place, mixture in enumerate(shown):
        y = top + row_px * place + 8
        label, style = (f"▸ {mixture.label}", "small strong") if mixture.is_chosen else (mixture.label, "small")
        drawing.text(left - 12, y + row_px / 2 - 4, label, style, "end")
        estimates = {"all tasks": mixture.all_tasks, **mixture.domains}
        for line, (name, colour) in enumerate(styles.items()):
            if name in estimates:
                _mark(drawing, axis, y + mark_px * line, colour, f"{mixture.label}, {name}", estimates[name])
    return drawing.render()


def _mark(drawing: Drawing, axis: Axis, y: float, style: str, name: str, estimate: Estimate) -> None:
    drawing.polyline([(axis.px(estimate.interval.low), y), (axis.px(estimate.interval.high), y)], style)
    drawing.circle(axis.px(estimate.mean), y, 3.5, style, f"{name}: {_cell(estimate)}, {estimate.num_episodes} episodes")


def _cell(estimate: Estimate) -> str:
    return f"{estimate.mean:.3f} [{estimate.interval.low:.2f}, {estimate.interval.high:.2f}]"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
