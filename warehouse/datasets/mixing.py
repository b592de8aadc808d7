"""Dataset snapshots: which samples of D_CT and D_SFT a training run of an iteration reads, and how often.

A mixture gives each sample pool (SAMPLE_POOL_OF) a number of draws an epoch. Inside a sample pool, older samples count less, no task and
no domain gets more than its share, and no sample is repeated more often than allowed; what a pool cannot fill stays empty. The weights of
a snapshot are expected draws, so they add up to the length of an epoch. Samples of one pool, domain, task and age weigh alike: weights are
worked out for such groups, which are few, and DuckDB gives each sample its group's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import duckdb
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, model_validator

from warehouse.core.errors import ContaminatedDataset
from warehouse.core.identity import long_list_id
from warehouse.datasets.held_out_texts import IS_HELD_OUT
from warehouse.quality.overlap import LEAKS
from warehouse.routing.samples import PART_ROWS, Kind

SamplePoolName = Literal["demonstration", "correction", "on_policy", "tutorial", "failure", "in_situ", "manual", "general"]
SAMPLE_POOL_OF: dict[str, SamplePoolName] = {
    "demonstration": "demonstration",
    "correction": "correction",  # a step that an annotator overrode
    "reflection": "correction",  # the way on after an error, which stays in the prompt
    "approved": "on_policy",  # a step that an annotator accepted
    "rollout": "on_policy",  # a step of a solved episode of good quality
    "gateway": "on_policy",  # the same, of an agent that called the gateway
    "tutorial": "tutorial",
    "failure": "failure",  # a step of an unsolved episode
    "demoted": "failure",  # a step of a solved episode of poor quality
    "in_situ": "in_situ",  # recorded from people's own work
    "variation": "in_situ",  # the same in a model's words
    "manual": "manual",  # imported web pages and Markdown
    "general": "general",  # imported chat and reasoning data
}
"""Component of a sample -> the sample pool whose draws it shares."""
Share = Annotated[float, Field(gt=0, le=1)]
WEIGHT_DIGITS = 6
ROWS_NAMED = 20


class SamplePool(BaseModel):
    """How much of an epoch comes from one sample pool."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    draws: Annotated[float | None, Field(ge=0, description="samples drawn an epoch; null: as many as there are")] = None
    max_repeats: Annotated[float | None, Field(gt=0, description="most draws of one sample an epoch; null: no limit")] = None


class MixtureConfig(BaseModel):
    """A mixture for CT or SFT. A sample pool that is left out takes no part."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    demonstration: SamplePool | None = None
    correction: SamplePool | None = None
    on_policy: Annotated[SamplePool | None, Field(description="approved steps and steps of solved rollouts")] = None
    tutorial: SamplePool | None = None
    failure: Annotated[SamplePool | None, Field(description="steps of unsolved and of poor episodes")] = None
    in_situ: SamplePool | None = None
    manual: Annotated[SamplePool | None, Field(description="imported web pages and Markdown (`flywheel import manuals`)")] = None
    general: Annotated[SamplePool | None, Field(description="imported chat and reasoning data (`flywheel import general`)")] = None
    general_share: Annotated[
        float | None, Field(ge=0, lt=1, description="share of an epoch that is general, in place of general.draws; large in CT only")
    ] = None
    ct_weight: Annotated[float, Field(ge=0, description="factor on the draws of failures; 0 leaves them out")] = 1.0
    max_task_share: Annotated[Share, Field(description="largest share of a sample pool that one task may take")] = 0.2
    max_domain_share: Annotated[Share, Field(description="largest share of a sample pool that one domain may take")] = 0.75
    domain_caps: Annotated[
        dict[str, Share], Field(description="largest share of a sample pool by domain, where it is another than max_domain_share")
    ] = Field(default_factory=dict)
    decay: Annotated[Share, Field(description="factor on a sample's weight for each iteration of its age")] = 0.9
    success_balance: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="rejection-sampling balance: a task's weight among solved steps is divided by this power of its number of samples; "
            "0 leaves tasks that are solved often their numbers, 1 gives every task alike",
        ),
    ] = 0.0
    replay_share: Annotated[
        float | None,
        Field(
            gt=0, lt=1, description="share of a sample pool's draws that goes to iterations before the newest; null: what decay gives them"
        ),
    ] = None

    @model_validator(mode="after")
    def _share_of_a_sample_pool(self) -> MixtureConfig:
        if self.general_share is not None and (self.general is None or self.general.draws is not None):
            raise ValueError("general_share says how much is drawn from the sample pool general: give `general` too, without draws")
        return self

    def sample_pool(self, name: SamplePoolName) -> SamplePool | None:
        pool: SamplePool | None = getattr(self, name)
        if pool is not None and name == "failure":
            return None if self.ct_weight == 0 else pool
        return pool


@dataclass(frozen=True, slots=True)
class _Group:
    """`num` samples of a sample pool that weigh alike: of one domain, one task (empty for none) and one age in iterations."""

    pool: SamplePoolName
    domain: str
    task: str
    age: int
    num: int


_WEIGHTS_SCHEMA = pa.schema(
    {"pool": pa.string(), "domain": pa.string(), "task": pa.string(), "age": pa.int32(), "num": pa.int64(), "weight": pa.float64()}
)
_POOLS = " ".join(f"when '{component}' then '{pool}'" for component, pool in SAMPLE_POOL_OF.items())
_MEMBERS = f"""
create or replace temp table members as
with samples as (
    select 'ct' as kind, * exclude (messages) from ct_samples where iteration < $iteration and not withdrawn
    union all by name
    select 'sft' as kind, * exclude (messages) from sft_samples where iteration < $iteration and not withdrawn
),
{LEAKS},
first_episodes as (from episodes qualify row_number() over (partition by episode_id order by iteration, stage) = 1),
first_annotations as (from annotations qualify row_number() over (partition by annotation_id order by withdrawn desc, iteration, stage) = 1)
select
    s.kind, s.sample_id, s.episode_id, s.prompt_episode_ids, e.split, e.purpose, coalesce(t.held_out, false) as held_out,
    coalesce(s.domain, '') as domain, coalesce(e.task_id, '') as task, $number - cast(s.iteration as integer) as age,
    case
        when s.origin = 'annotation' and s.kind = 'ct' then 'in_situ'
        when s.origin = 'annotation' then case a.decision when 'accept' then 'approved' else 'correction' end
        when s.origin in ('rollout', 'gateway') and s.kind = 'ct' then case when s.verdict then 'demoted' else 'failure' end
        else s.origin
    end as component,
    case component {_POOLS} else error('no pool takes samples of ' || component) end as pool, g.words as repeats
