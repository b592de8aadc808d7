"""Rows of the table `verdicts`: the environment verifier's V(s) and every quality filter, for each episode that is to be routed.

One source of truth, in SQL: actions_taken.sql reads what was thought and done, then screens.sql the screens and prompts, once.
Both keep a short row a step, which lies on disk where memory does not hold it. Of those faults.sql makes what is wrong with single
steps, episodes.sql a row an episode, and scores.sql and reasons.sql, part by part, what verdict_rows.py lays out.
Computed from stored rows alone, so history can be judged again with other thresholds or newer versions: change what a filter computes,
and its version must go up. Where an episode then goes is routes.sql's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template
from typing import Any

import duckdb
import pyarrow as pa

from warehouse.core.errors import ConfigError
from warehouse.quality import decontamination, duplicates, near_duplicates, personal_data
from warehouse.quality.config import QualityConfig
from warehouse.quality.contradictions import MACROS
from warehouse.quality.filter_rows import EXTRAS_SCHEMA
from warehouse.quality.patterns import matches_any, quoted
from warehouse.quality.screen_hashes import ScreenHashes
from warehouse.quality.verdict_rows import Judge, judges, verdict_rows
from warehouse.storage.catalogue import ROUTED_PURPOSES
from warehouse.storage.sql.scan import connect_to_scan, execute_within_memory
from warehouse.storage.tables import Warehouse

PART_EPISODES = 50_000
"""Episodes whose verdicts are made at a time."""
_HERE = Path(__file__).parent
_ACTIONS, _ACTIONS_TAKEN, _SCREENS, _FAULTS, _EPISODES, _SCORES, _REASONS = (
    (_HERE / f"{name}.sql").read_text() for name in ("actions", "actions_taken", "screens", "faults", "episodes", "scores", "reasons")
)


def iteration_verdicts(
    warehouse: Warehouse, iteration: str, config: QualityConfig, *, unverified: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """Rows for one iteration, compared with all earlier ones, in the order of episodes and judges; those of one episode come together.
    `unverified`: as in `judge`."""
    with connect_to_scan(warehouse, ("episodes", "steps", "screenshots")) as con:
        yield from judge(con, config, iteration=iteration, cache=warehouse.home.root / "cache", unverified=unverified)


def judge(
    con: duckdb.DuckDBPyConnection,
    config: QualityConfig,
    *,
    iteration: str | None = None,
    cache: Path,
    unverified: Sequence[str] = (),
    part_episodes: int = PART_EPISODES,
) -> Iterator[pa.Table]:
    """Judge the episodes of `iteration` (None: of every one) seen through a connection with the views `episodes`, `steps`, `annotations`,
    `task_instances` and `screenshots`; earlier iterations are compared with, not judged. Yields VERDICTS_SCHEMA, in the order of ids.

    A crashed episode has no V: only its filters are recorded. Leaks are looked for where V may be 1: in solved episodes, in those of the
    domains `unverified`, where others than the verifier judge, and where people had a hand in. What does not fit the connection's memory
    lies in its temporary folder. Pictures' hashes are kept in `cache`. The connection must not be sealed; temporary tables and macros stay
    on it. Raises ConfigError for a pattern that RE2 cannot read.
    """
    _check_patterns(con, config)
    con.execute(MACROS.read_text())
    asking = {"iteration": iteration, "solved": config.success_threshold, "unverified": list(unverified)}
    _make(con, "episodes_to_judge", _EPISODES_TO_JUDGE, config, **asking)
    con.execute(f"create or replace temp view steps_to_read as from steps {f'where iteration <= {quoted(iteration)}' if iteration else ''}")
    _make(con, "actions", _ACTIONS, config)
    _make(con, "actions_taken", _ACTIONS_TAKEN, config)
    _make(con, "keys", _KEYS, config)
    _make(con, "typical", _TYPICAL, config)
    _make(con, "ranks", _RANKS, config, limit=config.max_solved_per_task)
    _make(con, "typed_words", _TYPED, config)
    duplicates.find_candidates(con)
    _make(con, "screens_to_read", _SCREENS_TO_READ, config)
    _make(con, "screens", _SCREENS, config)
    screens = ScreenHashes(con, cache / "screen_hashes")
    con.register("nearest", duplicates.nearest(con, config, screens))
    _make(con, "leaks", _LEAKS, config)
    _make(con, "again", _AGAIN, config)
    _make(con, "retried", _RETRIED, config)
    _make(con, "faults", _FAULTS, config)
    _make(con, "judged_episodes", _EPISODES, config)
    asked = judges(config, _extra_judges(con, config, screens))
    yield from _rows(con, config, asked, part_episodes)


def _make(con: duckdb.DuckDBPyConnection, table: str, query: str, config: QualityConfig, **parameters: Any) -> None:
    execute_within_memory(con, f"create or replace temp table {table} as {_with_settings(query, config)}", parameters)


def _extra_judges(con: duckdb.DuckDBPyConnection, config: QualityConfig, screens: ScreenHashes) -> list[Judge]:
    """Filters that are not asked everywhere: their scores in the table `extras`, their reasons beside the faults."""
    extras = pa.concat_tables(
        [
            EXTRAS_SCHEMA.empty_table(),
            *near_duplicates.verdicts(con, config),
            *decontamination.verdicts(con, config, screens),
            *personal_data.verdicts(con, config),
        ]
    )
    con.register("extras", extras)
    con.execute("insert into faults select n, judge, generate_subscripts(reasons, 1), unnest(reasons) from extras")
    found = con.execute("select distinct judge, judge_version, threshold from extras").fetchall()
    return [Judge(name, version, threshold) for name, version, threshold in found]


def _rows(con: duckdb.DuckDBPyConnection, config: QualityConfig, asked: Sequence[Judge], part_episodes: int) -> Iterator[pa.Table]:
    scores, reasons = (_with_settings(query, config) for query in (_SCORES, _REASONS))
    for (name,) in con.execute("select distinct judge from extras").fetchall():
        scores = f"select s.*, x.score as {name} from ({scores}) s left join (from extras where judge = '{name}') x using (n)"
    (num,) = con.execute("select count(*) from judged_episodes").fetchall()[0]
    for first in range(0, num, part_episodes):
        last = first + part_episodes - 1
        con.execute(f"create or replace temp view part as from judged_episodes where n between {first} and {last}")
        of_part = Template(reasons).safe_substitute(first=first, last=last)
        yield verdict_rows(con.sql(f"from ({scores}) order by n").to_arrow_table(), con.sql(of_part).to_arrow_table(), asked)


_EPISODES_TO_JUDGE = f"""
with recorded as (
    select
        episode_id, iteration, stage, purpose, task_id, split, coalesce(instruction, '') as instruction, outcome, reward,
        $iteration is null or iteration = $iteration as is_new, coalesce(reward, 0) >= $solved as is_solved,
        is_solved or list_contains($unverified, domain)
            or episode_id in (select episode_id from annotations where origin = 'human' and not withdrawn) as may_pass
    from episodes
    where purpose in {ROUTED_PURPOSES} and ($iteration is null or iteration <= $iteration)
),
recorded_twice as (select episode_id from recorded group by episode_id having count(*) > 1),
first_recorded as (
    from recorded anti join recorded_twice using (episode_id)
    union all
    from recorded semi join recorded_twice using (episode_id)
    qualify row_number() over (partition by episode_id order by iteration, purpose, stage) = 1
)
select (row_number() over (order by not is_new, episode_id) - 1)::integer as n, hash(episode_id, iteration, stage) as place, *
from first_recorded
"""
_KEYS = """
select
    n, count(*) as num_steps, bit_xor(hash(hash(step_index, signature))) as actions_key, count(*) filter (is_written) as num_written,
    count(*) filter (is_unread) as num_unread, count(*) filter (is_active) as num_active, arg_max(is_active, step_index) as ends_active
