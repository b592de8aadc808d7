"""Dataset snapshots: which samples of D_CT and D_SFT a training run of an iteration reads, and how often. Pure: rows in, rows out.

A mixture gives each pool of samples a number of draws an epoch. Inside a pool, older samples count less, no task and no domain gets more
than its share, and no sample is repeated more often than allowed; what a pool cannot fill stays empty. The weights of a snapshot are
expected draws, so they add up to the length of an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import duckdb
from pydantic import BaseModel, ConfigDict, Field, model_validator

from warehouse.errors import ContaminatedDataset
from warehouse.identity import content_id
from warehouse.overlap import GIVEAWAYS
from warehouse.samples import Kind

PoolName = Literal["demonstration", "correction", "on_policy", "tutorial", "failure", "in_situ", "general"]
POOL_OF: dict[str, PoolName] = {
    "demonstration": "demonstration",
    "correction": "correction",  # a step that an annotator overrode
    "reflection": "correction",  # the way on after an error, which stays in the prompt
    "approved": "on_policy",  # a step that an annotator accepted
    "rollout": "on_policy",  # a step of a solved episode of good quality
    "tutorial": "tutorial",
    "failure": "failure",  # a step of an unsolved episode
    "demoted": "failure",  # a step of a solved episode of poor quality
    "in_situ": "in_situ",  # recorded from people's own work
    "variation": "in_situ",  # the same in a model's words
    "general": "general",  # imported chat and reasoning data
}
"""Component of a sample -> the pool whose draws it shares."""
Share = Annotated[float, Field(gt=0, le=1)]
WEIGHT_DIGITS = 6
ROWS_TOLD = 20


class Pool(BaseModel):
    """How much of an epoch comes from one pool."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    draws: Annotated[float | None, Field(ge=0, description="samples drawn an epoch; null: as many as there are")] = None
    max_repeats: Annotated[float | None, Field(gt=0, description="most draws of one sample an epoch; null: no limit")] = None


class MixtureConfig(BaseModel):
    """A mixture for CT or SFT. A pool that is left out takes no part."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    demonstration: Pool | None = None
    correction: Pool | None = None
    on_policy: Annotated[Pool | None, Field(description="approved steps and steps of solved rollouts")] = None
    tutorial: Pool | None = None
    failure: Annotated[Pool | None, Field(description="steps of unsolved and of poor episodes")] = None
    in_situ: Pool | None = None
    general: Annotated[Pool | None, Field(description="imported chat and reasoning data (`flywheel import general`)")] = None
    general_share: Annotated[
        float | None, Field(ge=0, lt=1, description="share of an epoch that is general, in place of general.draws; large in CT only")
    ] = None
    ct_weight: Annotated[float, Field(ge=0, description="factor on the draws of failures; 0 leaves them out")] = 1.0
    max_task_share: Annotated[Share, Field(description="largest share of a pool that one task may take")] = 0.2
    max_domain_share: Annotated[Share, Field(description="largest share of a pool that one domain may take")] = 0.75
    domain_caps: Annotated[
        dict[str, Share], Field(description="largest share of a pool by domain, where it is another than max_domain_share")
    ] = Field(default_factory=dict)
    decay: Annotated[Share, Field(description="factor on a sample's weight for each iteration of its age")] = 0.9
    success_balance: Annotated[
        float,
        Field(
            ge=0, le=1,
            description="rejection-sampling balance: a task's weight among solved steps is divided by this power of its number of samples; "
            "0 leaves tasks that are solved often their numbers, 1 gives every task alike",
        ),
    ] = 0.0
    replay_share: Annotated[
        float | None,
        Field(gt=0, lt=1, description="share of a pool's draws that goes to iterations before the newest; null: what decay gives them"),
    ] = None

    @model_validator(mode="after")
    def _share_of_a_pool(self) -> MixtureConfig:
        if self.general_share is not None and (self.general is None or self.general.draws is not None):
            raise ValueError("general_share says how much is drawn from the pool general: give `general` too, without draws")
        return self

    def pool(self, name: PoolName) -> Pool | None:
        pool: Pool | None = getattr(self, name)
        if pool is not None and name == "failure":
            return None if self.ct_weight == 0 else pool
        return pool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    kind: str
    sample_id: str
    component: str
    domain: str
    task: str | None
    age: int


_MEMBERS = f"""
with samples as (
    select 'ct' as kind, * exclude (messages) from ct_samples where iteration < $iteration and not withdrawn
    union all by name
    select 'sft' as kind, * exclude (messages) from sft_samples where iteration < $iteration and not withdrawn
),
{GIVEAWAYS},
first_episodes as (from episodes qualify row_number() over (partition by episode_id order by iteration, stage) = 1),
first_annotations as (from annotations qualify row_number() over (partition by annotation_id order by withdrawn desc, iteration, stage) = 1)
select
    s.kind, s.sample_id, s.domain, s.episode_id, e.task_id, e.split, e.purpose, coalesce(t.held_out, false) as held_out,
    $number - cast(s.iteration as integer) as age,
    case
        when s.origin = 'annotation' and s.kind = 'ct' then 'in_situ'
        when s.origin = 'annotation' then case a.decision when 'accept' then 'approved' else 'correction' end
        when s.origin = 'rollout' and s.kind = 'ct' then case when s.verdict then 'demoted' else 'failure' end
        else s.origin
    end as component,
    g.words as repeats
