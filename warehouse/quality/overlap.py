"""What samples give away of the instances that are evaluated on: chats and episodes done elsewhere that repeat such an instruction. No
snapshot holds them (mixing.py); here it is said which they are and what they repeat. Against what rollouts are held is decontamination.py's
business.
"""

from __future__ import annotations

import duckdb

from warehouse.core.stages import IMPORTED_STAGE

LEAK_WORDS = 5
"""An instruction of at least so many words gives an instance away; shorter ones occur anywhere."""

ELSEWHERE = f"(policy_id = 'human' or (purpose = 'gateway' and domain = 'gateway') or starts_with(stage, '{IMPORTED_STAGE}'))"
"""Of an episode: done on nobody knows which instance, by a person, by an agent that called the gateway, or in an imported file. A harness's
are of one of the profile's tasks."""
DRIVEN = "contains(environment, '; DevTools; harness ')"
"""Of an episode: a harness drove the page by its DevTools address, so scripts of its own may have started another instance there."""
EVALUATED_ON = rf"""
evaluated_on as (
    select distinct lower(trim(regexp_replace(instruction, '\s+', ' ', 'g'))) as words from (
        select e.instruction from episodes e left join tasks t on t.task_id = e.task_id
        where e.split <> 'train' or e.purpose = 'evaluation' or t.held_out
        union all
        select instruction from task_instances where split <> 'train'
    ) where len(string_split(words, ' ')) >= {LEAK_WORDS}
)"""
SAID = r"lower(regexp_replace(array_to_string(list_transform(messages, lambda m: m.content), ' '), '\s+', ' ', 'g'))"
LEAKS = rf"""{EVALUATED_ON},
spoken as (  -- what was said, and what of it is known to be of a train instance. Chats, and episodes done elsewhere:
    select sample_id, {SAID} as words, '' as own
    from (select sample_id, episode_id, origin, messages from ct_samples
          union all select sample_id, episode_id, origin, messages from sft_samples)
    where episode_id is null and origin <> 'tutorial'
    union all
    select s.sample_id, lower(regexp_replace(e.instruction, '\s+', ' ', 'g')), ''
    from (select sample_id, episode_id from ct_samples union all select sample_id, episode_id from sft_samples
          union all select sample_id, unnest(prompt_episode_ids) from sft_samples) s
    join (select distinct episode_id, instruction from episodes where {ELSEWHERE}) e using (episode_id)
    union all  -- the instance's own instruction may be an evaluated one's, too
    select s.sample_id, {SAID}, lower(regexp_replace(e.instruction, '\s+', ' ', 'g'))
    from (select sample_id, episode_id, messages from ct_samples union all select sample_id, episode_id, messages from sft_samples) s
    join (select distinct episode_id, instruction from episodes where {DRIVEN}) e using (episode_id)
),
leaks as (
    select s.sample_id, min(e.words) as words
    from spoken s join evaluated_on e on contains(s.words, e.words) and not contains(s.own, e.words)
    group by s.sample_id
)
"""
"""The table `leaks` (sample_id, words): samples, and an instruction that each of them repeats."""


def repeated_by(con: duckdb.DuckDBPyConnection, episode_id: str) -> str | None:
    """The evaluated instruction that an episode done elsewhere repeats, for which no snapshot takes its samples; None where it repeats
    none."""
    found = con.execute(f"select instruction from episodes where {ELSEWHERE} and episode_id = $1", [episode_id]).fetchall()
    if not found:
        return None
    rows = con.execute(
        rf"""with {EVALUATED_ON}
        select min(words) from evaluated_on where contains(lower(regexp_replace($1, '\s+', ' ', 'g')), words)""",
        [found[0][0]],
    ).fetchall()
    return rows[0][0]  # type: ignore[no-any-return]


def repeated_by_samples(con: duckdb.DuckDBPyConnection, episode_id: str) -> dict[str, str]:
    """Of an episode whose page a harness drove: its samples that repeat another evaluated instruction than its own, and which."""
    found = con.execute(f"select instruction from episodes where {DRIVEN} and episode_id = $1", [episode_id]).fetchall()
    if not found:
        return {}
    rows = con.execute(
        rf"""with {EVALUATED_ON},
        said as (
            select sample_id, {SAID} as words
            from (select sample_id, episode_id, messages from ct_samples union all select sample_id, episode_id, messages from sft_samples)
            where episode_id = $1
        )
        select s.sample_id, min(e.words) from said s join evaluated_on e
        on contains(s.words, e.words) and not contains(lower(regexp_replace($2, '\s+', ' ', 'g')), e.words) group by s.sample_id""",
        [episode_id, found[0][0]],
    ).fetchall()
    return dict(rows)
