"""The filter `duplicate`: for each episode the most similar original before it, among those with the same task, instruction and actions.

Two episodes' similarity is the mean, over steps, of the Jaccard index of the screens' element lines; screens without elements are alike
when their pictures' perceptual hashes are. Only originals, i.e. episodes that are no duplicates themselves, are compared with. An annotated
episode is a duplicate of annotated ones only: a rollout that was made before has not been corrected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa

from warehouse.near_duplicates import Documents, similar_pairs
from warehouse.quality_config import QualityConfig
from warehouse.screen_hashes import ScreenHashes, distance

EXHAUSTIVE = 256
"""With at most so many of the same actions every two are compared; beyond, those that MinHash finds alike (near_duplicates.py)."""
MARGIN = 0.1
"""The mean over steps may differ from the Jaccard index of the whole by so much before a candidate is missed."""
NEAREST_SCHEMA = pa.schema([("n", pa.int32()), ("similarity", pa.float64()), ("other", pa.string())])

Screens: TypeAlias = "list[frozenset[int] | bytes | str]"
"""Of each step: hashes of its element lines, else its picture's perceptual hash, else the picture's id."""

_TWINS = """
create or replace temp table twins as
with keyed as (
    select e.n, e.episode_id, e.iteration, e.purpose, k.screens_key, hash(e.task_id, e.instruction, k.actions_key) as bucket
    from episodes_to_judge e join keys k using (n)
    where e.outcome <> 'crashed' and e.split = 'train'
)
select
    *, count(*) over b as num,
    min(screens_key) over b <> max(screens_key) over b or min(purpose) over b <> max(purpose) over b as is_mixed
from keyed window b as (partition by bucket) qualify num > 1
"""
_ALIKE = """
select n, 1.0::double as similarity, original as other from (
    select n, row_number() over w as place, first_value(episode_id) over w as original
    from twins where not is_mixed window w as (partition by bucket order by iteration, purpose, episode_id)
) where place > 1
"""
"""Where all screens are the same too, the first is the original of the rest."""
_LINES = """
select t.n, s.step_index, s.observation = '' as is_picture, s.screenshot_id,
    list_distinct(list_transform(string_split(regexp_replace(s.observation, '\\n$', ''), chr(10)), lambda line: hash(line))) as lines
from steps s join episodes_to_judge e on e.episode_id = s.episode_id and e.iteration = s.iteration and e.stage = s.stage
join twins t on t.n = e.n where t.is_mixed
order by t.n, s.step_index
"""


@dataclass(frozen=True, slots=True)
class _Member:
    n: int
    episode_id: str
    is_annotated: bool
    screens: Screens


def nearest(con: duckdb.DuckDBPyConnection, config: QualityConfig, screens: ScreenHashes) -> pa.Table:
    """(n, similarity, other) of the episodes that have an original like them, from the tables `episodes_to_judge`, `keys` and `steps`."""
    con.execute(_TWINS)
    if config.min_novelty == 0:
        con.execute("update twins set is_mixed = true")
    alike = con.sql(_ALIKE).to_arrow_table().cast(NEAREST_SCHEMA)
    rows = [
        {"n": n, "similarity": similarity, "other": other}
        for bucket in _mixed_buckets(con, screens)
        for n, similarity, other in _nearest_of(bucket, config)
    ]
    return pa.concat_tables([alike, pa.Table.from_pylist(rows, schema=NEAREST_SCHEMA)])


def _mixed_buckets(con: duckdb.DuckDBPyConnection, hashes: ScreenHashes) -> Iterator[list[_Member]]:
    """The members of each bucket, earliest first, with their screens."""
    if con.execute("select count(*) from twins where is_mixed").fetchall() == [(0,)]:
        return
    steps = con.sql(_LINES).to_arrow_table()
    pictures = steps.filter(steps["is_picture"])["screenshot_id"].to_pylist()
    known = hashes.of({id_ for id_ in pictures if id_ is not None})
    screens: dict[int, Screens] = {}
    names = ("n", "is_picture", "screenshot_id", "lines")
    for n, is_picture, screenshot_id, lines in zip(*(steps[name].to_pylist() for name in names), strict=True):
        state: Any = known.get(screenshot_id, screenshot_id or "") if is_picture else frozenset(lines)
        screens.setdefault(n, []).append(state)
    query = "select bucket, n, episode_id, purpose from twins where is_mixed order by bucket, iteration, purpose, episode_id"
    for _, rows in groupby(con.execute(query).fetchall(), itemgetter(0)):
        yield [_Member(n, episode_id, purpose == "annotation", screens[n]) for _, n, episode_id, purpose in rows]


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
