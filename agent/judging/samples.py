"""Training and test data of judges: stored episodes whose ground truth is known, split by a hash of their instance, and the rows of
`orm_samples` and of the dataset made of them. Judges' prompts are agent/judging/prompt.py's; no judge is called here.

The ground truth of an episode is a person's verdict, else the reward of the environment's verifier; never another judge's verdict, and
never what an imported recording claims, which nothing has verified. Instances of the eval and holdout splits are never trained on, and a
part of the train instances is held out as well: it chooses thresholds (`eval`) or is only reported (`holdout`)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from agent.judging.injected_claims import inject_claims
from agent.judging.prompt import JudgeBuilder, Record, read_record
from warehouse.core.errors import ContaminatedDataset
from warehouse.core.identity import content_id, stable_fraction
from warehouse.core.stages import ERASED
from warehouse.datasets.withdrawal import TAKEN_BACK
from warehouse.routing.samples import sample_row
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

Part = Literal["train", "eval", "holdout"]
HELD_APART: dict[Part, float] = {"eval": 0.15, "holdout": 0.30}
"""Upper edges of the hash of train instances that are kept from teaching."""
TEACHING_PURPOSES = ("rl", "rollout", "annotation")
VERIFIED_PURPOSES = (*TEACHING_PURPOSES, "evaluation")
"""Of episodes that were played in an environment of ours, whose rewards are a verifier's word. An imported demonstration is `seed`."""
MAX_REMARKS = 2
WEIGHT_DIGITS = 6
_STEP_COLUMNS = "episode_id, step_index, observation, screenshot_id, messages, response, thought, action"

KNOWN = f"""
with first_episodes as (
    from episodes where iteration <= $iteration
    qualify row_number() over (partition by episode_id order by iteration, stage) = 1
),
human as (
    select episode_id, passed, reasons from verdicts where origin = 'human' and kind = 'verdict'
    qualify row_number() over (partition by episode_id order by iteration desc, judge_version desc, stage desc) = 1
)
select
    e.iteration, e.episode_id, e.purpose, e.task_id, e.task_name, e.domain, e.seed, e.split, e.instruction, e.outcome, e.reward,
    coalesce(h.passed, e.reward >= $success_threshold) as truth,
    case when h.passed is not null then 'human' else 'verifier' end as reference, h.reasons as said
from first_episodes e left join human h using (episode_id)
left join (select task_id, bool_or(held_out) as held_out from tasks group by task_id) t on t.task_id = e.task_id
where e.outcome <> 'crashed' and e.split <> 'report' and e.num_steps > 0 and e.policy_id <> 'oracle'
    and (h.passed is not null
        or (e.reward is not null and list_contains($verified_purposes, e.purpose) and not list_contains($unverified, e.domain)))
    and not (e.split = 'train' and coalesce(t.held_out, false))
    and e.episode_id not in ({TAKEN_BACK}) and e.task_name <> '{ERASED}'
order by e.episode_id
"""
"""Episodes up to an iteration whose truth is known, but for those that a person took back or that were erased. A domain that
is taken for one without a verifier is known by people alone."""


_DIGESTS = """
select count(*)::bigint, md5(string_agg(md5(concat_ws('|', iteration, stage, episode_id, outcome, reward)), '')) from (
    select iteration, stage, episode_id, outcome, reward from episodes where iteration <= $iteration order by all)
union all
select count(*)::bigint, md5(string_agg(md5(concat_ws('|', iteration, stage, episode_id, judge_version, passed)), '')) from (
    select iteration, stage, episode_id, judge_version, passed from verdicts where origin = 'human' and kind = 'verdict' order by all)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An episode with its truth: `reference` is whose word that is."""

    row: Mapping[str, Any]
    truth: bool
    reference: Literal["human", "verifier"]
    said: tuple[str, ...] = ()

    @property
    def episode_id(self) -> str:
        return str(self.row["episode_id"])

    @property
    def part(self) -> Part:
        return part_of(self.row["task_id"], self.row["seed"], self.row["split"])


def part_of(task_id: str, seed: int, split: str) -> Part:
    """What an instance is for when judges are concerned. The same for every policy, attempt and iteration."""
    if split != "train":
        return "eval" if split == "eval" else "holdout"
    place = stable_fraction("judged", task_id, seed)
    return next((part for part, edge in HELD_APART.items() if place < edge), "train")


