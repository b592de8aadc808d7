"""What the page of one training run says, read from the warehouse: its curves, its tasks before and after, episodes to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from pipelines.reporting.episodes import EpisodeCard, Instance, evaluated, learned_from
from pipelines.reporting.gains import Outcomes, compared, outcomes
from pipelines.reporting.overview import Tile
from warehouse.core.stages import is_rl, rank, role_name
from warehouse.evaluation.evaluations import REPORTED_SPLIT, Evaluation, evaluations
from warehouse.evaluation.statistics import PairedComparison, TaskCount, macro_average
from warehouse.reporting.gain_charts import change_mark
from warehouse.reporting.iteration_summaries import IterationSummary
from warehouse.reporting.run_charts import Group, Points, run_curves, run_groups
from warehouse.reporting.steering import SteeredRound, steered_rounds
from warehouse.storage.tables import Warehouse

CHANGED_SHOWN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunName:
    iteration: str
    run: str

    @property
    def title(self) -> str:
        return f"{role_name(self.run)}, iteration {int(self.iteration)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """One task before and after the run; `mark` is a drawing."""

    task: str
    domain: str
    is_own: bool
    """whether the run trained on this domain."""
    before: TaskCount | None
    after: TaskCount | None
    mark: str

    @property
    def points(self) -> float | None:
        return None if self.before is None or self.after is None else 100 * (self.after.rate - self.before.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    name: RunName
    checkpoint_id: str
    parents: tuple[str, ...]
    before_role: str | None
    tiles: tuple[Tile, ...]
    groups: tuple[Group, ...]
    steered: tuple[SteeredRound, ...]
    own: PairedComparison | None
    others: PairedComparison | None
    tasks: tuple[TaskChange, ...]
    episodes: tuple[EpisodeCard, ...]
    changed: tuple[EpisodeCard, ...]
    """greedy episodes of the same instances before and after, next to each other."""
    settings: tuple[tuple[str, str], ...]


def runs(summaries_by_key: Mapping[str, IterationSummary]) -> list[RunName]:
    """Every training run that left curves, in the order in which an iteration makes them."""
    found = [RunName(iteration=iteration, run=run) for iteration, of in summaries_by_key.items() for run in of.runs]
    return sorted(found, key=lambda name: (name.iteration, rank(name.run)))


def run_data(con: duckdb.DuckDBPyConnection, warehouse: Warehouse, name: RunName) -> RunData:
    """All of a run's page. What was not measured is left out."""
    checkpoint_id, parents, config = _checkpoint(con, name)
    curves = run_curves(con, name.iteration, name.run)
    before_role = "sft_model" if is_rl(name.run) else None
    evaluated_of = {one.role: one for one in evaluations(con, iteration=name.iteration, split=REPORTED_SPLIT)}
    before, after = (outcomes(con, name.iteration, role, REPORTED_SPLIT) for role in (before_role or "", name.run))
    tasks = _tasks(evaluated_of.get(before_role or ""), evaluated_of.get(name.run), _own_domains(con, name))
    own_tasks = {task.task for task in tasks if task.is_own}
    own, others = (_compared_on(before, after, own_tasks, among=among) for among in (True, False))
    return RunData(
        name=name,
        checkpoint_id=checkpoint_id,
        parents=parents,
        before_role=before_role,
        own=own,
        others=others,
        tasks=tuple(tasks),
        tiles=tuple(_tiles(con, name, curves, tasks, own)),
        groups=tuple(run_groups(con, name.iteration, name.run)),
        steered=tuple(steered_rounds(curves)),
        episodes=tuple(learned_from(con, warehouse, name.iteration, name.run)),
        settings=tuple(_settings(config)),
        changed=tuple(
            evaluated(con, warehouse, name.iteration, _changed(name, evaluated_of, before_role, before, after, own_tasks), REPORTED_SPLIT)
        ),
    )


def _checkpoint(con: duckdb.DuckDBPyConnection, name: RunName) -> tuple[str, tuple[str, ...], Mapping[str, Any]]:
    row = con.execute(
        "select checkpoint_id, parents, config from checkpoints where iteration = ? and stage = ?", [name.iteration, name.run]
    ).fetchone()
    return ("", (), {}) if row is None else (row[0], tuple(row[1]), json.loads(row[2]))


