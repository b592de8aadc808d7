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
-- Hardly any episode is recorded twice or judged twice by one judge. To find the first or the newest takes sorting, so only those are sorted.
with routed as (
    select episode_id, outcome, reward, split, error, iteration, stage
    from episodes
    where purpose in (select purpose from routed_purposes)
),
recorded_twice as (select episode_id from routed group by episode_id having count(*) > 1),
candidates as (
    select * from routed anti join recorded_twice using (episode_id) where $iteration is null or iteration = $iteration
    union all
    select * from routed semi join recorded_twice using (episode_id)
    qualify row_number() over (partition by episode_id order by iteration, stage) = 1 and ($iteration is null or iteration = $iteration)
),
judges as (
    select
        v.judge, v.kind, r.threshold as own_threshold, row_number() over (order by coalesce(r.precedence, 100), v.judge, v.kind) as place,
        coalesce(r.effect, case v.kind when 'verdict' then 'decide' else 'demote' end) as effect,
        -- a bit for each judge; those that have none count as if they always spoke twice
        case when count(*) over (partition by v.judge) = 1 and dense_rank() over (order by v.judge) <= 100
            then 1::hugeint << (dense_rank() over (order by v.judge))::integer else 0 end as bit
    from (select distinct judge, kind from verdicts) v left join rules r on r.judge = v.judge
),
tally as (
    select episode_id, count(*) filter (effect <> 'decide') as num_filters, count(*) > bit_count(bit_or(bit)) as is_judged_twice
    from verdicts join judges using (judge, kind) group by episode_id
),
newest as (
    select * from verdicts semi join (from tally where is_judged_twice) using (episode_id)
    qualify row_number() over (partition by episode_id, judge order by iteration desc, judge_version desc, stage desc, score, threshold) = 1
),
counted as (
    select episode_id, num_filters from tally where not is_judged_twice
    union all
    select episode_id, count(*) filter (effect <> 'decide') from newest join judges using (judge, kind) group by episode_id
),
-- What can matter: the word of a judge that decides, and of a filter that was failed.
spoken as (
    select v.*, own_threshold, effect, place from verdicts v join judges using (judge, kind)
    where effect = 'decide' or score < coalesce(own_threshold, threshold)
),
judged as (
    select
        episode_id, place, effect, judge, score >= coalesce(own_threshold, threshold) as is_passed,  -- not `passed`, which is by the stored threshold
        origin in ('judge', 'orm') and coalesce(own_threshold, threshold) >= 1 as abstains,
        {judge: judge, score: score, threshold: coalesce(own_threshold, threshold), why: coalesce(': ' || reasons[1], '')} as told
    from (
        select * from spoken anti join (from tally where is_judged_twice) using (episode_id)
        union all
        select n.*, own_threshold, effect, place from newest n join judges using (judge, kind)
    )
    where case when effect = 'decide' then abstains or is_passed is not null else not is_passed end
),
summary as (
    select
        episode_id,
        arg_min(is_passed, place) filter (effect = 'decide' and not abstains) as solved,
        arg_min(told, place) filter (effect = 'decide' and not abstains) as decided,
        string_agg(judge, ', ' order by judge) filter (effect = 'decide' and abstains) as abstaining,
        arg_min(told, place) filter (effect = 'withhold') as withheld,
        arg_min(told, place) filter (effect = 'demote') as demoted
    from judged
    group by episode_id
),
shown as (
    select
        episode_id, solved, abstaining, shown[1] as decided_by, shown[2] || withheld.why as withheld_by,
        shown[3] || demoted.why as demoted_by
    from (
        select *, list_transform([decided, withheld, demoted], lambda t: printf(
            '%s %.3g %s %.3g', t.judge, t.score, case when t.score >= t.threshold then '>=' else '<' end, t.threshold)) as shown
        from summary
    )
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
        else 'V=1: ' || s.decided_by || ', ' || n.num_filters || ' filters passed'
    end as reason
from candidates c left join shown s using (episode_id) left join counted n using (episode_id)
order by c.episode_id
