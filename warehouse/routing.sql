-- Where each finished episode goes: a pure function of `episodes`, `verdicts` and `rules`. One row an episode, exactly one route.
--
--   $iteration     the iteration to route; null routes every one
--   rules          (judge, effect, threshold, precedence): what failing a judge means; a null threshold keeps the stored one
--     decide       the judge gives V(s); where several do, the lowest precedence speaks. A judge that may err and that nothing passes (a
--                  threshold of 1, which its scores never reach) may not be trusted: it abstains, and the next one speaks
--     withhold     failing it keeps the episode out of all training
--     demote       failing it sends a solved episode to CT instead of SFT
--
-- An episode recorded by two iterations belongs to the first; of two verdicts by one judge the newest counts.
with candidates as (
    select episode_id, outcome, reward, split, error
    from episodes
    where purpose in (select purpose from routed_purposes)
    qualify row_number() over (partition by episode_id order by iteration, stage) = 1
        and ($iteration is null or iteration = $iteration)
),
newest as (
    select *
    from verdicts
    qualify row_number() over (partition by episode_id, judge order by iteration desc, judge_version desc, stage desc, score, threshold) = 1
),
judged as (
    select
        v.episode_id, v.judge, v.score,
        coalesce(r.threshold, v.threshold) as threshold,
        v.score >= coalesce(r.threshold, v.threshold) as passed,
        coalesce(r.effect, case v.kind when 'verdict' then 'decide' else 'demote' end) as effect,
        coalesce(r.precedence, 100) as precedence,
        printf('%s %.3g %s %.3g', v.judge, v.score, case when v.score >= coalesce(r.threshold, v.threshold) then '>=' else '<' end,
            coalesce(r.threshold, v.threshold)) as shown,
        coalesce(': ' || v.reasons[1], '') as why,
        v.origin in ('judge', 'orm') and coalesce(r.threshold, v.threshold) >= 1 as abstains
    from newest v left join rules r on r.judge = v.judge
),
summary as (
    select
        episode_id,
        arg_min(passed, (precedence, judge)) filter (effect = 'decide' and not abstains) as solved,
        arg_min(shown, (precedence, judge)) filter (effect = 'decide' and not abstains) as decided_by,
        string_agg(judge, ', ' order by judge) filter (effect = 'decide' and abstains) as abstaining,
        arg_min(shown || why, (precedence, judge)) filter (effect = 'withhold' and not passed) as withheld_by,
        arg_min(shown || why, (precedence, judge)) filter (effect = 'demote' and not passed) as demoted_by,
        count(*) filter (effect <> 'decide') as num_filters
    from judged
    group by episode_id
)
select
    c.episode_id,
    case
        when c.outcome = 'crashed' or c.reward is null or c.split <> 'train' or s.withheld_by is not null or s.solved is null then 'withheld'
        when s.solved and s.demoted_by is null then 'sft'
        else 'ct'
    end as route,
    case
        when c.outcome = 'crashed' or c.reward is null then 'crashed: ' || coalesce(c.error, 'no reward')
        when c.split <> 'train' then 'contamination: the instance belongs to the ' || c.split || ' split'
        when s.withheld_by is not null then s.withheld_by
        when s.solved is null then 'unjudged: no judge gave V' || coalesce('; not to be trusted with it: ' || s.abstaining, '')
        when not s.solved then 'V=0: ' || s.decided_by
        when s.demoted_by is not null then 'V=1 (' || s.decided_by || '), demoted by ' || s.demoted_by
        else 'V=1: ' || s.decided_by || ', ' || s.num_filters || ' filters passed'
    end as reason
from candidates c left join summary s using (episode_id)
order by c.episode_id
