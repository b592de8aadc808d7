"""Rows of the table `verdicts`: the environment verifier's V(s) and every quality filter, for each episode that is to be routed.

One source of truth, in SQL: quality_steps.sql reads the texts once and keeps a short row a step, quality_episodes.sql makes verdicts of
those, part by part, so that memory is bounded whatever the size. Computed from stored rows alone, so history can be judged again with other
thresholds or newer versions: change what a filter computes, and its version must go up. Where an episode then goes is routing.sql's.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any

import duckdb
import pyarrow as pa

from warehouse import decontamination, duplicates, near_duplicates, personal_data
from warehouse.catalogue import ROUTED_PURPOSES
from warehouse.contradictions import MACROS
from warehouse.errors import ConfigError
from warehouse.filter_rows import EXTRAS_SCHEMA
from warehouse.quality_config import QualityConfig
from warehouse.scan import connect_to_scan
from warehouse.screen_hashes import ScreenHashes
from warehouse.tables import Warehouse

PART_EPISODES = 50_000
"""Episodes whose verdicts are made at a time."""
VERDICTS_SCHEMA = pa.schema([
    ("episode_id", pa.string()), ("judge", pa.string()), ("judge_version", pa.string()), ("kind", pa.string()), ("origin", pa.string()),
    ("score", pa.float64()), ("threshold", pa.float64()), ("passed", pa.bool_()), ("reasons", pa.list_(pa.string())),
])  # fmt: skip
_HERE = Path(__file__).parent
_STEPS, _EPISODES = (_HERE / f"quality_{name}.sql" for name in ("steps", "episodes"))


def iteration_verdicts(warehouse: Warehouse, iteration: str, config: QualityConfig) -> pa.Table:
    """Rows for one iteration, compared with all earlier ones, in the order of episodes and judges."""
    with connect_to_scan(warehouse, ("episodes", "steps", "screenshots")) as con:
        parts = list(judge(con, config, iteration=iteration, spool=warehouse.home.spool))
    return pa.concat_tables(parts) if parts else VERDICTS_SCHEMA.empty_table()


def judge(
    con: duckdb.DuckDBPyConnection, config: QualityConfig, *, iteration: str | None = None, spool: Path, part_episodes: int = PART_EPISODES
) -> Iterator[pa.Table]:
    """Judge the episodes of `iteration` (None: of every one) seen through a connection with the views `episodes`, `steps`, `annotations`,
    `task_instances` and `screenshots`; earlier iterations are compared with, not judged. Yields VERDICTS_SCHEMA, in the order of ids.

    A crashed episode has no V: only its filters are recorded. What does not fit memory lies in a folder of `spool` until the end. The
    connection must not be sealed; temporary tables and macros stay on it. Raises ConfigError for a pattern that RE2 cannot read.
    """
    _check_patterns(con, config)
    con.execute(MACROS.read_text())
    con.execute(_EPISODES_TO_JUDGE, {"iteration": iteration, "solved": config.success_threshold})
    num_new, num = con.execute("select count(*) filter (is_new), count(*) from episodes_to_judge").fetchall()[0]
    with _facts(con, config, num_new, spool, part_episodes) as parts:
        _keys(con, has_earlier=num > num_new)
        _leaks(con)
        screens = ScreenHashes(con, spool.parent / "cache" / "screen_hashes")
        con.register("nearest", duplicates.nearest(con, config, screens))
        con.execute(_TYPICAL)
        con.execute(_RANKS, {"limit": config.max_solved_per_task})
        extras = [
            *near_duplicates.verdicts(con, config), *decontamination.verdicts(con, config, screens), *personal_data.verdicts(con, config)
        ]
        con.register("extras", pa.concat_tables(extras) if extras else EXTRAS_SCHEMA.empty_table())
        query = _with_settings(_EPISODES.read_text(), config)
        for first, facts in parts:
            con.execute(f"create or replace temp view facts as {facts}")
            among = f"is_new and n >= {first} and n < {first + part_episodes}"
            con.execute(f"create or replace temp view part as from episodes_to_judge where {among}")
            table = con.sql(_ORDERED.format(query=query)).to_arrow_table()
            yield table.cast(VERDICTS_SCHEMA)


_ORDERED = """
with made as (from ({query}) union all by name
    select x.n, p.episode_id, x.judge, x.judge_version, 'filter' as kind, 'filter' as origin, x.score, x.threshold,
        x.score >= x.threshold as passed, x.reasons
    from extras x join part p using (n))