from actions_taken group by n
"""
"""Hashed twice: DuckDB's hash of two values is linear in XOR, so that what is hashed once would not know the order of steps."""
_TYPICAL = """
select e.task_id, median(coalesce(k.num_steps, 0))::double as typical_steps
from episodes_to_judge e left join keys k using (n) where e.is_solved group by e.task_id
"""
_RANKS = """
select n, row_number() over (partition by iteration, task_id order by episode_id) as rank
from episodes_to_judge where is_solved and $limit is not null
"""
_TYPED = """
select n, step_index, generate_subscripts(words, 1) as place, unnest(words) as word, lower(word) as wanted
from actions_taken join actions on text = typed where typed is not null
"""
_SCREENS_TO_READ = """
select n, place, is_new, words, n in (select n from candidates) as is_candidate
from episodes_to_judge left join (select n, list(distinct wanted) as words from typed_words group by n) using (n)
where is_new or is_candidate
"""
_AGAIN = """
select n, step_index, state, screen
from screens semi join (select n, state from screens where is_new group by n, state having count(*) > 1) using (n, state)
where is_new
"""
_RETRIED = "select n, step_index, state, signature, screen, is_active from actions_taken join again using (n, step_index) where is_new"
_LEAKS = """
with first_images as (select n, min(step_index) as first_image from screens where has_image group by n),
read as (select n, unnest(read) as wanted, min(step_index) as first_read from screens where len(read) > 0 group by n, wanted),
answer_leaks as (
    select n, step_index, 0 as source, place, printf('step %d: hidden data ''%s''', step_index, left(text, 40)) as reason
    from (select n, step_index, generate_subscripts(hidden, 1) as place, unnest(hidden) as text
          from screens where is_new and len(hidden) > 0 and n not in (select n from episodes_to_judge where purpose = 'gateway'))
    union all
    select n, step_index, 1, place, printf('step %d: ''%s'' was nowhere to be read', step_index, word)
    from typed_words left join first_images using (n) left join read using (n, wanted)
    where coalesce(first_image > step_index, true) and coalesce(first_read > step_index, true)
),
first_answer_leaks as (select n, reason, min((step_index, source, place)) as place from answer_leaks group by n, reason)
select n, 'leak' as judge, row_number() over (partition by n order by place) as place, reason from first_answer_leaks
"""
"""Reasons of the leak filter. Hidden data is of our own pages: what agents elsewhere are shown is theirs, JSON of tools above all. A word
that its own prompt lacks may stand in an earlier one."""


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
            raise ConfigError(f"quality: {pattern!r} is not a regular expression that RE2 can read ({error}); fix or drop it") from error


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    return "null" if value is None else repr(value).lower()