def known_episodes(
    con: duckdb.DuckDBPyConnection, iteration: str, *, success_threshold: float, unverified: Sequence[str] = ()
) -> list[Known]:
    """Every episode up to an iteration whose truth is known, in the order of their ids."""
    params = {
        "iteration": iteration,
        "success_threshold": success_threshold,
        "unverified": list(unverified) or [""],
        "verified_purposes": list(VERIFIED_PURPOSES),
    }
    return [
        Known(row=row, truth=bool(row["truth"]), reference=row["reference"], said=tuple(row["said"] or ()))
        for row in con.sql(KNOWN, params=params).to_arrow_table().to_pylist()
    ]


def known_digest(con: duckdb.DuckDBPyConnection, iteration: str) -> str:
    """The same as long as the episodes up to an iteration and people's verdicts on any are: what known_episodes may answer hangs on these,
    and on settings."""
    return content_id("known", con.execute(_DIGESTS, {"iteration": iteration}).fetchall())


def records(con: duckdb.DuckDBPyConnection, episodes: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Record, list[dict[str, Any]]]]:
    """The records of rows of `episodes`, with the rows of `steps` that they are made of, by id."""
    by_episode: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    query = f"select {_STEP_COLUMNS} from steps where list_contains($ids, episode_id) order by iteration desc, episode_id, step_index"
    for row in con.sql(query, params={"ids": [row["episode_id"] for row in episodes]}).to_arrow_table().to_pylist():
        by_episode[row["episode_id"]][row["step_index"]] = row  # of an episode that two iterations stored, the first one's
    found = {}
    for episode in episodes:
        steps = list(by_episode[episode["episode_id"]].values())
        found[episode["episode_id"]] = (read_record(episode, steps), steps)
    return found


