"""Samples: rows of `ct_samples` and `sft_samples` made of routed episodes, annotations, demonstrations and tutorials.

A sample is a chat: the prompt exactly as it was asked, and the answer that stands. For SFT the answer weighs 1 in the loss and the prompt
0; what CT learns of an episode is ct_objectives.py's business.
What an iteration gives need not fit memory: it comes in parts, a few thousand chats at a time. How it is stored is routed_samples.py's
business; which samples a run reads, and how often, is mixing.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Literal

import duckdb
import pyarrow as pa

from warehouse.core.errors import ConfigError
from warehouse.core.identity import content_id
from warehouse.datasets.withdrawal import TAKEN_BACK
from warehouse.routing.ct_objectives import OBJECTIVES, OF_TRAJECTORIES, CtObjective, message_row, weighed
from warehouse.routing.failure_mining import FailureMiningConfig, first_wrong_steps, pairs
from warehouse.routing.hindsight import NO_WORDINGS, ReadElements, Wordings, wordings_of
from warehouse.storage.catalogue import TABLES

Kind = Literal["ct", "sft", "orm"]
RoutedTable = Literal["ct_samples", "sft_samples"]
_KIND_OF: dict[RoutedTable, Literal["ct", "sft"]] = {"ct_samples": "ct", "sft_samples": "sft"}
ROUTED_TABLES = tuple(_KIND_OF)

PART_ROWS = 4096
"""Samples that are made at a time: of screens as text some tens of megabytes, as Python holds them."""
GENERAL = "general"
"""Domain of samples that belong to no task."""
_SCHEMA = pa.schema([field for field in TABLES["sft_samples"].schema if field.name not in TABLES["sft_samples"].partition_by])
_NOT_IN_ID = ("prompt_episode_ids", "prompt_step_indices", "verdict")
"""Columns that are not part of a sample's id: another failed episode with the same prompt gives no other sample."""
_NOBODY = "(select null::varchar as episode_id, null::bigint as step_index where false)"

_SAMPLED_EPISODES = """
create or replace temp table sampled_episodes as
select r.episode_id, r.decided_verdict as verdict, min(e.domain) as domain, min(e.task_id) as task_id, min(e.instruction) as instruction,
    case min(e.purpose) when 'gateway' then 'gateway' else 'rollout' end as origin,
    min(case when not r.decided_verdict then w.step_index end) as first_wrong
from routes r
join episodes e on e.episode_id = r.episode_id and e.iteration = r.iteration
left join {first_wrong} w on w.episode_id = r.episode_id
where r.iteration = $iteration and r.route = $route and r.episode_id not in ({taken_back})
group by all
"""
"""A row an episode, so that texts are joined to what is short and known to be so. An episode may be recorded twice in an iteration."""
_DECIDED_STEPS = """
create or replace temp table decided_steps as
select distinct episode_id, step_index from annotations where iteration = $iteration and $route = 'sft'
"""
_ROUTED_STEPS = """
select e.origin, e.domain, e.verdict, s.response, s.episode_id, s.step_index, s.messages, e.first_wrong{more}
from steps s
join sampled_episodes e on e.episode_id = s.episode_id
anti join decided_steps d on d.episode_id = s.episode_id and d.step_index = s.step_index
where s.iteration = $iteration and trim(s.response) <> ''
"""
"""Steps that speak for themselves. A step of a solved episode that an annotator has decided on comes in by that decision instead."""
_TRAJECTORY = ", s.observation, s.action, e.task_id, e.instruction"
_SOLVED_STEPS = """
with solved as (
    select e.episode_id, min(e.task_id) as task_id, min(e.instruction) as instruction
    from episodes e left join routes r on r.episode_id = e.episode_id and r.iteration = e.iteration
    where e.iteration <= $iteration and e.split = 'train' and coalesce(r.decided_verdict, e.outcome = 'success')
        and coalesce(r.route, 'sft') <> 'withheld'
    group by all
)
select s.episode_id, s.step_index, s.response, s.observation, s.action, solved.task_id, solved.instruction
from steps s join solved on solved.episode_id = s.episode_id
where s.iteration <= $iteration
"""
"""The input of hindsight: solved attempts so far, demonstrations among them."""
_ANNOTATED_STEPS = """
select 'annotation' as origin, e.domain, r.decided_verdict as verdict, a.messages, a.response, a.episode_id, a.step_index,
    a.annotation_id
from annotations a
join routes r on r.episode_id = a.episode_id and r.iteration = a.iteration
join episodes e on e.episode_id = a.episode_id and e.iteration = a.iteration
where a.iteration = $iteration and r.route <> 'withheld'
    and a.decision in ('accept', 'edit', 'override') and not a.withdrawn and trim(coalesce(a.response, '')) <> ''
order by a.annotation_id
"""


