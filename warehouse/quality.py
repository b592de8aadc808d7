"""Rows of the table `verdicts`: the environment verifier's V(s) and every quality filter, for each episode that is to be routed.

One source of truth, in SQL: quality_deeds.sql reads what was answered and done, then quality_screens.sql the screens and prompts, once;
both keep a short row a step, of which quality_episodes.sql makes verdicts, part by part, so that memory is bounded whatever the size.
Computed from stored rows alone, so history can be judged again with other thresholds or newer versions: change what a filter computes,
and its version must go up. Where an episode then goes is routing.sql's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from warehouse import decontamination, duplicates, near_duplicates, personal_data
from warehouse.catalogue import ROUTED_PURPOSES
from warehouse.contradictions import MACROS
from warehouse.errors import ConfigError
from warehouse.filter_rows import EXTRAS_SCHEMA
from warehouse.patterns import matches_any, quoted
from warehouse.quality_config import QualityConfig
from warehouse.scan import connect_to_scan
from warehouse.screen_hashes import ScreenHashes
from warehouse.step_facts import Spool
from warehouse.tables import Warehouse

PART_EPISODES = 50_000
"""Episodes whose verdicts are made at a time."""
VERDICTS_SCHEMA = pa.schema([
    ("episode_id", pa.string()), ("judge", pa.string()), ("judge_version", pa.string()), ("kind", pa.string()), ("origin", pa.string()),
    ("score", pa.float64()), ("threshold", pa.float64()), ("passed", pa.bool_()), ("reasons", pa.list_(pa.string())),
])  # fmt: skip
_HERE = Path(__file__).parent
_ACTIONS, _DEEDS, _SCREENS, _EPISODES = (_HERE / f"quality_{name}.sql" for name in ("actions", "deeds", "screens", "episodes"))


def iteration_verdicts(
    warehouse: Warehouse, iteration: str, config: QualityConfig, *, unverified: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """Rows for one iteration, compared with all earlier ones, in the order of episodes and judges; those of one episode come together.
    `unverified`: as in `judge`."""
    with connect_to_scan(warehouse, ("episodes", "steps", "screenshots")) as con:
        yield from judge(con, config, iteration=iteration, spool=warehouse.home.spool, unverified=unverified)


def judge(
    con: duckdb.DuckDBPyConnection, config: QualityConfig, *, iteration: str | None = None, spool: Path, unverified: Sequence[str] = (),
    part_episodes: int = PART_EPISODES,
) -> Iterator[pa.Table]:  # fmt: skip
    """Judge the episodes of `iteration` (None: of every one) seen through a connection with the views `episodes`, `steps`, `annotations`,
    `task_instances` and `screenshots`; earlier iterations are compared with, not judged. Yields VERDICTS_SCHEMA, in the order of ids.

    A crashed episode has no V: only its filters are recorded. Leaks are looked for where V may be 1: in solved episodes, in those of the
    domains `unverified`, where others than the verifier judge, and where people had a hand in. What does not fit memory lies in a folder
    of `spool` until the end. The connection must not be sealed; temporary tables and macros stay on it. Raises ConfigError for a pattern
    that RE2 cannot read.
    """
    _check_patterns(con, config)
    con.execute(MACROS.read_text())
    con.execute(_EPISODES_TO_JUDGE, {"iteration": iteration, "solved": config.success_threshold, "unverified": list(unverified)})
    con.execute(f"create or replace temp view steps_to_read as from steps {f'where iteration <= {quoted(iteration)}' if iteration else ''}")
    (num_new,) = con.execute("select count(*) filter (is_new) from episodes_to_judge").fetchall()[0]
    with Spool(con, spool, num_new, part_episodes) as facts:
        con.execute(f"create or replace temp table actions as {_with_settings(_ACTIONS.read_text(), config)}")
        facts.keep("deeds", _with_settings(_DEEDS.read_text(), config))
        con.execute(_KEYS)
        con.execute(_TYPICAL)
        con.execute(_RANKS, {"limit": config.max_solved_per_task})
        con.execute(_TYPED)
        duplicates.find_twins(con)
        con.execute(_SCREENS_TO_READ)
        facts.keep("screens", _with_settings(_SCREENS.read_text(), config))
        con.execute(_LEAKS)
        screens = ScreenHashes(con, spool.parent / "cache" / "screen_hashes")
        con.register("nearest", duplicates.nearest(con, config, screens))
        extras = [
            *near_duplicates.verdicts(con, config), *decontamination.verdicts(con, config, screens), *personal_data.verdicts(con, config)
        ]
        con.register("extras", pa.concat_tables(extras) if extras else EXTRAS_SCHEMA.empty_table())
        query = _with_settings(_EPISODES.read_text(), config)
        for _ in facts.parts():
            yield _in_order(con.sql(_WITH_EXTRAS.format(query=query)).to_arrow_table()).cast(VERDICTS_SCHEMA)


_WITH_EXTRAS = """
from ({query}) union all by name
select x.n, p.episode_id, x.judge, x.judge_version, 'filter' as kind, 'filter' as origin, x.score, x.threshold,
    x.score >= x.threshold as passed, x.reasons