def without_verifier(warehouse: Warehouse, rows: pa.Table, domains: Sequence[str]) -> pa.Table:
    """Rows of `verdicts` without what the verifier says in domains that are taken for ones that have none: its word stays in the rewards
    alone, where reports find it and routing does not."""
    if not domains:
        return rows
    with connect(warehouse) as con:
        found = con.execute("select episode_id from episodes where list_contains(?, domain)", [list(domains)]).fetchall()
    hidden = pc.is_in(rows["episode_id"], value_set=pa.array([episode_id for (episode_id,) in found], pa.string()))
    return rows.filter(pc.invert(pc.and_(pc.equal(rows["origin"], "verifier"), hidden)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What an iteration adds to D_ORM, and how much it had to choose from."""

    rows: list[dict[str, Any]]
    num_known: int
    num_good: int


def orm_samples(
    warehouse: Warehouse,
    iteration: str,
    builder: JudgeBuilder,
    *,
    success_threshold: float,
    max_samples: int,
    claim_share: float = 0.0,
    unverified: Sequence[str] = (),
) -> Lesson:
    """Rows of `orm_samples` for one iteration: one a chosen train episode whose truth is known. Rollouts and annotations are of earlier
    iterations: those of this one are judged with what is learned here. What joined before does not join again. `claim_share` of them claim
    success on their last screen, whether they are good or bad."""
    with connect(warehouse) as con:
        known = known_episodes(con, iteration, success_threshold=success_threshold, unverified=unverified)
        joined = {row[0] for row in con.execute("select episode_id from orm_samples where iteration < ?", [iteration]).fetchall()}
        usable = [each for each in known if _may_teach(each, iteration)]
        chosen = balanced([each for each in usable if each.episode_id not in joined], max_samples)
        read = records(con, [each.row for each in chosen])
    rows = [_sample(each, *read[each.episode_id], builder, claim_share) for each in chosen]
    unique = {row["sample_id"]: row for row in rows}
    return Lesson(rows=list(unique.values()), num_known=len(usable), num_good=sum(each.truth for each in usable))


def _may_teach(known: Known, iteration: str) -> bool:
    row = known.row
    is_earlier = row["iteration"] < iteration or row["purpose"] == "rl"
    return known.part == "train" and row["purpose"] in TEACHING_PURPOSES and is_earlier


def balanced(known: Sequence[Known], max_samples: int) -> list[Known]:
    """Of each task at most twice as many good as bad episodes, or the other way round, chosen by a hash of their ids; in the order of ids.
    A task that has one kind only gives a few: it teaches what its prompts look like, and must not teach that the task decides."""
    cells: dict[tuple[str, bool], list[Known]] = defaultdict(list)
    for each in sorted(known, key=lambda each: stable_fraction("lesson", each.episode_id)):
        cells[each.row["task_id"], each.truth].append(each)
    tasks = sorted({task for task, _ in cells})
    chosen: list[Known] = []
    quota = max(1, max_samples // max(1, len(tasks)))
    for task in tasks:
        good, bad = cells[task, True], cells[task, False]
        few = max(min(len(good), len(bad)), min(8, quota // 8))
        for cell in (good, bad):
            chosen += cell[: min(2 * few, max(1, quota // 2))]
    # With room for less than two a task, tasks are drawn by the hash of an episode of theirs.
    chosen = sorted(chosen, key=lambda each: stable_fraction("lesson", each.episode_id))[:max_samples]
    return sorted(chosen, key=lambda each: each.episode_id)


def _sample(known: Known, record: Record, steps: Sequence[Mapping[str, Any]], builder: JudgeBuilder, claim_share: float) -> dict[str, Any]:
    answer = builder.answer(builder.rationale(record, _remarks(known, steps)), known.truth)
    return sample_row(
        "orm",
        origin="judgement",
        domain=known.row["domain"],
        messages=builder.build(inject_claims(record, claim_share)),
        response=answer,
        episode_id=known.episode_id,
        verdict=known.truth,
    )


def _remarks(known: Known, steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """What people said, else what plainly went wrong in the steps: answers that were not an action, answers repeated on the same screen."""
    if known.said:
        return list(known.said[:MAX_REMARKS])
    found, first = [], dict[tuple[str, str], int]()
    for step in sorted(steps, key=lambda row: int(row["step_index"])):
        index, action = int(step["step_index"]), _action(step["action"])
        if action.get("kind") == "invalid":
            found.append(f"step {index}: {action.get('reason', 'invalid action')}")
        seen = first.setdefault((step["observation"] or step["screenshot_id"] or "", step["response"]), index)
        if seen != index:
            found.append(f"step {index} repeats step {seen}")
    return found[:MAX_REMARKS]


def _action(stored: str) -> Mapping[str, Any]:
    """What a recording calls an action need not be a JSON object."""
    try:
        found = json.loads(stored)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"kind": "invalid", "reason": "the stored action is not a JSON object"}


_MEMBERS = """
select s.sample_id, any_value(s.domain) as domain, any_value(s.verdict) as verdict,
    any_value(e.episode_id) as episode_id, any_value(e.split) as split, bool_or(coalesce(t.held_out, false)) as held_out
from orm_samples s left join episodes e on e.episode_id = s.episode_id left join tasks t on t.task_id = e.task_id
where s.iteration <= $iteration and not s.withdrawn group by s.sample_id order by s.sample_id
"""


def orm_members(con: duckdb.DuckDBPyConnection, iteration: str) -> list[dict[str, Any]]:
    """The samples of D_ORM up to an iteration, without the withdrawn. Raises ContaminatedDataset that names those of an episode on an eval
    or holdout instance, on a held-out task, or that cannot be found."""
    rows: list[dict[str, Any]] = con.sql(_MEMBERS, params={"iteration": iteration}).to_arrow_table().to_pylist()
    wrong = [row for row in rows if row["split"] != "train" or row["held_out"]]
    if wrong:
        named = ", ".join(f"{row['sample_id']} (episode {row['episode_id']}, split {row['split']})" for row in wrong[:5])
        raise ContaminatedDataset(
            f"{len(wrong)} samples of D_ORM must not be trained on: {named}. Only train instances of tasks that are not held out are "
            "allowed: withdraw the samples (flywheel withdraw)"
        )
    return rows


def orm_dataset(rows: Iterable[Mapping[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """The snapshot that the ORM of an iteration is trained on: its id and its rows of `datasets`. `rows` are samples that are not
    withdrawn; good and bad ones of each domain weigh the same, and the domains as they have samples."""
    samples = {row["sample_id"]: row for row in rows}
    counts: dict[tuple[str, bool], int] = defaultdict(int)
    for row in samples.values():
        counts[row["domain"], row["verdict"]] += 1
    content = []
    for sample_id, row in sorted(samples.items()):
        of_domain = counts[row["domain"], True] + counts[row["domain"], False]
        weight = of_domain / 2 / counts[row["domain"], row["verdict"]] if counts[row["domain"], not row["verdict"]] else 1.0
        content.append(["orm", sample_id, "good" if row["verdict"] else "bad", round(weight, WEIGHT_DIGITS)])
    dataset_id = content_id("dataset", ["orm", content])
    return dataset_id, [
        {"dataset_id": dataset_id, "kind": kind, "sample_id": sample_id, "component": component, "weight": weight}
        for kind, sample_id, component, weight in content
    ]