select * exclude (n) from made order by n, kind desc, judge
"""
_EPISODES_TO_JUDGE = f"""
create or replace temp table episodes_to_judge as
select (row_number() over (order by not is_new, episode_id) - 1)::integer as n, *
from (
    select
        episode_id, iteration, stage, purpose, task_id, split, coalesce(instruction, '') as instruction, outcome, reward,
        $iteration is null or iteration = $iteration as is_new, coalesce(reward, 0) >= $solved as is_solved
    from episodes
    where purpose in {ROUTED_PURPOSES} and ($iteration is null or iteration <= $iteration)
    qualify row_number() over (partition by episode_id order by iteration, purpose, stage) = 1
)
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
_PROMPT = "array_to_string(list_transform(s.messages, lambda m: coalesce(m.content, '')), chr(10))"


@contextmanager
def _facts(
    con: duckdb.DuckDBPyConnection, config: QualityConfig, num_new: int, spool: Path, part_episodes: int
) -> Iterator[list[tuple[int, str]]]:
    """The view `all_facts`, and for each part its first episode and where its facts are."""
    source = _with_settings(_STEPS.read_text(), config)
    con.execute(f"create or replace temp view step_facts as {source}")
    firsts = range(0, num_new, part_episodes)
    if len(firsts) <= 1:
        con.execute("create or replace temp table few_facts as select * exclude (is_new) from step_facts where is_new")
        con.execute("create or replace temp view all_facts as from few_facts")
        yield [(first, "from few_facts") for first in firsts]
        return
    folder = Path(tempfile.mkdtemp(prefix="quality-", dir=spool))
    try:
        con.execute(
            f"copy (select * exclude (is_new), n // {part_episodes} as part from step_facts where is_new) "
            f"to '{_quoted(folder)}' (format parquet, partition_by (part), compression lz4, overwrite_or_ignore)"
        )
        con.execute(f"create or replace temp view all_facts as {_files(folder / '*')}")
        scans = [folder / f"part={first // part_episodes}" for first in firsts]
        yield [
            (first, _files(scan) if scan.is_dir() else "from all_facts where false") for first, scan in zip(firsts, scans, strict=True)
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _keys(con: duckdb.DuckDBPyConnection, *, has_earlier: bool) -> None:
    """The table `keys`: of each episode with steps their number, and hashes of all its actions and of all its screens."""
    columns = "n, step_index, signature, state"
    earlier = f" union all select {columns} from step_facts where not is_new" if has_earlier else ""
    con.execute(
        "create or replace temp table keys as select n, count(*) as num_steps, bit_xor(hash(step_index, signature)) as actions_key, "
        f"bit_xor(hash(step_index, state)) as screens_key from (select {columns} from all_facts{earlier}) group by n"
    )


def _leaks(con: duckdb.DuckDBPyConnection) -> None:
    """The table `leaks`: reasons of the leak filter by episode. A word that its own prompt lacks may stand in an earlier one."""
    con.execute("""
        create or replace temp table unread_words as
        with first_images as (select n, min(step_index) as first_image from all_facts where has_image group by n)
        select f.n, f.step_index, generate_subscripts(f.unread, 1) as place, unnest(f.unread) as word
        from all_facts f left join first_images i using (n)
        where len(f.unread) > 0 and (i.first_image is null or i.first_image > f.step_index)""")
    con.execute("create or replace temp table read_before (n integer, step_index bigint, word varchar)")
    if con.execute("select count(*) from unread_words where step_index > 0").fetchall() != [(0,)]:
        con.execute(f"""
            insert into read_before
            select distinct w.n, w.step_index, w.word
            from unread_words w join episodes_to_judge e using (n)
            join steps s on s.episode_id = e.episode_id and s.iteration = e.iteration and s.stage = e.stage and s.step_index < w.step_index
            where contains(lower({_PROMPT}), lower(w.word))""")
    con.execute("""
        create or replace temp table leaks as
        with told as (
            select n, step_index, 0 as source, place, printf('step %d: hidden data ''%s''', step_index, left(text, 40)) as reason
            from (select n, step_index, generate_subscripts(hidden, 1) as place, unnest(hidden) as text
                  from all_facts where len(hidden) > 0)
            union all
            select n, step_index, 1, place, printf('step %d: ''%s'' was nowhere to be read', step_index, word)
            from unread_words anti join read_before using (n, step_index, word)
        ),
        first_told as (select n, reason, min((step_index, source, place)) as place from told group by n, reason)
        select n, list(reason order by place) as reasons from first_told group by n""")


def _check_patterns(con: duckdb.DuckDBPyConnection, config: QualityConfig) -> None:
    for pattern in (*config.leak_patterns, *config.busy_patterns):
        try:
            con.execute("select regexp_matches('', ?)", [pattern]).fetchall()
        except duckdb.Error as error:
            raise ConfigError(f"quality: {pattern!r} is no regular expression that RE2 can read ({error}); mend or drop it") from error


def _with_settings(sql: str, config: QualityConfig) -> str:
    """The query with the settings put in as literals: a pattern that is a constant is compiled once, not once a row."""
    patterns = [f"(?m){pattern}" for pattern in config.leak_patterns]
    found = ", ".join(f"regexp_extract(prompt, {_literal(pattern)})" for pattern in patterns)
    values = {name: _literal(value) for name, value in config if not isinstance(value, tuple)} | {
        "any_leak": matches_any("prompt", patterns),
        "leaks": f"list_value({found})" if found else "cast([] as varchar[])",
        "busy": matches_any("observation", config.busy_patterns),
    }
    return Template(sql).safe_substitute(values)


def matches_any(column: str, patterns: Sequence[str]) -> str:
    """SQL for whether any of the regular expressions matches. Where a pattern has a literal in every match, that is looked for first: it
    is some twenty times faster than the expression."""
    tests = []
    for pattern in patterns:
        needed = required_literal(pattern)
        first = f"contains({column}, {_literal(needed)}) and " if needed else ""
        tests.append(f"({first}regexp_matches({column}, {_literal(pattern)}))")
    return f"({' or '.join(tests)})" if tests else "false"


def required_literal(pattern: str) -> str:
    """Characters that stand in every match of a pattern, of at most 4 (which DuckDB compares at once); empty where none are certain."""
    if re.search(r"\(\?(?!:)(?!m\))|\\[xQ0-7]", pattern) or "|" in re.sub(r"\((?:[^()\\]|\\.)*\)", "", pattern):
        return ""
    # Sets, groups and classes end a run of literals; what may be left out or repeated is none.
    bare = re.sub(r"\[\^?\]?(?:[^\]\\]|\\.)*\]|\((?:[^()\\]|\\.)*\)|\\[A-Za-z]|[.^$]", "\0", pattern.removeprefix("(?m)"))
    if re.search(r"[()|]", re.sub(r"\\.", "", bare)):
        return ""
    bare = re.sub(r"(?:\\.|[^\0])(?=[*?{])", "\0", bare)
    runs = re.split(r"[\0*?+]|\{[^}]*\}", re.sub(r"\\(\W)", lambda found: "\0" if found[1] in "*?+{}" else found[1], bare))
    return max(runs, key=len)[:4]


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "null" if value is None else repr(value).lower()


def _files(folder: Path) -> str:
    return f"from read_parquet('{_quoted(folder)}/*.parquet', hive_partitioning = false)"


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
