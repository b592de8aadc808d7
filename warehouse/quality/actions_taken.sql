-- What was answered and done at each step: one row a step, from its answer and its action alone, which are short beside the screens.
--
--   episodes_to_judge   (n, place, is_new, may_pass): n numbers them in the order of ids, place is a hash of where their steps lie
--   actions             actions.sql
--   steps_to_read       the table `steps`, as far as it may matter
--
-- $name stands for a literal that warehouse/quality/filters.py puts there. Hashes are of 64 bits and compared inside one run only.
-- Most answers of the compact grammar are plain: thought and action begin with the same word and name the same one element. One expression
-- finds those, and what else an answer may be is read piece by piece for the others only.
with placed as (
    select
        e.n, e.is_new, e.may_pass, s.step_index, s.response, coalesce(s.action, '') as text,
        regexp_extract(s.response, '^Thought ([a-z_]+) (?:[^"\[]|"[^"]*")*\[(\d+)\] Action ([a-z_]+) \[(\d+)\]$',
            ['said', 'shown', 'verb', 'element']) as plain
    from steps_to_read s
    join episodes_to_judge e on e.place = hash(s.episode_id, s.iteration, s.stage)
),
weighed as (
    select * exclude (plain), case when plain.said = plain.verb and plain.shown = plain.element then nullif(plain.element, '') end as element
    from placed
),
cut as (select *, case when element is null then string_split(response, '"') end as pieces from weighed),
parted as (select *, case when element is null then string_split(unquoted(response, pieces), 'Action') end as parts from cut),
read as (
    select
        *, case len(parts) when 2 then thought_of(parts[1]) when 1 then '' else thought_of(array_to_string(parts[:-2], 'Action')) end as thought,
        stripped(parts[-1]) as act
    from parted
),
named as (
    select
        *, case when element is null then indices(thought) end as said,
        case when element is not null then [element] when contains(act, '[') then indices(act) else [] end as done
    from read
)
select
    n, step_index, is_new,
    -- the action as the policy meant it: element numbers where the answer names them, else pixels on an 8-pixel grid
    hash(gist, done, case when len(done) > 0 then 0::ubigint else pixels end) as signature,
    is_active,
    case when element is not null then true else regexp_matches(response, '\S') end as is_written,
    invalid,
    case when is_new and element is null then contradiction(thought, said, act, done) end as contradicts,
    case when is_new and element is null then is_written and not is_compact(response) else false end as is_foreign,
    case when is_new and may_pass and words is not null then text end as typed
from named join actions using (text)
