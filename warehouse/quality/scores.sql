-- The score of every filter on one part of the episodes, and V: one row an episode, a column a judge, null where it is not asked.
--
--   part   episodes.sql, as far as they are judged now
select
    n, episode_id,
    case when outcome <> 'crashed' and reward is not null then least(1.0, greatest(0.0, reward)) end as verifier,
    share(num_invalid, num) as format,
    share(num_idle, num_pairs) as no_op,
    share(num_repeated, num) as loop,
    least(1.0, $max_repeats / greatest(longest, 1)) as repeats,
    share(num_unsettled, num_active) as settled,
    case when num <= longest_allowed then 1.0 else longest_allowed / num end as too_long,
    case when num_written >= $min_steps and num_empty = 0 then 1.0
        else least(num_written / $min_steps::double, num_written / greatest(1, num)::double) end as too_short,
    -- not asked where no step that says something says it in a way that can be compared
    case when num_unread = 0 or num_unread < num_written then share(num_contradicting, num - num_unread) end as contradiction,
    case when num_leaks > 0 then 0.0 else 1.0 end as leak,
    1 - similarity as duplicate,
    case when split = 'train' then 1.0 else 0.0 end as contamination,
    case when rank is not null then least(1.0, $max_solved_per_task::double / greatest(rank, 1)) end as balance
from part
