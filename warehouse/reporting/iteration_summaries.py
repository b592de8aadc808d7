"""Summaries of iterations in a few figures: datasets, routes, people's decisions. Reports over all iterations read these, so that they
compute the newest one only. They are cached as files beside the tables, each with the digest of the data files it was made from: one of
other files is made again. Deleting them loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import duckdb
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from warehouse.core.errors import FlywheelError
from warehouse.core.home import atomic_write
from warehouse.core.stages import SEED_ITERATION
from warehouse.evaluation.evaluations import REPORTED_SPLIT
from warehouse.storage.files.table_files import Listing
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

FOLDER = "iterations"
TABLES_READ = (
    "checkpoints",
    "datasets",
    "routes",
    "episodes",
    "annotations",
    "ct_samples",
    "sft_samples",
    "evaluations",
    "training_metrics",
)
FIRST_MEMBERS = 3
"""Of a dataset's samples, and of the episodes that a checkpoint learned from, those that a summary names."""
FORM = 5
"""Counts up when a summary says something else of the same rows."""


class Made(BaseModel):
    """A checkpoint, by the stage that made it or passed it on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    checkpoint_id: str
    parents: tuple[str, ...]
    datasets: tuple[str, ...]
    note: str


class Members(BaseModel):
    """The samples of one kind in a stage's dataset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    dataset_id: str
    kind: str
    num: int
    first: tuple[str, ...] = Field(description="the first few sample ids, shorter ones before longer ones")


class Learned(BaseModel):
    """The episodes of reinforcement learning that a stage's checkpoint learned from (`learned from` of lineage/relations.py)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    checkpoint_id: str
    num: int
    first: tuple[str, ...] = Field(description="the first few episode ids, shorter ones before longer ones")


class Evaluated(BaseModel):
    """What an evaluated policy solved of the split that is reported."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    checkpoint_id: str
    role: str
    num_episodes: int
    num_success: int


class Flow(BaseModel):
    """Episodes of one purpose that one route took for one reason (routes.cause_label)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    purpose: str
    route: str
    reason: str
    num: int


class IterationSummary(BaseModel):
    """What is reported of an iteration beside the others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: str = Field(description="digest of the data files that it was made of")
    checkpoints: tuple[Made, ...] = ()
    members: tuple[Members, ...] = ()
    learned: tuple[Learned, ...] = ()
    evaluated: tuple[Evaluated, ...] = ()
    runs: tuple[str, ...] = Field(default=(), description="training runs that left curves")
    draws: dict[str, dict[str, float]] = Field(default_factory=dict, description="expected draws by stage and component of its dataset")
    flows: tuple[Flow, ...] = ()
    routes: dict[str, int] = Field(default_factory=dict)
    acted: dict[str, int] = Field(default_factory=dict, description="routed episodes by the policy that played them")
    decisions: dict[str, int] = Field(default_factory=dict, description="annotators' decisions that were not withdrawn")
    num_episodes: int = 0
    num_crashed: int = 0
    num_steps: int = 0
    seed_samples: dict[str, int] = Field(default_factory=dict, description="different samples by kind; of the seed alone")


def summaries(warehouse: Warehouse, listing: Listing | None = None) -> dict[str, IterationSummary]:
    """By iteration, of each that has a row in one of TABLES_READ. `listing`: of these tables or more, where the caller has one."""
    listing = listing or Listing(warehouse, TABLES_READ)
    digests = {iteration: f"{FORM}-{digest}" for iteration, digest in listing.digests(TABLES_READ, taken_back=["annotations"]).items()}
    folder = warehouse.home.root / "cache" / FOLDER
    known = {iteration: _read(folder / f"{iteration}.json", inputs) for iteration, inputs in digests.items()}
    missing = [iteration for iteration, summary in known.items() if summary is None]
    made = _make(warehouse, {iteration: digests[iteration] for iteration in missing}) if missing else {}
    for iteration, fresh in made.items():
        # A home that cannot be written to is read all the same.
        with suppress(OSError, FlywheelError):
            atomic_write(folder / f"{iteration}.json", fresh.model_dump_json().encode())
    return {iteration: summary for iteration in sorted(known) if (summary := known[iteration] or made.get(iteration)) is not None}


def _read(path: Path, inputs: str) -> IterationSummary | None:
    try:
        summary = IterationSummary.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return summary if summary.inputs == inputs else None


