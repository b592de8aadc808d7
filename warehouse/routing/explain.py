"""Why one episode went where it went: every verdict with the rule that reads it, the one that decided, what would have sent it elsewhere,
and where it was learned from. The route is never reasoned about here: routes.sql is asked, on the episode's own rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import duckdb
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from warehouse.core.errors import UnknownId
from warehouse.core.identity import LEAST_LIKENESS
from warehouse.evaluation.judge_reports import NOTHING_PASSES
from warehouse.quality.overlap import repeated_by, repeated_by_samples
from warehouse.routing.routes import LAST, RoutingConfig, Rule, route
from warehouse.storage.files.id_index import IdIndex
from warehouse.storage.files.table_files import Listing
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

TABLES_READ = (
    "episodes",
    "verdicts",
    "routes",
    "ct_samples",
    "sft_samples",
    "orm_samples",
    "datasets",
    "checkpoints",
    "tasks",
    "task_instances",
)
NEAREST_SHOWN = 4
MAY_ERR = ("judge", "orm")
"""Origins of verdicts that abstain where their threshold lets nothing pass."""


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Judgement(_Body):
    """One judge's newest verdict, and how the rules read it. `threshold` is the one that routing goes by."""

    judge: str
    judge_version: str
    origin: str
    effect: str
    precedence: int
    score: float
    threshold: float
    stored_threshold: float
    passed: bool
    reasons: list[str]
    iteration: str
    decided: bool
    abstains: bool
    """It may err and nothing that it says would pass: it decides nothing (routes.sql)."""


class Change(_Body):
    """The smallest change of one judge's threshold that sends the episode elsewhere, with all else as it is."""

    judge: str
    threshold: float
    route: str
    reason: str


class Use(_Body):
    """A sample that holds text of the episode, the datasets that hold it, and the checkpoints that learned from those."""

    table: str
    sample_id: str
    step_index: int | None
    origin: str
    iteration: str
    withdrawn: bool
    datasets: list[str]
    checkpoints: list[str]
    left_out: str | None = None
    """Why no dataset takes it."""


class Explanation(_Body):
    """All that is known of an episode's way. `stored_route` is what the table says, `route` what the rules given now say."""

    episode_id: str
    iteration: str
    purpose: str
    task: str
    domain: str
    seed: int
    split: str
    outcome: str
    reward: float | None
    route: str | None
    reason: str
    stored_route: str | None
    stored_reason: str | None
    judgements: list[Judgement]
    changes: list[Change]
    uses: list[Use]


def connect_to_explain(warehouse: Warehouse, episode: str) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
    """A connection for `explain`. Of an episode that is given by its whole id it has the iterations from the episode's own on: no earlier
    row can name it. It has all of them for the beginning of an id, and for what a person did, which is held against all that was
    evaluated."""
    files = IdIndex(warehouse, "episodes").files_with([episode])
    columns = ("episode_id", "policy_id", "iteration")
    found = warehouse.read_files("episodes", files, columns, ("episode_id", [episode])).to_pylist() if files else []
    if not found or any(row["policy_id"] == "human" for row in found):
        return connect(warehouse, tables=TABLES_READ)
    first = min(row["iteration"] for row in found)
    since = [iteration for iteration in Listing(warehouse, TABLES_READ).iterations(*TABLES_READ) if iteration >= first]
    return connect(warehouse, tables=TABLES_READ, iterations=since)


def explain(con: duckdb.DuckDBPyConnection, episode: str, config: RoutingConfig | None = None) -> Explanation:
    """Explain the episode of this id, or of the unambiguous beginning of one, on a connection of query.connect or of
    `connect_to_explain`.

    Raises UnknownId, naming the nearest ids, where no episode or more than one is meant.
    """
    rules = config or RoutingConfig()
    episode_id = resolve_episode(con, episode)
    episodes = con.sql("from episodes where episode_id = $id order by iteration, stage", params={"id": episode_id}).to_arrow_table()
    verdicts = con.sql("from verdicts where episode_id = $id", params={"id": episode_id}).to_arrow_table()
    row = episodes.slice(0, 1).to_pylist()[0]
    routed = _route(episodes, verdicts, rules)
    stored = con.execute(
        "select route, reason from routes where episode_id = $1 and iteration = $2 order by stage", [episode_id, row["iteration"]]
    ).fetchall()
    judgements = _judgements(verdicts, rules, _deciding(routed) if routed is not None else frozenset())
    destination = None if routed is None else routed["route"]
    return Explanation(
        episode_id=episode_id,
        task=row["task_name"],
        route=destination,
        reason=f"episodes of the purpose {row['purpose']} are not routed" if routed is None else routed["reason"],
        judgements=judgements,
        **{name: row[name] for name in ("iteration", "purpose", "domain", "seed", "split", "outcome", "reward")},
        stored_route=stored[0][0] if stored else None,
        stored_reason=stored[0][1] if stored else None,
        changes=_changes(episodes, verdicts, rules, judgements, destination),
        uses=_uses(con, episode_id),
    )


