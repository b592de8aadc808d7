"""What samples give away of the instances that are evaluated on: chats and what people did that repeat such an instruction. No snapshot
holds them (mixing.py); here it is said which they are and what they repeat. What rollouts are held against is decontamination.py's.
"""

from __future__ import annotations

import duckdb

GIVEAWAY_WORDS = 5
"""An instruction of at least so many words gives an instance away; shorter ones occur anywhere."""

ELSEWHERE = "(purpose = 'gateway' and domain = 'gateway')"
"""Of an episode: an agent's that called the gateway, on nobody knows which instance. A harness's are of a task of the pool."""
EVALUATED_ON = rf"""
evaluated_on as (
    select distinct lower(trim(regexp_replace(instruction, '\s+', ' ', 'g'))) as words from (
        select e.instruction from episodes e left join tasks t on t.task_id = e.task_id
        where e.split <> 'train' or e.purpose = 'evaluation' or t.held_out
        union all
        select instruction from task_instances where split <> 'train'
    ) where len(string_split(words, ' ')) >= {GIVEAWAY_WORDS}
)"""
GIVEAWAYS = rf"""{EVALUATED_ON},
spoken as (  -- what nobody did on an instance whose split is known: chats, what people did elsewhere, what agents did through the gateway
    select sample_id, lower(regexp_replace(array_to_string(list_transform(messages, lambda m: m.content), ' '), '\s+', ' ', 'g')) as words
    from (select sample_id, episode_id, origin, messages from ct_samples
          union all select sample_id, episode_id, origin, messages from sft_samples)
    where episode_id is null and origin <> 'tutorial'
    union all
    select s.sample_id, lower(regexp_replace(e.instruction, '\s+', ' ', 'g'))
    from (select sample_id, episode_id from ct_samples union all select sample_id, episode_id from sft_samples
          union all select sample_id, unnest(prompt_episode_ids) from sft_samples) s
    join (select distinct episode_id, instruction from episodes where policy_id = 'human' or {ELSEWHERE}) e using (episode_id)
),
leaks as (
    select s.sample_id, min(e.words) as words from spoken s join evaluated_on e on contains(s.words, e.words) group by s.sample_id
)
"""
"""The table `leaks` (sample_id, words): samples, and an instruction that each of them repeats."""


def repeated_by(con: duckdb.DuckDBPyConnection, episode_id: str) -> str | None:
    """The evaluated instruction that an episode of a person or of the gateway repeats, for which no snapshot takes its samples; None where
    it repeats none."""
    rows = con.execute(
        rf"""with {EVALUATED_ON}
        select min(v.words) from episodes e
        join evaluated_on v on contains(lower(regexp_replace(e.instruction, '\s+', ' ', 'g')), v.words)
        where (e.policy_id = 'human' or {ELSEWHERE}) and e.episode_id = $1""",
        [episode_id],
    ).fetchall()
    return rows[0][0] if rows else None