def sample_parts(
    con: duckdb.DuckDBPyConnection,
    table: RoutedTable,
    iteration: str,
    *,
    mining: FailureMiningConfig | None = None,
    left_out: Counter[str] | None = None,
    read_elements: ReadElements | None = None,
) -> Iterator[pa.Table]:
    """What joins D_CT or D_SFT (`table`) in one iteration: rows without their place, at most PART_ROWS at a time. Steps come as they are
    stored, then annotations, then pairs. One sample may come twice where its source is recorded twice.

    Episodes routed to CT and SFT give one sample a step. Steps that an annotator approved or corrected join D_SFT whatever the
    episode's V, with loss on that step's answer alone, unless the episode is withheld. A withdrawn annotation gives nothing. `mining`
    says what CT learns of an episode, and what else failed ones give. `left_out` counts the steps of which an objective learns nothing, by
    its name. `read_elements` is for the objective `hindsight`, which raises ConfigError without it.

    On a connection that is not sealed and that only SQL of ours reads, since temporary tables and views are made there; nothing else may
    be asked on it until the last part has come.
    """
    settings, kind = mining or FailureMiningConfig(), _KIND_OF[table]
    asked, to_route = {"iteration": iteration}, {"iteration": iteration, "route": kind}
    objectives: tuple[CtObjective, ...] = settings.ct_objectives if kind == "ct" else ("answers",)
    first_wrong = first_wrong_steps(con, settings) if "until_first_error" in objectives else _NOBODY
    con.execute(_SAMPLED_EPISODES.format(first_wrong=first_wrong, taken_back=TAKEN_BACK), to_route)
    con.execute(_DECIDED_STEPS, to_route)
    steps = _ROUTED_STEPS.format(more=_TRAJECTORY if OF_TRAJECTORIES.intersection(objectives) else "")
    with joined_as_written(con):
        wordings = NO_WORDINGS
        if "hindsight" in objectives:
            if read_elements is None:
                raise ConfigError("the objective 'hindsight' needs read_elements, e.g. that of agent/grammars/compact.py")
            wordings = wordings_of(_episodes(con.sql(_SOLVED_STEPS, params=asked)), read_elements)
        yield from _in_tables(_taught(kind, _episodes(con.sql(steps, params=asked)), objectives, wordings, left_out))
    if kind == "sft":
        yield from _parts(con.sql(_ANNOTATED_STEPS, params=asked), "sft")
        yield from pair_parts(con, iteration, settings)


def pair_parts(con: duckdb.DuckDBPyConnection, iteration: str, mining: FailureMiningConfig) -> Iterator[pa.Table]:
    """Corrections and reflections of an iteration, as rows of `sft_samples` without their place: see sample_parts."""
    if mining.pair_origins:
        yield from _parts(pairs(con, iteration, mining), "sft")


def in_parts(relation: duckdb.DuckDBPyRelation) -> Iterator[pa.RecordBatch]:
    """The rows of a query as they are found, at most PART_ROWS at a time."""
    with relation.to_arrow_reader(PART_ROWS) as reader:
        yield from reader


