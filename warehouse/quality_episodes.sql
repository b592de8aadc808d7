-- The verdicts on one part of the episodes, in the order of their numbers and of the judges: (n, episode_id, judge, …).
--
--   part               episodes_to_judge, as far as they are judged now
--   facts              what quality_steps.sql knows of their steps
--   typical            (task_id, typical_steps): median length of a task's solved episodes
--   leaks              (n, reasons); nearest (n, similarity, other); ranks (n, rank): what needs more than the episode itself
with sequenced as (
    select
        *,
        lead(screen) over w as next_screen,
        row_number() over w as place,
        count(*) filter (is_new_run) over w as run
    from (select *, lag(signature) over (partition by n order by step_index) is distinct from signature as is_new_run,
            min(step_index) over (partition by n, state, signature) as first_seen from facts)
    window w as (partition by n order by step_index)
),
runs as (
    select n, max(num) as longest, arg_max(from_step, (num, -from_step)) as from_step, arg_max(to_step, (num, -from_step)) as to_step
    from (select n, run, count(*) as num, min(step_index) as from_step, max(step_index) as to_step from sequenced group by n, run)
    group by n
),
seen as (
    select
        n,
        count(*) as num,
        list(printf('step %d: %s', step_index, invalid) order by step_index) filter (invalid is not null) as invalid,
        count(*) filter (is_active and next_screen is not null) as num_pairs,
        list(printf('step %d changed nothing', step_index) order by step_index) filter (is_active and next_screen = screen) as idle,
        list(printf('step %d repeats step %d', step_index, first_seen) order by step_index) filter (first_seen <> step_index) as repeated,
        count(*) filter (is_written) as num_written,
        list(printf('step %d is empty', step_index) order by step_index) filter (not is_written) as empty,
        list(printf('step %d: %s', step_index, contradicts) order by step_index) filter (contradicts is not null) as contradicts,
        count(*) filter (is_active) as num_active,
        list(printf('step %d was taken on a screen that %s', step_index, unsettled) order by step_index)
            filter (unsettled is not null and (not is_blank or has_screens)) as unsettled
    from (select *, bool_or(not is_blank) over (partition by n) as has_screens from sequenced)
    group by n
),
figures as (
    select
        p.*,
        coalesce(s.num, 0) as num, coalesce(s.num_pairs, 0) as num_pairs, coalesce(s.num_written, 0) as num_written,
        coalesce(s.num_active, 0) as num_active, coalesce(s.invalid, []) as invalid, coalesce(s.idle, []) as idle,
        coalesce(s.repeated, []) as repeated, coalesce(s.empty, []) as empty, coalesce(s.contradicts, []) as contradicts,
        coalesce(s.unsettled, []) as unsettled, r.longest, r.from_step, r.to_step,
        coalesce(t.typical_steps, 0.0) as typical_steps,
        greatest($length_floor::double, $max_length_ratio * coalesce(t.typical_steps, 0.0)) as longest_allowed,
        coalesce(l.reasons, []) as leaked, coalesce(d.similarity, 0.0) as similarity, d.other, k.rank
    from part p
    left join seen s using (n) left join runs r using (n) left join leaks l using (n) left join nearest d using (n) left join ranks k using (n)
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
