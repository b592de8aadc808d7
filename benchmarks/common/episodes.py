"""Synthetic episodes with the column shapes of real ones, at any size, made by DuckDB: what filters and routing are measured on.

Ten steps an episode on average, screens of about twenty element lines from pages of 200 tasks, prompts that hold instruction, history and
screen, thoughts and actions in the compact grammar. Planted, by content hash: exact and near duplicates, no-ops, loops, invalid actions,
contradictions, hidden data, words from nowhere, loading screens, foreign splits and crashes.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

NUM_TASKS, PAGES_PER_TASK, LINES = 200, 40, 20
STEPS_PER_EPISODE = 10
FILE_EPISODES = 50_000
_WORDS = (
    "account add agenda apply archive basket billing book browse calendar cancel cart change checkout city close comment compose confirm "
    "contact copy country create date delete details draft edit export filter flight folder forward hotel import inbox invoice label "
    "language list login logout mail manage message month new next note notify open order page password payment phone play post price "
    "print profile rename reply report reset return review save schedule search select send settings share shop sign sort start status "
    "street submit subscribe summary task team title total track travel unread update upload user view wallet week window year zone"
)
_PAGES = f"""
create table pages as
with words as (select string_split('{_WORDS}', ' ') as words)
select t * {PAGES_PER_TASK} + p as page, string_agg(
    '"' || words[1 + draw(hash(t, p, i, 'a'), len(words))] || ' ' || words[1 + draw(hash(t, p, i, 'b'), len(words))] || '" <'
    || ['button', 'link', 'text', 'textbox', 'item'][1 + draw(hash(t, p, i, 'c'), 5)] || '> ['
    || (i + 2) || ']', chr(10) order by i) as lines
from words, range({NUM_TASKS}) tasks(t), range({PAGES_PER_TASK}) pages(p), range({LINES}) lines(i) group by t, p
"""
_EPISODES = f"""
create or replace temp table made as
select
    i, printf('episode-%016x', hash(i, 'id')) as episode_id,
    -- an exact or a near duplicate has the content of an episode before it
    case when i > 100 and draw(hash(i, 'twin'), 100) < 10 then (draw(hash(i, 'of'), i))::bigint else i end as origin,
    draw(hash(i, 'twin'), 100) between 8 and 9 as is_near,
    'task-' || (draw(hash(origin, 'task'), {NUM_TASKS})) as task_id,
    draw(hash(origin, 'task'), {NUM_TASKS}) as task,
    (4 + draw(hash(origin, 'n1'), 7) + draw(hash(origin, 'n2'), 7))::integer as num_steps,
    'Open item ' || draw(hash(origin, 'seed'), 1000000) || ' of the list and confirm what the page of task ' || task || ' asks for.'
        as instruction,
    draw(hash(i, 'split'), 100) < 2 as is_foreign, draw(hash(i, 'crash'), 100) < 1 as is_crashed,
    draw(hash(origin, 'won'), 100) < 55 as is_solved,
    draw(hash(origin, 'idle'), 100) < 4 as is_idle, draw(hash(origin, 'loop'), 100) < 4 as is_loop,
    draw(hash(origin, 'leak'), 1000) < 5 as is_leak,
    draw(hash(origin, 'word'), 1000) < 10 as types_word
from range($first, $last) t(i)
"""
_EPISODE_ROWS = """
select
    '0001' as iteration, 'rollouts' as stage, episode_id, 'rollout' as purpose, task_id, 'task ' || task as task_name,
    'domain-' || (task % 5) as domain, draw(hash(origin, 'seed'), 1000000) as seed,
    case when is_foreign then 'eval' else 'train' end as split,
    0::bigint as attempt, 'policy-1' as policy_id, 1.0::double as temperature,
    instruction,
    case when is_crashed then 'crashed' when is_solved then 'success' else 'failure' end as outcome,
    case when is_crashed then null when is_solved then 1.0 else 0.0 end::double as reward,
    num_steps::bigint as num_steps, 0::bigint as num_retries,
    case when is_crashed then 'browser gone' end as error, 1000.0::double as duration_ms, 'env-1' as environment