@contextmanager
def joined_as_written(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Rows on the left of a join pass by those on the right, which are held: what is left has texts, and a guess of how many rows are left
    of a table must not turn that round. So they keep their order, too."""
    con.execute("set disabled_optimizers = 'join_order,build_side_probe_side'")
    try:
        yield
    finally:
        with suppress(duckdb.Error):  # closed meanwhile, by who could not go on
            con.execute("reset disabled_optimizers")


def _episodes(steps: duckdb.DuckDBPyRelation) -> Iterator[list[dict[str, Any]]]:
    """Steps of one episode after another, as they are stored: side by side and in order."""
    rows = (row for batch in in_parts(steps) for row in batch.to_pylist())
    for _, of_episode in groupby(rows, key=itemgetter("episode_id")):
        yield list(of_episode)


def _taught(
    kind: Kind,
    episodes: Iterable[list[dict[str, Any]]],
    objectives: Sequence[CtObjective],
    wordings: Wordings,
    left_out: Counter[str] | None,
) -> Iterator[dict[str, Any]]:
    """Samples of each episode, objective by objective."""
    for steps in episodes:
        for objective in objectives:
            num = 0
            for step, messages in OBJECTIVES[objective](steps, wordings):
                num += 1
                source = {name: step[name] for name in ("origin", "domain", "verdict", "episode_id", "step_index")}
                yield _finish(kind, messages, **source)
            if left_out is not None and num < len(steps):
                left_out[objective] += len(steps) - num


def _in_tables(samples: Iterable[dict[str, Any]]) -> Iterator[pa.Table]:
    left = iter(samples)
    while part := list(islice(left, PART_ROWS)):
        yield pa.Table.from_pylist(part, schema=_SCHEMA)


def _parts(steps: duckdb.DuckDBPyRelation, kind: Kind) -> Iterator[pa.Table]:
    for batch in in_parts(steps):
        yield pa.Table.from_pylist([sample_row(kind, **row) for row in batch.to_pylist()], schema=_SCHEMA)


def demonstration_rows(episodes: Sequence[Mapping[str, Any]], steps: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `sft_samples` from solved demonstrations on train instances; others are left out. Takes rows of `episodes` and `steps`."""
    usable = {row["episode_id"]: row for row in episodes if row["outcome"] == "success" and row["split"] == "train"}
    return [
        sample_row(
            "sft",
            origin="demonstration",
            domain=usable[step["episode_id"]]["domain"],
            messages=step["messages"],
            response=step["response"],
            episode_id=step["episode_id"],
            step_index=step["step_index"],
            verdict=True,
        )
        for step in steps
        if step["episode_id"] in usable
    ]


def tutorial_rows(tutorials: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows of `ct_samples` from tutorials, each a chat of messages (objects or mappings) with their own loss weights. A text that
    occurs twice is one sample."""
    rows = {}
    for messages in tutorials:
        row = _finish("ct", [message_row(message) for message in messages], origin="tutorial", domain=GENERAL)
        rows[row["sample_id"]] = row
    return list(rows.values())


def chat_row(kind: Kind, *, origin: str, domain: str, messages: Iterable[Any], verdict: bool | None = None) -> dict[str, Any]:
    """One sample of a whole chat, whose messages have their own loss weights."""
    return _finish(kind, [message_row(message) for message in messages], origin=origin, domain=domain, verdict=verdict)


def sample_row(
    kind: Kind, *, origin: str, domain: str, messages: Sequence[Any], response: str, prompt_loss: float = 0.0, **source: Any
) -> dict[str, Any]:
    """One sample: a prompt whose messages weigh `prompt_loss`, and the answer, which weighs 1. `source` names the columns
    episode_id, step_index, annotation_id, prompt_episode_ids, prompt_step_indices and verdict, as far as there are any."""
    return _finish(kind, weighed(messages, response, prompt_loss=prompt_loss), origin=origin, domain=domain, **source)


def _finish(kind: Kind, messages: list[dict[str, Any]], *, origin: str, domain: str, **source: Any) -> dict[str, Any]:
    made_from = {name: source.pop(name, None) for name in ("episode_id", "step_index", "annotation_id")}
    other = {name: source.pop(name, None) for name in _NOT_IN_ID}
    if source:
        raise TypeError(f"a sample has no column {sorted(source)}; allowed are {', '.join([*made_from, *other])}")
    return {
        "sample_id": content_id("sample", [kind, origin, messages, *made_from.values()]),
        "origin": origin,
        "domain": domain,
        "messages": messages,
        **made_from,
        **other,
        "withdrawn": False,
    }