from extras x join part p using (n)
"""


def _in_order(rows: pa.Table) -> pa.Table:
    """By number of the episode, then what gives V, then the name of the judge. DuckDB would sort the texts along, which takes longer."""
    kinds, judges = (rows[name].combine_chunks().dictionary_encode() for name in ("kind", "judge"))
    names = judges.dictionary.to_pylist()
    of_name = np.argsort(np.argsort(np.array(names, str))) if names else np.zeros(0, np.int64)
    is_filter = np.array([kind != "verdict" for kind in kinds.dictionary.to_pylist()], np.int64)
    place = len(names) * is_filter[kinds.indices.to_numpy()] + of_name[judges.indices.to_numpy()]
    order = np.argsort(rows["n"].to_numpy().astype(np.int64) * (2 * len(names)) + place)
    return rows.drop_columns(["n"]).take(pa.array(order))


_EPISODES_TO_JUDGE = f"""
create or replace temp table episodes_to_judge as
select (row_number() over (order by not is_new, episode_id) - 1)::integer as n, *
from (
    select
        episode_id, iteration, stage, purpose, task_id, split, coalesce(instruction, '') as instruction, outcome, reward,
        $iteration is null or iteration = $iteration as is_new, coalesce(reward, 0) >= $solved as is_solved,
        is_solved or list_contains($unverified, domain)
            or episode_id in (select episode_id from annotations where origin = 'human' and not withdrawn) as may_pass
    from episodes
    where purpose in {ROUTED_PURPOSES} and ($iteration is null or iteration <= $iteration)
    qualify row_number() over (partition by episode_id order by iteration, purpose, stage) = 1
)
"""
_KEYS = """
create or replace temp table keys as
select
    n, count(*) as num_steps, bit_xor(hash(step_index, signature)) as actions_key, count(*) filter (is_written) as num_written,
    count(*) filter (is_active) as num_active, arg_max(is_active, step_index) as ends_active
from all_deeds group by n
"""
_TYPICAL = """
create or replace temp table typical as
select e.task_id, median(coalesce(k.num_steps, 0))::double as typical_steps
from episodes_to_judge e left join keys k using (n) where e.is_solved group by e.task_id
"""
_RANKS = """
create or replace temp table ranks as
select n, row_number() over (partition by iteration, task_id order by episode_id) as rank
from episodes_to_judge where is_solved and $limit is not null
"""
_TYPED = """
create or replace temp table typed_words as
select n, step_index, generate_subscripts(typed, 1) as place, unnest(typed) as word, lower(word) as wanted
from all_deeds where typed is not null
"""
_SCREENS_TO_READ = """
create or replace temp table screens_to_read as
select n, episode_id, iteration, stage, is_new, words, n in (select n from twins) as is_twin
from episodes_to_judge left join (select n, list(distinct wanted) as words from typed_words group by n) using (n)
where is_new or is_twin
"""
_LEAKS = """
create or replace temp table leaks as
with first_images as (select n, min(step_index) as first_image from all_screens where has_image group by n),
read as (select n, unnest(read) as wanted, min(step_index) as first_read from all_screens where len(read) > 0 group by n, wanted),
told as (
    select n, step_index, 0 as source, place, printf('step %d: hidden data ''%s''', step_index, left(text, 40)) as reason
    from (select n, step_index, generate_subscripts(hidden, 1) as place, unnest(hidden) as text
          from all_screens where is_new and len(hidden) > 0)
    union all
    select n, step_index, 1, place, printf('step %d: ''%s'' was nowhere to be read', step_index, word)
    from typed_words left join first_images using (n) left join read using (n, wanted)
    where coalesce(first_image > step_index, true) and coalesce(first_read > step_index, true)
),
first_told as (select n, reason, min((step_index, source, place)) as place from told group by n, reason)
select n, list(reason order by place) as reasons from first_told group by n
"""
"""Reasons of the leak filter by episode. A word that its own prompt lacks may stand in an earlier one."""


def _with_settings(sql: str, config: QualityConfig) -> str:
    """The query with the settings put in as literals: a pattern that is a constant is compiled once, not once a row."""
    patterns = [f"(?m){pattern}" for pattern in config.leak_patterns]
    found = ", ".join(f"regexp_extract(prompt, {quoted(pattern)})" for pattern in patterns)
    values = {name: _literal(value) for name, value in config if not isinstance(value, tuple)} | {
        "any_leak": matches_any("prompt", patterns),
        "leaks": f"list_value({found})" if found else "cast([] as varchar[])",
        "busy": matches_any("observation", config.busy_patterns),
    }
    return Template(sql).safe_substitute(values)


def _check_patterns(con: duckdb.DuckDBPyConnection, config: QualityConfig) -> None:
    for pattern in (*config.leak_patterns, *config.busy_patterns):
        try:
            con.execute("select regexp_matches('', ?)", [pattern]).fetchall()
        except duckdb.Error as error:
            raise ConfigError(f"quality: {pattern!r} is no regular expression that RE2 can read ({error}); mend or drop it") from error


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    return "null" if value is None else repr(value).lower()
