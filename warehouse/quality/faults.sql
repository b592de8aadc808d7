-- What is wrong with the steps of the episodes to judge: (n, judge, place, reason), a row a fault. Few rows.
--
--   actions_taken, screens   what actions_taken.sql and screens.sql know of each step; those of earlier episodes are not looked at
--   again, retried   screens that their episode saw more than once, and what was done there: only there can it be idle or loop
--   leaks            reasons of the filter `leak`, as rows of this kind
--
-- Steps of an episode are numbered from 0 without a gap.
with tried as (select n, state, signature, min(step_index) as first_step from retried group by n, state, signature having count(*) > 1),
found as (
    select n, 'format' as judge, step_index as place, ': ' || invalid as reason from actions_taken where is_new and invalid is not null
    union all select n, 'contradiction', step_index, ': ' || contradicts from actions_taken where contradicts is not null
    union all select n, 'too_short', step_index, ' is empty' from actions_taken where is_new and not is_written
    union all select r.n, 'no_op', r.step_index, ' changed nothing'
        from retried r join again a on a.n = r.n and a.step_index = r.step_index + 1 and a.screen = r.screen where r.is_active
    union all select r.n, 'loop', r.step_index, ' repeats step ' || t.first_step
        from retried r join tried t using (n, state, signature) where r.step_index > t.first_step
    union all select s.n, 'settled', s.step_index, ' was taken on a screen that ' || s.unsettled
        from screens s join actions_taken d using (n, step_index)
        where s.is_new and s.unsettled is not null and d.is_active
            and (not s.is_blank or s.n in (select n from screens where is_new and not is_blank))
)
select n, judge, place, 'step ' || place || reason as reason from found
union all from leaks
