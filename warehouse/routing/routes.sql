-- Where each finished episode goes: a pure function of `episodes`, `heard` and `rules`. One row an episode, exactly one route.
--
--   $iteration     the iteration to route; null routes every one
--   heard          verdicts; of an episode that one judge judged twice `is_judged_twice` is given instead of a route to rely on
--   rules          (judge, effect, threshold, precedence): what failing a judge means; a null threshold keeps the stored one
--     decide       the judge gives V(s); where several do, the lowest precedence speaks. A judge that may err and that nothing passes (a
--                  threshold of 1, which its scores never reach) may not be trusted: it abstains, and the next one speaks
--     withhold     failing it keeps the episode out of all training
--     demote       failing it sends a solved episode to CT instead of SFT
--
-- An episode that was erased (warehouse/datasets/erasing_episodes.py) is withheld, whatever was said of it.
-- An episode recorded by two iterations belongs to the first; of two verdicts by one judge the newest counts. Hardly any episode is recorded
-- or judged twice, and to find the first or the newest takes sorting: so only those are sorted, here and by warehouse/routing/routes.py.
-- What each judge says is read once and never put into structs or texts before it is known to matter: there are a dozen rows an episode.
with routed as (
    select episode_id, outcome, reward, split, error, iteration, stage, task_name
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
        case when count(*) over (partition by v.judge) = 1 and dense_rank() over (order by v.judge) <= 62
            then 1::bigint << (dense_rank() over (order by v.judge))::integer else 0 end as bit
    from (select distinct judge, kind from heard) v left join rules r on r.judge = v.judge
),
judged as (
    select
        episode_id, judge, place, bit, effect, score, coalesce(own_threshold, threshold) as least, reasons,
        score >= least as is_passed,  -- not `passed`, which is by the stored threshold
        effect = 'decide' and origin in ('judge', 'orm') and least >= 1 as abstains,
        effect = 'decide' and not abstains and is_passed is not null as decides,
        effect = 'withhold' and not is_passed as withholds,
        effect = 'demote' and not is_passed as demotes
    from heard join judges using (judge, kind)
),
summary as (
    select
        episode_id, count(*) > bit_count(bit_or(bit)) as is_judged_twice, count(*) filter (effect <> 'decide') as num_filters,
        arg_min(is_passed, place) filter (decides) as solved, list(judge) filter (abstains) as abstaining,
        arg_min(judge, place) filter (decides) as decided_by,
        arg_min(score, place) filter (decides) as decided_score, arg_min(least, place) filter (decides) as decided_least,
        arg_min(judge, place) filter (withholds) as withheld_by, arg_min(reasons, place) filter (withholds) as withheld_why,
        arg_min(score, place) filter (withholds) as withheld_score, arg_min(least, place) filter (withholds) as withheld_least,
        arg_min(judge, place) filter (demotes) as demoted_by, arg_min(reasons, place) filter (demotes) as demoted_why,
        arg_min(score, place) filter (demotes) as demoted_score, arg_min(least, place) filter (demotes) as demoted_least
    from judged group by episode_id
),
worded as (
    select
        *, printf('%s %.3g %s %.3g', decided_by, decided_score, case when solved then '>=' else '<' end, decided_least) as decided,
        case when withheld_by is not null then printf('%s %.3g < %.3g', withheld_by, withheld_score, withheld_least)
            || coalesce(': ' || withheld_why[1], '') end as withheld,
        case when demoted_by is not null then printf('%s %.3g < %.3g', demoted_by, demoted_score, demoted_least)
            || coalesce(': ' || demoted_why[1], '') end as demoted
    from summary
),
caused as (
    select
        c.episode_id, c.split, c.error, t.* exclude (episode_id),
        case
            when c.task_name = 'erased' then 'erased'
            when c.outcome = 'crashed' or c.reward is null then 'crashed'
            when c.split <> 'train' then 'contamination'
            when t.withheld_by is not null then 'withheld'
            when t.solved is null then 'unjudged'
            when not t.solved then 'not_solved'
            when t.demoted_by is not null then 'demoted'
            else 'solved'
        end as cause
    from candidates c left join worded t using (episode_id)
)
select
    episode_id, coalesce(is_judged_twice, false) as is_judged_twice,
    case cause when 'solved' then 'sft' when 'demoted' then 'ct' when 'not_solved' then 'ct' else 'withheld' end as route,
    case cause
        when 'erased' then 'erased'
        when 'crashed' then 'crashed: ' || coalesce(error, 'no reward')
        when 'contamination' then 'contamination: the instance belongs to the ' || split || ' split'
        when 'withheld' then withheld
        when 'unjudged' then 'unjudged: no judge gave V'
            || coalesce('; not to be trusted with it: ' || array_to_string(list_sort(abstaining), ', '), '')
        when 'not_solved' then 'V=0: ' || decided
        when 'demoted' then 'V=1 (' || decided || '), demoted by ' || demoted
        else 'V=1: ' || decided || ', ' || num_filters || ' filters passed'
    end as reason,
    cause, case when cause = 'withheld' then withheld_by end as withheld_by, case when cause = 'demoted' then demoted_by end as demoted_by,
    solved as decided_verdict, decided_by, decided_score
from caused
order by episode_id
