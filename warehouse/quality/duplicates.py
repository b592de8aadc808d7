"""The filter `duplicate`: for each episode the most similar original before it, among those with the same task, instruction and actions.

Two episodes' similarity is the mean, over steps, of the Jaccard index of the screens' element lines; screens without elements are alike
when their pictures' perceptual hashes are. Only originals, i.e. episodes that are not duplicates themselves, are compared with. An
annotated episode is a duplicate of annotated ones only: a rollout that was made before has not been corrected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

import duckdb
import numpy as np
import pyarrow as pa

from warehouse.quality.config import QualityConfig
from warehouse.quality.near_duplicates import Documents, similar_pairs
from warehouse.quality.screen_hashes import ScreenHashes, distance
from warehouse.storage.sql.scan import execute_within_memory

EXHAUSTIVE = 256
"""With at most so many of the same actions every two are compared; beyond, those that MinHash finds alike (near_duplicates.py)."""
MARGIN = 0.1
"""The mean over steps may differ from the Jaccard index of the whole by so much before a candidate is missed."""
NEAREST_SCHEMA = pa.schema([("n", pa.int32()), ("similarity", pa.float64()), ("other", pa.string())])

CHUNK_STEPS = 100_000
"""About so many steps are compared at a time; those of one bucket always together."""

Screens: TypeAlias = "list[frozenset[int] | bytes | str]"
"""Of each step: hashes of its element lines, else its picture's perceptual hash, else the picture's id."""

_SAME_ACTIONS = """
create or replace temp table candidates as
select
    e.n, e.episode_id, e.iteration, e.purpose, hash(e.task_id, e.instruction, k.actions_key) as bucket,
    count(*) over (partition by bucket) as num
from episodes_to_judge e join keys k using (n)
where e.outcome <> 'crashed' and e.split = 'train' qualify num > 1
"""
_MIXED = """
create or replace temp table mixed_buckets as
with keyed as (select n, bit_xor(hash(hash(step_index, state))) as screens_key from screens semi join candidates using (n) group by n)
select bucket from candidates join keyed using (n) group by bucket
having $always or min(screens_key) <> max(screens_key) or min(purpose) <> max(purpose)
"""
_ALIKE = """
select n, 1.0::double as similarity, original as other from (
    select n, row_number() over w as place, first_value(episode_id) over w as original
    from candidates anti join mixed_buckets using (bucket) window w as (partition by bucket order by iteration, purpose, episode_id)
) where place > 1
"""
"""Where all screens are the same too, the first is the original of the rest."""
_MIXED_SCREENS = """
create or replace temp table mixed_screens as
with placed as (
    select t.*, s.step_index, s.picture, s.lines, num <= $exhaustive and min(state) over w = max(state) over w as is_same
    from screens s join candidates t using (n) semi join mixed_buckets using (bucket) window w as (partition by bucket, step_index)
)
select * exclude (picture, lines), case when not is_same then picture end as picture, case when not is_same then lines end as lines
from placed
"""
"""A step at which all of a bucket's screens are the same needs no looking at."""
_CHUNK = """
select bucket, n, episode_id, purpose, picture, lines from mixed_screens where bucket % $num = $chunk
order by bucket, iteration, purpose, episode_id, step_index
"""


@dataclass(frozen=True, slots=True)
class _Member:
    n: int
    episode_id: str
    is_annotated: bool
    screens: Screens


def find_candidates(con: duckdb.DuckDBPyConnection) -> None:
    """The table `candidates`: episodes with the same task, instruction and actions as others, from `episodes_to_judge` and `keys`."""
    execute_within_memory(con, _SAME_ACTIONS)


