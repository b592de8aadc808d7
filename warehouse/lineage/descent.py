"""What descends from episodes, and from samples that were cut from none: rows that hold their content, datasets with these rows, the
checkpoints that learned from these datasets, and all that was made from or played by those. For forgetting: walk.py draws
the lineage of one node, here it is complete and starts from many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import duckdb

from warehouse.lineage.relations import ALL_EDGES, LEARNED_EPISODES
from warehouse.lineage.release_ledger import maker
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

SAMPLE_TABLES = ("ct_samples", "sft_samples", "orm_samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the walk starts from: episodes, samples, the account of an annotator, and episodes of others on which that account gave its
    opinion (judgements that were made into samples hold its words)."""

    episodes: frozenset[str] = frozenset()
    samples: frozenset[str] = frozenset()
    annotator: str | None = None
    judged: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class HeldBy:
    """A dataset, with how many of its samples are among those that hold the content."""

    dataset_id: str
    iteration: str
    stage: str
    num_held: int
    num_samples: int


@dataclass(frozen=True, slots=True)
class Learned:
    """A checkpoint that learned from the content itself: from so many samples of datasets, and in so many episodes of its RL."""

    checkpoint_id: str
    name: str
    """ITERATION/STAGE that made it."""
    num_samples: int
    num_episodes: int

    @property
    def because(self) -> str:
        counts = ((self.num_samples, "sample", ""), (self.num_episodes, "episode", " of its RL"))
        return "learned from " + " and ".join(f"{num:,} {noun}{'' if num == 1 else 's'}{of}" for num, noun, of in counts if num)


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """`rows`: ids by table of what holds the content and can be withdrawn. `verdicts`, `routes`: rows about the episodes. `made_from`: of
    checkpoints that did not learn from it themselves, the names of those that did and that they were made from. `later`: how many nodes
    of lineage, by kind, descend from it only through what these checkpoints played."""

    episodes: tuple[str, ...]
    rows: dict[str, frozenset[str]]
    num_steps: int = 0
    datasets: tuple[HeldBy, ...] = ()
    learned: tuple[Learned, ...] = ()
    made_from: dict[str, tuple[str, ...]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """ITERATION/STAGE of every tainted checkpoint."""
    later: dict[str, int] = field(default_factory=dict)

    @property
    def tainted(self) -> frozenset[str]:
        return frozenset({one.checkpoint_id for one in self.learned} | self.made_from.keys())


_WITH_FORKS = """
    with recursive found as (
        select unnest($episodes::varchar[]) as episode_id
        union select episodes.episode_id from episodes join found on parent_episode_id = found.episode_id where fork_refused is null)
    select distinct episode_id from found"""
"""Episodes, and the forks that begin with their steps."""
_EPISODES = "select distinct episode_id from episodes where episode_id in (select unnest($episodes::varchar[]))"
_ANNOTATIONS = """select distinct annotation_id from annotations
    where episode_id in (select unnest($episodes::varchar[])) or annotator = $annotator::varchar"""
_SAMPLES_OF = """select distinct sample_id from {table} where episode_id in (select unnest($episodes::varchar[]))
    or annotation_id in (select unnest($annotations::varchar[])) or sample_id in (select unnest($samples::varchar[]))
    or list_has_any(coalesce(prompt_episode_ids, []), $episodes::varchar[])
    or (origin = 'judgement' and episode_id in (select unnest($judged::varchar[])))"""
_DATASETS = """
    select dataset_id, min(iteration), min(stage), count(distinct sample_id) filter (sample_id in (select unnest($held::varchar[]))),
        count(distinct sample_id)
    from datasets where dataset_id in (select dataset_id from datasets where sample_id in (select unnest($held::varchar[])))
    group by dataset_id order by 2, 3, 1"""
_LEARNED = f"""
    with held as (
        select checkpoint_id, count(distinct sample_id) as num from (
            select checkpoint_id, unnest(datasets) as dataset_id from checkpoints) join datasets using (dataset_id)
        where sample_id in (select unnest($held::varchar[])) group by all),
    played as (
        select checkpoint_id, count(distinct episode_id) as num from {LEARNED_EPISODES}
        where episode_id in (select unnest($episodes::varchar[])) group by all)
    select checkpoint_id, coalesce(any_value(held.num), 0), coalesce(any_value(played.num), 0)
    from held full join played using (checkpoint_id) group by all order by all"""
_PARENTS = "select distinct checkpoint_id, unnest(parents) from checkpoints"
_ALL = f"""
    with recursive edges as materialized (select child_kind, child_id, parent_kind, parent_id from ({ALL_EDGES})), walk as (
        select distinct child_kind as kind, child_id as id from edges join starts on parent_kind = starts.kind and parent_id = starts.id
        union select child_kind, child_id from edges join walk on parent_kind = walk.kind and parent_id = walk.id)
    select kind, id from walk"""


def descent(warehouse: Warehouse, start: Start) -> Descent:
    """Of what was withdrawn or erased before, too: its tombstones say what it was made from."""
    made = warehouse.read("checkpoints", columns=["iteration", "stage", "checkpoint_id", "parents"]).to_pylist()
    with connect(warehouse, sealed=False) as con:
        start = replace(start, episodes=_ids(con, _WITH_FORKS, episodes=start.episodes))
        rows = _rows(con, start)
        asked = {"held": sorted(frozenset().union(*(rows[table] for table in SAMPLE_TABLES)))}
        datasets = [HeldBy(*found) for found in con.execute(_DATASETS, asked).fetchall()]
        found = con.execute(_LEARNED, {**asked, "episodes": sorted(start.episodes)}).fetchall()
        learned = [Learned(id_, maker(made, id_), of_datasets, of_rl) for id_, of_datasets, of_rl in found]
        parents = [(row["checkpoint_id"], parent) for row in made for parent in row["parents"]]
        made_from = descendants({one.checkpoint_id for one in learned}, parents)
        tainted = {one.checkpoint_id for one in learned} | made_from.keys()
        return Descent(
            episodes=tuple(sorted(_ids(con, _EPISODES, episodes=start.episodes))),
            rows=rows,
            num_steps=_num_steps(con, start.episodes),
            datasets=tuple(datasets),
            learned=tuple(learned),
            made_from={id_: tuple(sorted(maker(made, root) for root in roots)) for id_, roots in sorted(made_from.items())},
            names={id_: maker(made, id_) for id_ in sorted(tainted)},
            later=_later(con, start, rows, {dataset.dataset_id for dataset in datasets}, tainted),
        )


def descendants(roots: Collection[str], parents: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Of every checkpoint that was made from one of `roots`, over any number of generations, the roots that it was made from; the roots
    themselves are left out. `parents`: pairs of a checkpoint and one that it was made from."""
    children: dict[str, set[str]] = {}
    for child, parent in parents:
        if child != parent:
            children.setdefault(parent, set()).add(child)
    found: dict[str, set[str]] = {}
    for root in roots:
        frontier = [root]
        while frontier:
            for child in children.get(frontier.pop(), ()):
                if root not in found.setdefault(child, set()):
                    found[child].add(root)
                    frontier.append(child)
    return {id_: of for id_, of in found.items() if id_ not in roots}


def _rows(con: duckdb.DuckDBPyConnection, start: Start) -> dict[str, frozenset[str]]:
    annotations = _ids(con, _ANNOTATIONS, episodes=start.episodes, annotator=start.annotator)
    asked = {"episodes": start.episodes, "annotations": annotations, "samples": start.samples}
    nobody = frozenset[str]()
    return {
        "annotations": annotations,
        **{
            table: _ids(con, _SAMPLES_OF.format(table=table), **asked, judged=start.judged if table == "orm_samples" else nobody)
            for table in SAMPLE_TABLES
        },
    }


def _ids(con: duckdb.DuckDBPyConnection, query: str, **values: Collection[str] | str | None) -> frozenset[str]:
    asked = {name: value if value is None or isinstance(value, str) else sorted(value) for name, value in values.items()}
    return frozenset(id_ for (id_,) in con.execute(query, asked).fetchall())


def _num_steps(con: duckdb.DuckDBPyConnection, episodes: Collection[str]) -> int:
    query = "select count(*) from steps where episode_id in (select unnest($episodes::varchar[]))"
    ((num,),) = con.execute(query, {"episodes": sorted(episodes)}).fetchall()
    return int(num)


def _later(
    con: duckdb.DuckDBPyConnection, start: Start, rows: dict[str, frozenset[str]], datasets: Collection[str], checkpoints: Collection[str]
) -> dict[str, int]:
    """Nodes of the whole lineage below the start that hold no content and did not learn from it, by kind. What is said of the episodes
    themselves, and what measures these checkpoints, is counted elsewhere."""
    starts = [("episode", id_) for id_ in start.episodes]
    starts += [(f"{table.removesuffix('s')}", id_) for table, ids in rows.items() for id_ in ids]
    con.execute("create or replace temp table starts (kind varchar, id varchar)")
    kinds, ids = [kind for kind, _ in starts], [id_ for _, id_ in starts]
    con.execute("insert into starts select unnest($kinds::varchar[]), unnest($ids::varchar[])", {"kinds": kinds, "ids": ids})
    known = {*starts, *(("dataset", id_) for id_ in datasets), *(("checkpoint", id_) for id_ in checkpoints)}
    found = [(kind, id_) for kind, id_ in con.execute(_ALL).fetchall()]
    below = {(kind, id_) for kind, id_ in found if kind not in ("verdict", "route") or id_.partition("/")[0] not in start.episodes}
    return dict(sorted(Counter(kind for kind, _ in below - known).items()))
