-- The verdicts on one part of the episodes: (n, episode_id, judge, …).
--
--   part               episodes_to_judge, as far as they are judged now
--   deeds, screens     what quality_deeds.sql and quality_screens.sql know of their steps
--   keys               (n, num_steps, num_written, num_active, ends_active): counts of an episode's steps
--   typical            (task_id, typical_steps): median length of a task's solved episodes
--   leaks              (n, reasons); nearest (n, similarity, other); ranks (n, rank): what needs more than the episode itself
with revisited as (select distinct n from (select n from screens group by n, state having count(*) > 1)),
-- Only an episode that saw a screen twice can idle or loop.
looked_back as (
    select n, step_index, signature, state, is_active, screen, lead(screen) over (partition by n order by step_index) as next_screen
    from deeds join screens using (n, step_index) semi join revisited using (n)
),
visits as (select n, state, signature, min(step_index) as first_seen from looked_back group by n, state, signature having count(*) > 1),
-- What is wrong with single steps; few rows.
told as (
    select n, step_index, 'format' as judge, invalid as reason from deeds where invalid is not null
    union all select n, step_index, 'no_op', 'changed nothing' from looked_back where is_active and next_screen = screen
    union all select r.n, r.step_index, 'loop', 'repeats step ' || v.first_seen
        from looked_back r join visits v using (n, state, signature) where r.step_index > v.first_seen
    union all select n, step_index, 'too_short', 'is empty' from deeds where not is_written
    union all select n, step_index, 'contradiction', contradicts from deeds where contradicts is not null
    union all select n, step_index, 'settled', 'was taken on a screen that ' || unsettled
        from screens s join deeds d using (n, step_index)
        where unsettled is not null and is_active and (not is_blank or exists (from screens o where o.n = s.n and not o.is_blank))
),
wrong as (
    select n, judge, list_transform(list_sort(list({place: step_index, text: 'step ' || step_index
        || case when judge in ('format', 'contradiction') then ': ' else ' ' end || reason})), lambda told: told.text) as reasons
    from told group by n, judge
),
seen as (
    select
        n, any_value(reasons) filter (judge = 'format') as invalid, any_value(reasons) filter (judge = 'no_op') as idle,
        any_value(reasons) filter (judge = 'loop') as repeated, any_value(reasons) filter (judge = 'too_short') as empty,
        any_value(reasons) filter (judge = 'contradiction') as contradicts, any_value(reasons) filter (judge = 'settled') as unsettled
    from wrong group by n
),
-- Only an episode of more than $max_repeats steps can have so long a run.
changes as (
    select n, step_index, lag(signature) over (partition by n order by step_index) is distinct from signature as is_new_run
    from deeds semi join (select n from keys where num_steps > $max_repeats) using (n)
),
numbered as (select n, step_index, count(*) filter (is_new_run) over (partition by n order by step_index) as run from changes),
runs as (
    select n, max(num) as longest, arg_max(from_step, (num, -from_step)) as from_step, arg_max(to_step, (num, -from_step)) as to_step
    from (select n, run, count(*) as num, min(step_index) as from_step, max(step_index) as to_step from numbered group by n, run)
    group by n
),
figures as (
    select
        p.*,
        coalesce(c.num_steps, 0) as num, coalesce(c.num_written, 0) as num_written, coalesce(c.num_active, 0) as num_active,
        -- what the last action changed is not stored
        coalesce(c.num_active - c.ends_active::integer, 0) as num_pairs, coalesce(s.invalid, []) as invalid, coalesce(s.idle, []) as idle,
        coalesce(s.repeated, []) as repeated, coalesce(s.empty, []) as empty, coalesce(s.contradicts, []) as contradicts,
        coalesce(s.unsettled, []) as unsettled, r.longest, r.from_step, r.to_step,
        coalesce(t.typical_steps, 0.0) as typical_steps,
        greatest($length_floor::double, $max_length_ratio * coalesce(t.typical_steps, 0.0)) as longest_allowed,
        coalesce(l.reasons, []) as leaked, coalesce(d.similarity, 0.0) as similarity, d.other, k.rank
    from part p
    left join keys c using (n) left join seen s using (n) left join runs r using (n)
    left join leaks l using (n) left join nearest d using (n) left join ranks k using (n)
    left join typical t on t.task_id = p.task_id
),
judged as (
    select n, episode_id, unnest([
        {judge: 'verifier', version: '1', score: least(1.0, greatest(0.0, reward)), threshold: $success_threshold,
            reasons: [printf('reward %g', reward), 'outcome ' || outcome], is_asked: outcome <> 'crashed' and reward is not null},
        {judge: 'format', version: '2', score: share(len(invalid), num), threshold: $min_valid_fraction, reasons: invalid, is_asked: true},
        {judge: 'no_op', version: '2', score: share(len(idle), num_pairs), threshold: $min_effective_fraction, reasons: idle, is_asked: true},
        {judge: 'loop', version: '2', score: share(len(repeated), num), threshold: $min_fresh_fraction, reasons: repeated, is_asked: true},
        {judge: 'repeats', version: '1', score: least(1.0, $max_repeats / greatest(longest, 1)), threshold: 1.0,
            reasons: case when longest > $max_repeats then [printf('steps %d to %d repeat one action %d times', from_step, to_step, longest)]
                else [] end, is_asked: true},
        {judge: 'settled', version: '1', score: share(len(unsettled), num_active), threshold: $min_settled_fraction, reasons: unsettled,
            is_asked: true},
        {judge: 'too_long', version: '1', score: case when num <= longest_allowed then 1.0 else longest_allowed / num end, threshold: 1.0,
            reasons: case when num <= longest_allowed then []
                else [printf('%d steps, at most %g (solved episodes of this task take %g)', num, longest_allowed, typical_steps)] end,
            is_asked: true},
        {judge: 'too_short', version: '1',
            score: case when num_written >= $min_steps and len(empty) = 0 then 1.0
                else least(num_written / $min_steps::double, num_written / greatest(1, num)::double) end,
            threshold: 1.0,
            reasons: case when len(empty) > 0 then empty
                when num_written < $min_steps then [printf('%d written steps, at least %d', num_written, $min_steps)] else [] end,
            is_asked: true},
        {judge: 'contradiction', version: '2', score: share(len(contradicts), num), threshold: $min_consistent_fraction,
            reasons: contradicts, is_asked: true},
        {judge: 'leak', version: '2', score: case when len(leaked) > 0 then 0.0 else 1.0 end, threshold: 1.0, reasons: leaked, is_asked: true},
        {judge: 'duplicate', version: '2', score: 1 - similarity, threshold: $min_novelty,
            reasons: case when similarity > 1 - $min_novelty then [format('{:.2f} like {}', similarity, other)] else [] end,
            is_asked: true},
        {judge: 'contamination', version: '1', score: case when split = 'train' then 1.0 else 0.0 end, threshold: 1.0,
            reasons: case when split = 'train' then [] else ['the instance belongs to the ' || split || ' split'] end, is_asked: true},
        {judge: 'balance', version: '1', score: least(1.0, $max_solved_per_task::double / greatest(rank, 1)), threshold: 1.0,
            reasons: case when rank > $max_solved_per_task
                then [printf('number %d of the solved episodes of this task, at most %d are kept', rank, $max_solved_per_task)] else [] end,
            is_asked: rank is not null}
    ], recursive := true)
    from figures
)
select
    n, episode_id, judge, version as judge_version, case judge when 'verifier' then 'verdict' else 'filter' end as kind,
    case judge when 'verifier' then 'verifier' else 'filter' end as origin, score::double as score, threshold::double as threshold,
    score::double >= threshold::double as passed, reasons
from judged where is_asked