def _make(warehouse: Warehouse, inputs: dict[str, str]) -> dict[str, IterationSummary]:
    """All that are missing, each table read once."""
    from warehouse.routing.routes import cause_label  # only where one is missing

    with connect(warehouse, tables=TABLES_READ, iterations=inputs, natively=True) as con:
        checkpoints: dict[str, list[Made]] = {}
        for iteration, stage, checkpoint_id, parents, datasets, note in _rows(con, inputs, _CHECKPOINTS):
            made = Made(stage=stage, checkpoint_id=checkpoint_id, parents=parents or (), datasets=datasets or (), note=note)
            checkpoints.setdefault(iteration, []).append(made)
        members: dict[str, list[Members]] = {}
        for iteration, stage, dataset_id, kind, num, first in _rows(con, inputs, _MEMBERS):
            of_stage = Members(stage=stage, dataset_id=dataset_id, kind=kind, num=num, first=tuple(row["id"] for row in first))
            members.setdefault(iteration, []).append(of_stage)
        learned: dict[str, list[Learned]] = {}
        for iteration, checkpoint_id, num, first in _rows(con, inputs, _LEARNED):
            of_run = Learned(checkpoint_id=checkpoint_id, num=num, first=tuple(row["id"] for row in first))
            learned.setdefault(iteration, []).append(of_run)
        evaluated: dict[str, list[Evaluated]] = {}
        for iteration, checkpoint_id, role, num_episodes, num_success in _rows(con, inputs, _EVALUATED):
            of_policy = Evaluated(checkpoint_id=checkpoint_id, role=role, num_episodes=num_episodes, num_success=num_success)
            evaluated.setdefault(iteration, []).append(of_policy)
        runs: dict[str, list[str]] = {}
        for iteration, run in _rows(con, inputs, _RUNS):
            runs.setdefault(iteration, []).append(run)
        draws: dict[str, dict[str, dict[str, float]]] = {}
        for iteration, stage, component, weight in _rows(con, inputs, _DRAWS):
            draws.setdefault(iteration, {}).setdefault(stage, {})[component] = weight
        flows: dict[str, dict[tuple[str, str, str], int]] = {}
        for iteration, purpose, route, *decided, num in _rows(con, inputs, _FLOWS):
            of, key = flows.setdefault(iteration, {}), (purpose, route, cause_label(*decided))
            of[key] = of.get(key, 0) + num
        counts = {name: _counts(_rows(con, inputs, query)) for name, query in _COUNTS.items()}
        played = {iteration: of for iteration, *of in _rows(con, inputs, _EPISODES)}
        seeds = dict(con.execute(_SEEDS).fetchall()) if SEED_ITERATION in inputs else {}
    return {
        iteration: IterationSummary(
            inputs=digest,
            checkpoints=tuple(checkpoints.get(iteration, ())),
            members=tuple(members.get(iteration, ())),
            learned=tuple(learned.get(iteration, ())),
            evaluated=tuple(evaluated.get(iteration, ())),
            runs=tuple(runs.get(iteration, ())),
            draws=draws.get(iteration, {}),
            flows=tuple(
                Flow(purpose=purpose, route=route, reason=reason, num=num)
                for (purpose, route, reason), num in sorted(flows.get(iteration, {}).items())
            ),
            **{name: of.get(iteration, {}) for name, of in counts.items()},
            **dict(zip(("num_episodes", "num_crashed", "num_steps"), played.get(iteration, (0, 0, 0)), strict=True)),
            seed_samples=seeds if iteration == SEED_ITERATION else {},
        )
        for iteration, digest in inputs.items()
    }


_CHECKPOINTS = "select iteration, stage, checkpoint_id, parents, datasets, note from checkpoints where {wanted} order by iteration, stage"
_MEMBERS = f"""
select iteration, stage, dataset_id, kind, count(*), min({{{{'length': length(sample_id), 'id': sample_id}}}}, {FIRST_MEMBERS}) as first
from datasets where {{wanted}} group by all order by iteration, stage, dataset_id, kind
"""
_LEARNED = f"""
select iteration, checkpoint_id, count(*), min({{{{'length': length(episode_id), 'id': episode_id}}}}, {FIRST_MEMBERS}) as first
from (select iteration, checkpoint_id, unnest(episode_ids) as episode_id from checkpoints where {{wanted}}
      union select iteration, checkpoint_id, episode_id from checkpoints join episodes using (iteration, stage)
      where {{wanted}} and episode_ids is null and purpose = 'rl' and policy_id <> checkpoint_id)
group by all order by iteration, checkpoint_id
"""
_EVALUATED = f"""
select iteration, checkpoint_id, checkpoint_role, sum(num_episodes)::bigint, sum(num_success)::bigint from evaluations
where {{wanted}} and split = '{REPORTED_SPLIT}' group by all order by all
"""
_RUNS = "select distinct iteration, run from training_metrics where {wanted} order by all"
_DRAWS = "select iteration, stage, component, sum(weight) from datasets where {wanted} group by all order by iteration, stage, component"
_FLOWS = """
select iteration, e.purpose, r.route, r.cause, r.withheld_by, r.demoted_by, count(*)
from routes r join episodes e using (episode_id, iteration)
where {wanted} group by all order by all
"""
_COUNTS = {
    "routes": "select iteration, route, count(*) from routes where {wanted} group by all order by all",
    "acted": "select iteration, e.policy_id, count(*) from routes r join episodes e using (episode_id, iteration) where {wanted} "
    "group by all order by all",
    "decisions": "select iteration, decision, count(*) from annotations where {wanted} and not withdrawn group by all order by all",
}
_EPISODES = """
select iteration, count(*), count(*) filter (outcome = 'crashed'), coalesce(sum(num_steps), 0)::bigint from episodes
where {wanted} group by iteration
"""
_SEEDS = f"""
select kind, count(distinct sample_id) from (
    select 'ct' as kind, sample_id from ct_samples where iteration = '{SEED_ITERATION}' union all
    select 'sft', sample_id from sft_samples where iteration = '{SEED_ITERATION}') group by kind order by kind
"""


def _rows(con: duckdb.DuckDBPyConnection, iterations: Sequence[str] | dict[str, str], query: str) -> Iterator[tuple]:  # type: ignore[type-arg]
    named = ", ".join(f"'{iteration}'" for iteration in iterations)
    yield from con.execute(query.format(wanted=f"iteration in ({named})")).fetchall()


def _counts(rows: Iterator[tuple]) -> dict[str, dict[str, int]]:  # type: ignore[type-arg]
    found: dict[str, dict[str, int]] = {}
    for iteration, name, num in rows:
        found.setdefault(iteration, {})[name] = num
    return found