from samples s
left join first_episodes e on e.episode_id = s.episode_id
left join first_annotations a on a.annotation_id = s.annotation_id
left join (select task_id, bool_or(held_out) as held_out from tasks group by task_id) t on t.task_id = e.task_id
left join giveaways g on g.sample_id = s.sample_id
where not coalesce(a.withdrawn, false)
qualify row_number() over (partition by s.kind, s.sample_id order by s.iteration, s.stage) = 1
order by s.kind, s.sample_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A dataset: its id, its rows for the table `datasets`, and what it would hold if it did not repeat what is evaluated on: sample ids
    with the instruction that each repeats."""

    dataset_id: str
    rows: list[dict[str, Any]]
    left_out: dict[str, str]


def mixed(con: duckdb.DuckDBPyConnection, kind: Kind, iteration: str, mixture: MixtureConfig) -> Snapshot:
    """The dataset that the `kind` stage of `iteration` trains on.

    It holds what earlier iterations routed; withdrawn samples are left out, and chats and imported demonstrations that repeat the
    instruction of an instance that is evaluated on. Row order does not matter.

    Raises ContaminatedDataset when a sample comes from an eval or holdout instance, from a held-out task, from an evaluation, or from an
    episode that cannot be found.
    """
    found = con.sql(_MEMBERS, params={"iteration": iteration, "number": int(iteration)}).to_arrow_table().to_pylist()
    rows = [row for row in found if row["repeats"] is None]
    _guard(rows)
    members = [
        _Member(kind=row["kind"], sample_id=row["sample_id"], component=row["component"], domain=row["domain"], task=row["task_id"],
                age=row["age"])
        for row in rows
    ]  # fmt: skip
    weighted: list[tuple[_Member, float]] = []
    for name in dict.fromkeys(POOL_OF.values()):  # general data come last
        pool = mixture.pool(name)
        if pool is not None and name == "general" and mixture.general_share is not None:
            others = sum(weight for _, weight in weighted)
            pool = pool.model_copy(update={"draws": others * mixture.general_share / (1 - mixture.general_share)})
        if pool is not None:
            weighted += _draw([member for member in members if POOL_OF[member.component] == name], pool, mixture, name)
    weighted.sort(key=lambda pair: (pair[0].kind, pair[0].sample_id))
    content = [[m.kind, m.sample_id, m.component, round(weight, WEIGHT_DIGITS)] for m, weight in weighted]
    dataset_id = content_id("dataset", [kind, content])
    return Snapshot(
        dataset_id=dataset_id,
        rows=[
            {"dataset_id": dataset_id, "kind": table, "sample_id": sample_id, "component": component, "weight": weight}
            for table, sample_id, component, weight in content
        ],
        left_out={
            row["sample_id"]: row["repeats"]
            for row in found if row["repeats"] is not None and mixture.pool(POOL_OF[row["component"]]) is not None
        },
    )  # fmt: skip


def _guard(rows: Sequence[dict[str, Any]]) -> None:
    reasons = []
    for row in rows:
        if row["episode_id"] is None:
            continue
        why = None
        if row["split"] is None:
            why = "its episode is not in the warehouse, so its split is unknown"
        elif row["split"] != "train":
            why = f"its episode {row['episode_id']} was run on an instance of the {row['split']} split"
        elif row["held_out"]:
            why = f"its episode {row['episode_id']} was run on a held-out task"
        elif row["purpose"] == "evaluation":
            why = f"its episode {row['episode_id']} was run to evaluate"
        if why:
            reasons.append(f"sample {row['sample_id']} may not be trained on: {why}")
    if reasons:
        more = f"; and {len(reasons) - ROWS_TOLD} more" if len(reasons) > ROWS_TOLD else ""
        raise ContaminatedDataset(
            f"{'; '.join(reasons[:ROWS_TOLD])}{more}. Only train instances of tasks that are not held out are allowed; "
            "withdraw the samples (`flywheel withdraw ID…`), or route their iteration again"
        )


def _draw(members: Sequence[_Member], pool: Pool, mixture: MixtureConfig, name: PoolName) -> list[tuple[_Member, float]]:
    """Share a pool's draws out over its members."""
    if not members:
        return []
    cap = pool.max_repeats if pool.max_repeats is not None else float("inf")
    draws = float(len(members)) if pool.draws is None else pool.draws
    draws = min(draws * (mixture.ct_weight if name == "failure" else 1.0), cap * len(members))
    result = []
    for part, in_part in _by_age(members, draws, mixture.replay_share, cap):
        result += _spread(part, in_part, mixture, cap, mixture.success_balance if name == "on_policy" else 0.0)
    return [(member, weight) for member, weight in result if weight > 0]