from samples s
left join first_episodes e on e.episode_id = s.episode_id
left join first_annotations a on a.annotation_id = s.annotation_id
left join (select task_id, bool_or(held_out) as held_out from tasks group by task_id) t on t.task_id = e.task_id
left join leaks g on g.sample_id = s.sample_id
where not coalesce(a.withdrawn, false) and not {IS_HELD_OUT}
qualify row_number() over (partition by s.kind, s.sample_id order by s.iteration, s.stage) = 1
"""
_GROUPS = "select pool, domain, task, age, count(*) from members where repeats is null group by all order by all"
_ROWS = """
select m.kind, m.sample_id, m.component, w.weight from members m join weights w using (pool, domain, task, age)
where m.repeats is null order by m.kind, m.sample_id
"""
_PROMPTERS = """
select p.kind, p.sample_id, p.episode_id, e.split, e.purpose, coalesce(t.held_out, false) as held_out
from (select kind, sample_id, unnest(prompt_episode_ids) as episode_id from members where repeats is null) p
left join episodes e on e.episode_id = p.episode_id
left join (select task_id, bool_or(held_out) as held_out from tasks group by task_id) t on t.task_id = e.task_id
"""
"""Of samples whose prompt is another episode's than the answer these episodes."""
_REASON = """
case
    when split is null then 'its episode is not in the warehouse, so its split is unknown'
    when split <> 'train' then printf('its episode %s was run on an instance of the %s split', episode_id, split)
    when held_out then printf('its episode %s was run on a held-out task', episode_id)
    when purpose = 'evaluation' then printf('its episode %s was run to evaluate', episode_id)
end
"""
"""Why a sample of an episode may not be trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A dataset: its id, its rows for the table `datasets`, and what it would hold if it did not repeat what is evaluated on: sample ids
    with the instruction that each repeats."""

    dataset_id: str
    rows: pa.Table
    left_out: dict[str, str]


def mixed(con: duckdb.DuckDBPyConnection, kind: Kind, iteration: str, mixture: MixtureConfig) -> Snapshot:
    """The dataset that the `kind` stage of `iteration` trains on.

    It holds what earlier iterations routed; withdrawn samples are left out, texts that a loss is measured on (held_out_texts.py), and chats
    and imported demonstrations that repeat the instruction of an instance that is evaluated on. Row order does not matter.

    Raises ContaminatedDataset when a sample comes from an eval or holdout instance, from a held-out task, from an evaluation, or from an
    episode that cannot be found.
    """
    con.execute(_MEMBERS, {"iteration": iteration, "number": int(iteration)})
    _guard(con)
    groups = [_Group(*row) for row in con.execute(_GROUPS).fetchall()]
    weighted: list[tuple[_Group, float]] = []
    for name in dict.fromkeys(SAMPLE_POOL_OF.values()):  # general data come last
        pool = mixture.sample_pool(name)
        if pool is not None and name == "general" and mixture.general_share is not None:
            others = sum(weight * group.num for group, weight in weighted)
            pool = pool.model_copy(update={"draws": others * mixture.general_share / (1 - mixture.general_share)})
        if pool is not None:
            weighted += _draw([group for group in groups if group.pool == name], pool, mixture, name)
    weights = [asdict(group) | {"weight": round(weight, WEIGHT_DIGITS)} for group, weight in weighted]
    con.register("weights", pa.Table.from_pylist(weights, schema=_WEIGHTS_SCHEMA))
    rows = con.sql(_ROWS).to_arrow_table()
    named = ([list(row.values()) for row in part.to_pylist()] for part in rows.to_batches(max_chunksize=PART_ROWS))
    dataset_id = long_list_id("dataset", named, head=[kind])
    repeated = con.execute("select sample_id, repeats, pool from members where repeats is not null order by kind, sample_id").fetchall()
    return Snapshot(
        dataset_id=dataset_id,
        rows=rows.add_column(0, "dataset_id", pa.repeat(dataset_id, len(rows))),
        left_out={sample_id: words for sample_id, words, pool in repeated if mixture.sample_pool(pool) is not None},
    )


