-- What is known of each episode to judge: one row an episode, of which its scores are made (scores.sql).
--
--   episodes_to_judge   (n, episode_id, iteration, task_id, split, outcome, reward, is_solved, is_new, …)
--   faults              faults.sql
--   keys                (n, num_steps, num_written, num_unread, num_active, ends_active): counts of an episode's steps
--   typical             (task_id, typical_steps): median length of a task's solved episodes
--   nearest             (n, similarity, other); ranks (n, rank): what needs more than the episode itself
with counts as (
    select
        n, count(*) filter (judge = 'format') as num_invalid, count(*) filter (judge = 'contradiction') as num_contradicting,
        count(*) filter (judge = 'too_short') as num_empty, count(*) filter (judge = 'no_op') as num_idle,
        count(*) filter (judge = 'loop') as num_repeated, count(*) filter (judge = 'settled') as num_unsettled,
        count(*) filter (judge = 'leak') as num_leaks
    from faults group by n
),
-- Only an episode of more than $max_repeats steps can have so long a run.
changes as (
    select n, step_index, lag(signature) over (partition by n order by step_index) is distinct from signature as is_new_run
    from actions_taken semi join (select n from keys where num_steps > $max_repeats) using (n)
),
numbered as (select n, step_index, count(*) filter (is_new_run) over (partition by n order by step_index) as run from changes),
runs as (
    select n, max(num) as longest, arg_max(from_step, (num, -from_step)) as from_step, arg_max(to_step, (num, -from_step)) as to_step
    from (select n, run, count(*) as num, min(step_index) as from_step, max(step_index) as to_step from numbered group by n, run)
    group by n
)
select
    e.n, e.episode_id, e.outcome, e.reward, e.split,
    coalesce(k.num_steps, 0) as num, coalesce(k.num_written, 0) as num_written, coalesce(k.num_active, 0) as num_active,
    -- what the last action changed is not stored
    coalesce(k.num_active - k.ends_active::integer, 0) as num_pairs,
    coalesce(c.num_invalid, 0) as num_invalid, coalesce(c.num_contradicting, 0) as num_contradicting, coalesce(c.num_empty, 0) as num_empty,
    coalesce(k.num_unread, 0) as num_unread, coalesce(c.num_idle, 0) as num_idle, coalesce(c.num_repeated, 0) as num_repeated, coalesce(c.num_unsettled, 0) as num_unsettled,
    coalesce(c.num_leaks, 0) as num_leaks, r.longest, r.from_step, r.to_step,
    coalesce(t.typical_steps, 0.0) as typical_steps,
    greatest($length_floor::double, $max_length_ratio * coalesce(t.typical_steps, 0.0)) as longest_allowed,
    coalesce(d.similarity, 0.0) as similarity, d.other, x.rank
from episodes_to_judge e
left join keys k using (n) left join counts c using (n) left join runs r using (n) left join nearest d using (n) left join ranks x using (n)
left join typical t on t.task_id = e.task_id
where e.is_new order by e.n
