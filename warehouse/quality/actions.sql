-- What each distinct action of `steps_to_read` says: actions are short and repeat, so each text is parsed once however often it was done.
--
--   text       the action as it is stored, '' for none
--   gist       hash of it without coordinates; pixels: hash of the coordinates on an 8-pixel grid
--   words      the longer words that it writes, null for none
--   kinds      what kinds of action it is, one or several
with texts as (
    select
        text,
        case when json_valid(text) and json_type(text) = 'OBJECT' then text
            else '{"kind":"invalid","reason":"the stored action is not a JSON object"}' end as action
    from (select distinct coalesce(action, '') as text from steps_to_read)
),
parsed as (
    -- kind, reason, the words it writes, and its four coordinates
    select *, action_fields(action) as single from texts
),
listed as (
    select
        *, single[1] = 'several' as is_several,
        case when single[1] = 'several' then list_transform(json_extract(action, '$.actions[*]'), lambda a: action_fields(a)) end as fields
    from parsed
),
understood as (
    select
        *, case when is_several then list_filter(fields, lambda f: f[1] = 'invalid')[1] when single[1] = 'invalid' then single end as wrong
    from listed
)
select
    text,
    hash(case when single[1] = 'tool' then action else regexp_replace(action, '"(?:x|y|to_x|to_y)": ?(?:null|[-+.0-9eE]+)', '', 'g') end) as gist,
    hash(case when is_several then flatten(list_transform(fields, lambda f: on_grid(f[5:8]))) else on_grid(single[5:8]) end) as pixels,
    case when is_several then len(list_filter(fields, lambda f: is_active_kind(f[1]))) > 0 else is_active_kind(single[1]) end as is_active,
    case when wrong is not null then coalesce(wrong[2], 'invalid action') end as invalid,
    nullif(long_words(case when is_several then array_to_string(list_transform(fields, lambda f: words_written(f)), ' ')
        else words_written(single) end, $leak_min_letters), []) as words,
    kinds_of(action) as kinds
from understood
