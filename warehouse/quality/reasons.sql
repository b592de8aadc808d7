-- Why the judges scored one part of the episodes as they did: (n, judge, place, reason), in the order of places within a judge.
--
--   part     episodes.sql, as far as they are judged now
--   faults   faults.sql, and the reasons of filters that need more than the steps of one episode
select n, judge, place, reason from faults where n between $first and $last
union all select n, 'verifier', 0, printf('reward %g', reward) from part where outcome <> 'crashed' and reward is not null
union all select n, 'verifier', 1, 'outcome ' || outcome from part where outcome <> 'crashed' and reward is not null
union all select n, 'repeats', 0, printf('steps %d to %d repeat one action %d times', from_step, to_step, longest)
    from part where longest > $max_repeats
union all select n, 'too_long', 0, printf('%d steps, at most %g (solved episodes of this task take %g)', num, longest_allowed, typical_steps)
    from part where num > longest_allowed
union all select n, 'too_short', 0, printf('%d written steps, at least %d', num_written, $min_steps)
    from part where num_empty = 0 and num_written < $min_steps
union all select n, 'duplicate', 0, format('{:.2f} like {}', similarity, other) from part where similarity > 1 - $min_novelty
union all select n, 'contamination', 0, 'the instance belongs to the ' || split || ' split' from part where split <> 'train'
union all select n, 'balance', 0, printf('number %d of the solved episodes of this task, at most %d are kept', rank, $max_solved_per_task)
    from part where rank > $max_solved_per_task