def _guard(con: duckdb.DuckDBPyConnection) -> None:
    named = "select kind, sample_id, episode_id, split, purpose, held_out from members where repeats is null and episode_id is not null"
    reasons_of = f"select distinct kind, sample_id, {_REASON} as why from ({named} union all {_PROMPTERS})"
    suspects = f"from ({reasons_of}) where why is not null"
    found = con.execute(f"select sample_id, why {suspects} order by kind, sample_id limit {ROWS_NAMED}").fetchall()
    if found:
        (num,) = con.execute(f"select count(*) {suspects}").fetchall()[0]
        more = f"; and {num - ROWS_NAMED} more" if num > ROWS_NAMED else ""
        reasons = "; ".join(f"sample {sample_id} may not be trained on: {why}" for sample_id, why in found)
        raise ContaminatedDataset(
            f"{reasons}{more}. Only train instances of tasks that are not held out are allowed; withdraw the samples "
            "(`flywheel withdraw ID…`), or route their iteration again"
        )


def _num(groups: Iterable[_Group]) -> int:
    return sum(group.num for group in groups)


def _draw(groups: Sequence[_Group], pool: SamplePool, mixture: MixtureConfig, name: SamplePoolName) -> list[tuple[_Group, float]]:
    """Share a sample pool's draws out over its samples: what one of each group gets."""
    if not groups:
        return []
    cap = pool.max_repeats if pool.max_repeats is not None else float("inf")
    draws = float(_num(groups)) if pool.draws is None else pool.draws
    draws = min(draws * (mixture.ct_weight if name == "failure" else 1.0), cap * _num(groups))
    result = []
    for part, in_part in _by_age(groups, draws, mixture.replay_share, cap):
        result += _spread(part, in_part, mixture, cap, mixture.success_balance if name == "on_policy" else 0.0)
    return [(group, weight) for group, weight in result if weight > 0]


def _by_age(groups: Sequence[_Group], draws: float, replay_share: float | None, cap: float) -> list[tuple[Sequence[_Group], float]]:
    """The groups with their draws; where a share is kept for replay, those of the newest iteration apart from earlier ones. What one
    side cannot fill goes to the other; replay gets more than its share where the newest have too few."""
    newest = min(group.age for group in groups)
    parts = [[group for group in groups if group.age > newest], [group for group in groups if group.age == newest]]
    if replay_share is None or not parts[0]:
        return [(groups, draws)]
    amounts = allocate(draws, [replay_share, 1 - replay_share], [cap * _num(part) for part in parts])
    return list(zip(parts, amounts, strict=True))


def _spread(groups: Sequence[_Group], draws: float, mixture: MixtureConfig, cap: float, balance: float) -> list[tuple[_Group, float]]:
    """Share draws out over domains, then tasks, then ages; a group's come back as those of one of its samples."""
    result: list[tuple[_Group, float]] = []
    domains = _by(groups, "domain")
    shares = [mixture.domain_caps.get(domain[0].domain, max(mixture.max_domain_share, 1 / len(domains))) for domain in domains]
    for domain, in_domain in _share(domains, draws, shares, cap, mixture.decay, 0.0):
        tasks = _by(domain, "task")
        most = max(mixture.max_task_share * draws / in_domain, 1 / len(tasks))
        for task, in_task in _share(tasks, in_domain, [most] * len(tasks), cap, mixture.decay, balance):
            amounts = allocate(in_task, [group.num * mixture.decay**group.age for group in task], [cap * group.num for group in task])
            result += [(group, amount / group.num) for group, amount in zip(task, amounts, strict=True)]
    return result


def _share(
    parts: list[list[_Group]], draws: float, shares: Sequence[float], cap: float, decay: float, balance: float
) -> list[tuple[list[_Group], float]]:
    """Draws of each part: by its samples and their age, at most its share of all. `balance` 1 weighs a part by the mean age of its
    samples, whatever their number; 0 by their sum."""
    weights = [sum(group.num * decay**group.age for group in part) for part in parts]
    if balance:
        weights = [weight / _num(part) ** balance for weight, part in zip(weights, parts, strict=True)]
    caps = [min(share * draws, cap * _num(part)) for share, part in zip(shares, parts, strict=True)]
    return [(part, amount) for part, amount in zip(parts, allocate(draws, weights, caps), strict=True) if amount > 0]


def _by(groups: Sequence[_Group], column: Literal["domain", "task"]) -> list[list[_Group]]:
    parts: dict[str, list[_Group]] = {}
    for group in groups:
        parts.setdefault(getattr(group, column), []).append(group)
    return [parts[name] for name in sorted(parts)]


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
