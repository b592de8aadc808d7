"""The filter `evaluation_overlap`: train episodes whose instruction and first screen are nearly those of an instance that is evaluated on,
whatever the split says. For tasks with few different instances it would take most of the data, so it is off by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import duckdb
import numpy as np
import pyarrow as pa

from warehouse.quality.config import QualityConfig
from warehouse.quality.filter_rows import filter_rows
from warehouse.quality.near_duplicates import Documents, similar_pairs, to_documents
from warehouse.quality.screen_hashes import ScreenHashes, distance

LIKE_INSTRUCTIONS = 0.7
"""Instructions with at least this Jaccard index of their words are looked at together."""
_TEXTS = """
create or replace temp table instruction_texts as
with first_screens as (
    select episode_id, iteration, stage, observation, screenshot_id from steps
    qualify row_number() over (partition by episode_id, iteration, stage order by step_index) = 1
),
asked as (
    select e.n, null as evaluated, e.instruction, s.observation, s.screenshot_id
    from episodes_to_judge e left join first_screens s using (episode_id, iteration, stage)
    where e.is_new and e.split = 'train'
    union all
    select null, e.episode_id, coalesce(e.instruction, ''), s.observation, s.screenshot_id
    from episodes e left join first_screens s using (episode_id, iteration, stage)
    where e.split <> 'train' or e.purpose = 'evaluation'
    union all
    select null, 'instance ' || seed || ' of ' || task_id, instruction, null, null from task_instances where split <> 'train'
)
select *, lower(trim(regexp_replace(instruction, '\\s+', ' ', 'g'))) as words from asked where instruction <> ''
"""
_INSTRUCTIONS = """
select words, list(distinct hash(word)) as tokens, bool_or(n is not null) as is_trained, bool_or(evaluated is not null) as is_evaluated
from (select words, n, evaluated, unnest(string_split(words, ' ')) as word from (
    select words, any_value(n) as n, any_value(evaluated) as evaluated from instruction_texts group by words))
group by words order by words
"""
_COMPARED = """
select t.n, e.evaluated, p.similarity, t.observation is null or e.observation is null as is_unseen,
    t.observation as seen, e.observation as other, t.screenshot_id as screen, e.screenshot_id as other_screen
from instruction_texts t join like_instructions p on p.trained = t.words
join (select distinct on (words, observation, screenshot_id) * from instruction_texts where evaluated is not null
      order by evaluated) e on e.words = p.evaluated
where t.n is not null order by t.n, e.evaluated
"""


def verdicts(con: duckdb.DuckDBPyConnection, config: QualityConfig, screens: ScreenHashes) -> Sequence[pa.Table]:
    """1 - likeness to the nearest instance that is evaluated on: the smaller of how alike the instructions' words and the first screens
    are. Of generated instances that were never run only the instruction is known, and only the same one counts."""
    if not config.min_evaluation_distance:
        return []
    con.execute(_TEXTS)
    con.register("like_instructions", _like_instructions(con))
    rows = con.sql(_COMPARED).to_arrow_table().to_pylist()
    hashes = screens.of({row[name] for row in rows for name in ("screen", "other_screen") if row[name] is not None})
    nearest: dict[int, tuple[float, str]] = {}
    for row in rows:
        alike = min(row["similarity"], _screens_alike(row, hashes, config))
        if alike > nearest.get(row["n"], (0.0, ""))[0]:
            nearest[row["n"]] = (alike, row["evaluated"])
    numbers = (n for (n,) in con.execute("select n from episodes_to_judge where is_new and split = 'train' order by n").fetchall())
    return [filter_rows("evaluation_overlap", "1", config.min_evaluation_distance, _results(numbers, nearest, config))]


def _results(
    numbers: Iterator[int], nearest: dict[int, tuple[float, str]], config: QualityConfig
) -> Iterator[tuple[int, float, list[str]]]:
    for n in numbers:
        alike, other = nearest.get(n, (0.0, ""))
        yield n, 1 - alike, [f"{alike:.2f} like {other}, which is evaluated on"] if 1 - alike < config.min_evaluation_distance else []


def _like_instructions(con: duckdb.DuckDBPyConnection) -> pa.Table:
    """(trained, evaluated, similarity) of the instructions that are alike."""
    texts = con.sql(_INSTRUCTIONS).to_arrow_table()
    documents: Documents = to_documents(texts["tokens"])
    trained, evaluated = (texts[name].to_numpy() for name in ("is_trained", "is_evaluated"))
    pairs = similar_pairs(documents, LIKE_INSTRUCTIONS)
    same = np.flatnonzero(trained & evaluated)
    first = np.concatenate((pairs.first, pairs.second, same))
    second = np.concatenate((pairs.second, pairs.first, same))
    similarity = np.concatenate((pairs.similarity, pairs.similarity, np.ones(len(same))))
    kept = trained[first] & evaluated[second]
    words = texts["words"].combine_chunks()
    return pa.table(
        {"trained": words.take(pa.array(first[kept])), "evaluated": words.take(pa.array(second[kept])), "similarity": similarity[kept]}
    )


def _screens_alike(row: dict[str, object], hashes: dict[str, bytes], config: QualityConfig) -> float:
    seen, other = row["seen"], row["other"]
    if row["is_unseen"]:
        return float(row["similarity"] == 1.0)
    if seen or other:
        first, second = set(str(seen).splitlines()), set(str(other).splitlines())
        return len(first & second) / len(first | second)
    pictures = [hashes.get(str(row[name])) for name in ("screen", "other_screen")]
    if pictures[0] is None or pictures[1] is None:
        return float(row["screen"] == row["other_screen"])
    return float(distance(pictures[0], pictures[1]) <= config.max_screen_distance)