def resolve_episode(con: duckdb.DuckDBPyConnection, episode: str) -> str:
    """The one episode that an id or its beginning means. Raises UnknownId."""
    for condition in ("episode_id = $1", "starts_with(episode_id, $1)", "starts_with(episode_id, 'episode-' || $1)"):
        query = f"select distinct episode_id from episodes where {condition} order by 1 limit {NEAREST_SHOWN + 1}"
        found = [id_ for (id_,) in con.execute(query, [episode]).fetchall()] if episode else []
        if len(found) == 1:
            return str(found[0])
        if found:
            shown = ", ".join(found[:NEAREST_SHOWN]) + " …" * (len(found) > NEAREST_SHOWN)
            raise UnknownId(f"{episode!r} may be {shown}: give more of it")
    nearest = con.execute(
        f"select distinct episode_id, jaro_winkler_similarity(episode_id, $1) as likeness from episodes "
        f"order by likeness desc, episode_id limit {NEAREST_SHOWN}",
        [episode],
    ).fetchall()
    near = [id_ for id_, likeness in nearest if likeness >= LEAST_LIKENESS]
    how = """`flywheel sql "select episode_id, task_name, outcome from episodes limit 20"` lists some"""
    shown = f"the nearest are {', '.join(near)}" if near else how if nearest else "the warehouse has no episode yet"
    raise UnknownId(f"no episode has the id {episode!r}: {shown}")


def _route(episodes: pa.Table, verdicts: pa.Table, rules: RoutingConfig) -> dict[str, Any] | None:
    """The episode's row of `routes`; None where its purpose is not routed."""
    with duckdb.connect(":memory:") as con:
        con.execute("set threads = 1")
        con.register("episodes", episodes)
        con.register("verdicts", verdicts)
        rows = route(con, rules).to_pylist()
    return rows[0] if rows else None


def _deciding(routed: Mapping[str, Any]) -> frozenset[str | None]:
    """The judge who gave V, as far as it mattered, and the filter that decided."""
    gave_v = routed["decided_by"] if routed["cause"] in ("solved", "not_solved", "demoted") else None
    return frozenset({gave_v, routed["withheld_by"], routed["demoted_by"]})


def _judgements(verdicts: pa.Table, rules: RoutingConfig, deciding: frozenset[str | None]) -> list[Judgement]:
    """The newest verdict of each judge, in the order in which they speak."""
    newest: dict[str, dict[str, Any]] = {}
    for row in sorted(verdicts.to_pylist(), key=lambda row: (row["iteration"], row["judge_version"], row["stage"], -row["score"])):
        newest[row["judge"]] = row
    found = []
    for judge, row in newest.items():
        unnamed = Rule(effect="decide" if row["kind"] == "verdict" else "demote", precedence=LAST)
        rule = rules.effective_rules.get(judge, unnamed).over(unnamed)
        threshold = row["threshold"] if rule.threshold is None else rule.threshold
        found.append(
            Judgement(
                judge=judge,
                effect=rule.effect or "demote",
                precedence=LAST if rule.precedence is None else rule.precedence,
                threshold=threshold,
                stored_threshold=row["threshold"],
                passed=row["score"] >= threshold,
                decided=judge in deciding,
                abstains=rule.effect == "decide" and row["origin"] in MAY_ERR and threshold >= NOTHING_PASSES,
                **{name: row[name] for name in ("judge_version", "origin", "score", "reasons", "iteration")},
            )
        )
    order = {"decide": 0, "withhold": 1, "demote": 2}
    return sorted(found, key=lambda judgement: (order[judgement.effect], judgement.precedence, judgement.judge))


def _changes(
    episodes: pa.Table, verdicts: pa.Table, rules: RoutingConfig, judgements: list[Judgement], destination: str | None
) -> list[Change]:
    changes = []
    for judgement in judgements:
        threshold = judgement.score if not judgement.passed else math.nextafter(judgement.score, 2.0)
        if threshold > 1:
            continue  # a full score passes whatever is asked
        rule = Rule(effect=judgement.effect, threshold=threshold, precedence=judgement.precedence)
        other = _route(episodes, verdicts, RoutingConfig(rules=rules.rules | {judgement.judge: rule}))
        if other is not None and other["route"] != destination:
            changes.append(Change(judge=judgement.judge, threshold=threshold, route=other["route"], reason=other["reason"]))
    return changes


def _uses(con: duckdb.DuckDBPyConnection, episode_id: str) -> list[Use]:
    rows = con.sql(
        """
        with samples as (
            select 'ct_samples' as "table", sample_id, step_index, origin, iteration, withdrawn from ct_samples where episode_id = $id
            union all select 'sft_samples', sample_id, step_index, origin, iteration, withdrawn from sft_samples where episode_id = $id
            union all
            select 'sft_samples', sample_id, prompt_step_indices[list_position(prompt_episode_ids, $id)], origin, iteration, withdrawn
            from sft_samples where list_contains(prompt_episode_ids, $id)
            union all select 'orm_samples', sample_id, step_index, origin, iteration, withdrawn from orm_samples where episode_id = $id
        ),
        held as (select sample_id, list(distinct dataset_id order by dataset_id) as datasets
                 from datasets where sample_id in (select sample_id from samples) group by sample_id),
        learned as (select unnest(datasets) as dataset_id, iteration || '/' || stage || ' ' || checkpoint_id as learner from checkpoints)
        select s.*, coalesce(h.datasets, []) as datasets, coalesce((
            select list(distinct learner order by learner) from learned l where list_contains(h.datasets, l.dataset_id)), []) as checkpoints
        from samples s left join held h using (sample_id) order by "table", step_index, sample_id""",
        params={"id": episode_id},
    )
    found = rows.to_arrow_table().to_pylist()
    words = repeated_by(con, episode_id) if found else None
    own = repeated_by_samples(con, episode_id) if found else {}
    return [Use(**row, left_out=_left_out(words or own.get(row["sample_id"])) if row["table"] != "orm_samples" else None) for row in found]


def _left_out(words: str | None) -> str | None:
    return None if words is None else f"it repeats an instruction that is evaluated on: {words!r}"