from made order by i
"""
_STEP_ROWS = f"""
with steps as (
    select
        m.*, s as step_index, hash(origin, s, 'h') as h,
        case when is_idle then 0 when is_loop then s % 2 else s end as shown
    from made m, unnest(range(m.num_steps)) u(s)
),
seen as (
    select
        steps.*, pages.lines as lines,
        2 + (case when is_idle or is_loop then draw(hash(origin, shown, 'k'), {LINES}) else draw(h, {LINES}) end) as target,
        '"visit ' || (case when is_idle or is_loop then shown when is_near and step_index = 0 then i else origin % 977 end)
        || '" <text> [1]' as header
    from steps join pages on pages.page = task * {PAGES_PER_TASK} + draw(hash(origin, shown, 'page'), {PAGES_PER_TASK})
),
numbered as (
    select
        *, case when draw(h, 1000) < 8 then '"Loading..." <text> [1]' else header end || chr(10) || lines as observation,
        string_split(string_split(lines, chr(10))[target - 1], ' [')[1] as name
    from seen
)
select
    '0001' as iteration, 'rollouts' as stage, episode_id, step_index::bigint as step_index, 'policy-1' as policy_id, observation,
    null::varchar as screenshot_id,
    [{{role: 'user', content: instruction || chr(10) || 'History: step ' || step_index || ' of at most 30.' || chr(10)
        || case when is_leak and step_index = 0 then 'WOB_TASK_READY' || chr(10) else '' end || observation,
       screenshot_id: null::varchar, loss: 0.0::float}}] as messages,
    case when types_word and step_index = 1 then 'Thought type Action type "keyword"'
        else 'Thought click ' || name || ' [' || target || '] Action click [' || target || ']' end as response,
    case when (types_word and step_index = 1) or draw(h, 500) = 1 then 'type ' else 'click ' end || name as thought,
    case when draw(h, 400) = 2 then '{{"kind":"invalid","text":"clik","reason":"unknown verb"}}'
        when types_word and step_index = 1
            then '{{"kind":"type","text":"' || case when draw(hash(origin, 'w'), 2) = 0 then 'quetzalcoatl' else 'confirm' end || '"}}'
        when draw(h, 400) = 3 then '{{"kind":"wait","seconds":1.0}}'
        else '{{"kind":"click","x":' || (40 + 7 * (target % 9)) || ',"y":' || (20 * target) || ',"button":"left","count":1}}' end as action,
    [1]::bigint[] as prompt_token_ids, [1]::bigint[] as response_token_ids, [0.0]::float[] as response_logprobs,
    null::bigint[] as response_versions, 0.0::double as reward, 1.0::double as latency_ms
from numbered order by i, step_index
"""


def make_episodes(folder: Path, num_episodes: int) -> None:
    """Parquet files of `episodes` and `steps` below `folder`, as a warehouse compresses them."""
    folder.mkdir(parents=True)
    (folder / "episodes").mkdir()
    (folder / "steps").mkdir()
    with duckdb.connect() as con:
        con.execute("set memory_limit = '2GB'")
        con.execute("set temp_directory = ?", [str(folder / "tmp")])
        con.execute("create macro draw(hashed, num) as (hashed % num)::bigint")
        con.execute(_PAGES)
        for first in range(0, num_episodes, FILE_EPISODES):
            last = min(first + FILE_EPISODES, num_episodes)
            con.execute(_EPISODES, {"first": first, "last": last})
            for table, query in (("episodes", _EPISODE_ROWS), ("steps", _STEP_ROWS)):
                target = folder / table / f"part-{first // FILE_EPISODES:04}.parquet"
                con.execute(f"copy ({query}) to '{target}' (format parquet, compression zstd, row_group_size 65536)")