def _by_age(members: Sequence[_Member], draws: float, replay_share: float | None, cap: float) -> list[tuple[Sequence[_Member], float]]:
    """The members with their draws; where a share is kept for replay, those of the newest iteration apart from earlier ones. What one
    side cannot fill goes to the other; replay gets more than its share where the newest have too few."""
    newest = min(member.age for member in members)
    parts = [[member for member in members if member.age > newest], [member for member in members if member.age == newest]]
    if replay_share is None or not parts[0]:
        return [(members, draws)]
    amounts = allocate(draws, [replay_share, 1 - replay_share], [cap * len(part) for part in parts])
    return [(part, amount) for part, amount in zip(parts, amounts, strict=True) if amount > 0]


def _spread(
    members: Sequence[_Member], draws: float, mixture: MixtureConfig, cap: float, balance: float
) -> list[tuple[_Member, float]]:
    """Share draws out over domains, then tasks, then samples."""
    result: list[tuple[_Member, float]] = []
    domains = _by(members, "domain")
    shares = [mixture.domain_caps.get(domain[0].domain, max(mixture.max_domain_share, 1 / len(domains))) for domain in domains]
    for domain, in_domain in _share(domains, draws, shares, cap, mixture.decay, 0.0):
        tasks = _by(domain, "task")
        most = max(mixture.max_task_share * draws / in_domain, 1 / len(tasks))
        for task, in_task in _share(tasks, in_domain, [most] * len(tasks), cap, mixture.decay, balance):
            amounts = allocate(in_task, [mixture.decay**member.age for member in task], [cap] * len(task))
            result += zip(task, amounts, strict=True)
    return result


def _share(
    groups: list[list[_Member]], draws: float, shares: Sequence[float], cap: float, decay: float, balance: float
) -> list[tuple[list[_Member], float]]:
    """Draws of each group: by its samples and their age, at most its share of all. `balance` 1 weighs a group by the mean age of its
    samples, whatever their number; 0 by their sum."""
    weights = [sum(decay**member.age for member in group) for group in groups]
    if balance:
        weights = [weight / len(group) ** balance for weight, group in zip(weights, groups, strict=True)]
    caps = [min(share * draws, cap * len(group)) for share, group in zip(shares, groups, strict=True)]
    return [(group, amount) for group, amount in zip(groups, allocate(draws, weights, caps), strict=True) if amount > 0]


def _by(members: Sequence[_Member], column: Literal["domain", "task"]) -> list[list[_Member]]:
    groups: dict[str, list[_Member]] = {}
    for member in members:
        groups.setdefault(getattr(member, column) or "", []).append(member)
    return [groups[name] for name in sorted(groups)]


def allocate(total: float, weights: Sequence[float], caps: Sequence[float]) -> list[float]:
    """Share `total` out in proportion to `weights` with no amount above its cap; what capped ones leave goes to the others.
    Gives away min(total, sum of caps). All weights must be positive."""
    amounts = [0.0] * len(weights)
    is_open, left = list(range(len(weights))), total
    while is_open and left > 0:
        scale = left / sum(weights[i] for i in is_open)
        full = [i for i in is_open if weights[i] * scale >= caps[i]]
        if not full:
            for i in is_open:
                amounts[i] = weights[i] * scale
            break
        for i in full:
            amounts[i] = caps[i]
        left -= sum(caps[i] for i in full)
        is_open = [i for i in is_open if i not in set(full)]
    return amounts