def _own_domains(con: duckdb.DuckDBPyConnection, name: RunName) -> set[str]:
    """The domains that a run of reinforcement learning learned from."""
    query = "select distinct domain from episodes where iteration = ? and stage = ? and purpose = 'rl'"
    return {domain for (domain,) in con.execute(query, [name.iteration, name.run]).fetchall()}


def _tasks(before: Evaluation | None, after: Evaluation | None, own_domains: set[str]) -> list[TaskChange]:
    """Every task that one of the two was evaluated on, those of the run's own domains first."""
    first, second = _by_task(before), _by_task(after)
    tasks = []
    for of_domain, task in first.keys() | second.keys():
        was, now = first.get((of_domain, task)), second.get((of_domain, task))
        mark = change_mark(was.rate if was else None, now.rate if now else None)
        tasks.append(TaskChange(task=task, domain=of_domain, is_own=of_domain in own_domains, before=was, after=now, mark=mark))
    return sorted(tasks, key=lambda task: (not task.is_own, task.domain, task.task))


def _by_task(one: Evaluation | None) -> dict[tuple[str, str], TaskCount]:
    return {(domain, count.task): count for domain, of in one.counts.items() for count in of} if one is not None else {}


def _compared_on(before: Outcomes, after: Outcomes, own_tasks: set[str], *, among: bool) -> PairedComparison | None:
    def pick(of: Outcomes) -> Outcomes:
        return {key: value for key, value in of.items() if (key[0] in own_tasks) is among}

    return compared(pick(after), pick(before))


def _tiles(
    con: duckdb.DuckDBPyConnection, name: RunName, curves: Mapping[str, Points], tasks: list[TaskChange], own: PairedComparison | None
) -> list[Tile]:
    tiles = []
    for label, side in (("before, own domain", "before"), ("after, own domain", "after")):
        found = [count for task in tasks if task.is_own and (count := getattr(task, side)) is not None]
        if found:
            estimate = macro_average(found)
            note = f"[{estimate.interval.low:.3f}, {estimate.interval.high:.3f}], {estimate.num_episodes} episodes"
            tiles.append(Tile(label=label, value=f"{estimate.mean:.3f}", note=note))
    if own is not None:
        interval = own.difference.interval
        note = f"[{100 * interval.low:+.1f}, {100 * interval.high:+.1f}] paired, won {own.candidate_only}, lost {own.incumbent_only}"
        tiles.append(Tile(label="gain, points", value=f"{100 * own.difference.mean:+.1f}", note=note))
    row = con.execute(
        "select count(*), count(*) filter (outcome = 'crashed'), coalesce(sum(num_steps), 0) from episodes "
        "where iteration = ? and stage = ? and purpose = 'rl'",
        [name.iteration, name.run],
    ).fetchone()
    if row is not None and row[0]:
        tiles.append(Tile(label="episodes learned from", value=f"{row[0]:,}", note=f"{row[2]:,} steps, {row[1]} crashed"))
    for metric, label in (("reward", "reward"), ("loss", "loss"), ("entropy", "entropy"), ("staleness_mean", "staleness")):
        if points := curves.get(metric):
            note = f"from {points[0][1]:.3f} in {len(points)} points"
            tiles.append(Tile(label=f"{label} at the end", value=f"{points[-1][1]:.3f}", note=note))
    return tiles


def _changed(
    name: RunName, evaluated_of: Mapping[str, Evaluation], before_role: str | None, before: Outcomes, after: Outcomes, own_tasks: set[str]
) -> list[Instance]:
    """Instances that only one of the two solves: the first of each, by task and seed, won ones first."""
    shown: list[Instance] = []
    common = sorted(key for key in before.keys() & after.keys() if key[0] in own_tasks)
    for is_won, word in ((True, "won"), (False, "lost")):
        found = [key for key in common if before[key] is not is_won and after[key] is is_won]
        firsts = list({key[0]: key for key in reversed(found)}.values())[::-1][:CHANGED_SHOWN]
        for task, seed in firsts:
            for role, solved in ((str(before_role), not is_won), (name.run, is_won)):
                reason = f"{'before' if role == before_role else 'after'} the run; an instance that it {word}"
                shown.append(
                    Instance(
                        policy_id=evaluated_of[role].checkpoint_id,
                        task=task,
                        seed=int(str(seed)),
                        kind="solved" if solved else "failed",
                        reason=reason,
                    )
                )
    return shown


def _settings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(key, json.dumps(value) if isinstance(value, (dict, list)) else str(value)) for key, value in sorted(config.items())]