def nearest(con: duckdb.DuckDBPyConnection, config: QualityConfig, screens: ScreenHashes) -> pa.Table:
    """(n, similarity, other) of the episodes that have an original like them, from the tables `candidates` and `screens`."""
    execute_within_memory(con, _MIXED, {"always": config.min_novelty == 0})
    tables = [con.sql(_ALIKE).to_arrow_table().cast(NEAREST_SCHEMA)]
    execute_within_memory(con, _MIXED_SCREENS, {"exhaustive": EXHAUSTIVE})
    (num_steps,) = con.execute("select count(*) from mixed_screens").fetchall()[0]
    num_chunks = math.ceil(num_steps / CHUNK_STEPS)
    for chunk in range(num_chunks):
        steps = con.sql(_CHUNK, params={"num": num_chunks, "chunk": chunk}).to_arrow_table()
        rows = [
            {"n": n, "similarity": similarity, "other": other}
            for bucket in _buckets(steps, screens)
            for n, similarity, other in _nearest_of(bucket, config)
        ]
        tables.append(pa.Table.from_pylist(rows, schema=NEAREST_SCHEMA))
    return pa.concat_tables(tables)


def _buckets(steps: pa.Table, hashes: ScreenHashes) -> Iterator[list[_Member]]:
    """The members of each bucket, earliest first, with their screens."""
    known = hashes.of({id_ for id_ in steps["picture"].to_pylist() if id_ is not None})
    rows = zip(*(steps[name].to_pylist() for name in steps.column_names), strict=True)
    for _, of_bucket in groupby(rows, itemgetter(0)):
        yield [
            _Member(
                n,
                episode_id,
                purpose == "annotation",
                [frozenset(lines) if lines is not None else known.get(picture, picture or "") for *_, picture, lines in of_episode],
            )
            for (n, episode_id, purpose), of_episode in groupby(of_bucket, itemgetter(1, 2, 3))
        ]


def _nearest_of(members: list[_Member], config: QualityConfig) -> Iterator[tuple[int, float, str]]:
    candidates = _likely(members, config) if len(members) > EXHAUSTIVE else None
    is_original = [False] * len(members)
    originals: list[int] = []
    for i, member in enumerate(members):
        pool = originals if candidates is None else [j for j in candidates[i] if is_original[j]]
        allowed = (j for j in pool if not member.is_annotated or members[j].is_annotated)
        best = max(((similarity(member.screens, members[j].screens, config), members[j].episode_id) for j in allowed), default=(0.0, ""))
        if best[0] > 0:
            yield member.n, *best
        if 1 - best[0] >= config.min_novelty:
            is_original[i] = True
            originals.append(i)


def _likely(members: list[_Member], config: QualityConfig) -> list[list[int]]:
    """For each member those before it that may be like enough, by MinHash over (step, line). Annotated ones come apart from rollouts, which
    may be too many before them; each rollout is compared with both."""
    tokens = [[_token(k, value) for k, screen in enumerate(member.screens) for value in _values(screen)] for member in members]
    offsets = np.cumsum([0, *(len(row) for row in tokens)], dtype=np.int64)
    documents = Documents.of(np.array([token for row in tokens for token in row], np.uint64), offsets)
    found: list[list[int]] = [[] for _ in members]
    pairs = similar_pairs(documents, max(0.1, 1 - config.min_novelty - MARGIN))
    for first, second in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True):
        found[second].append(first)
    return found


def _values(screen: frozenset[int] | bytes | str) -> Iterable[int | bytes | str]:
    return screen if isinstance(screen, frozenset) else (screen,)


def _token(step: int, value: int | bytes | str) -> int:
    """64 well-mixed bits of a step's line or picture, the same in every process."""
    text = value if isinstance(value, bytes) else str(value).encode()
    return int.from_bytes(blake2b(text, digest_size=8, salt=step.to_bytes(8, "little")).digest())


def similarity(first: Screens, second: Screens, config: QualityConfig) -> float:
    """Mean over steps of how alike two screens are."""
    scores = [_alike(a, b, config) for a, b in zip(first, second, strict=True)]
    return sum(scores) / len(scores)


def _alike(first: frozenset[int] | bytes | str, second: frozenset[int] | bytes | str, config: QualityConfig) -> float:
    if isinstance(first, frozenset) and isinstance(second, frozenset):
        return len(first & second) / len(first | second) if first | second else 1.0
    if isinstance(first, bytes) and isinstance(second, bytes):
        return float(distance(first, second) <= config.max_screen_distance)
    return float(first == second)
