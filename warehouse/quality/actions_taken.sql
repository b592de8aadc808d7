-- What was thought and done at each step: one row a step, from its thought and its action alone, which are short beside the screens.
--
--   episodes_to_judge   (n, place, is_new, may_pass): n numbers them in the order of ids, place is a hash of where their steps lie
--   actions             actions.sql
--   steps_to_read       the table `steps`, as far as it may matter
--
-- $name stands for a literal that warehouse/quality/filters.py puts there. Hashes are of 64 bits and compared inside one run only.
with placed as (
    select
        e.n, e.is_new, e.may_pass, s.step_index, coalesce(s.action, '') as text, regexp_matches(s.response, '\S') as is_written,
        case when e.is_new then unquoted(s.thought) end as thought
    from steps_to_read s
    join episodes_to_judge e on e.place = hash(s.episode_id, s.iteration, s.stage)
),
read as (select *, is_new and is_written and is_comparable(thought, kinds) as is_compared from placed join actions using (text))
select
    n, step_index, is_new,
    -- what was done, and where on an 8-pixel grid
    hash(gist, pixels) as signature,
    is_active, is_written, invalid,
    -- a step that says something in no way that can be compared with what was done
    is_new and is_written and not is_compared as is_unread,
    case when is_compared then contradiction(thought, kinds) end as contradicts,
    case when is_new and may_pass and words is not null then text end as typed
from read
