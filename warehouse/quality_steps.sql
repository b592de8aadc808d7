-- What the filters need to know of each step, and of nothing but that step: one row a step, read in one pass over the texts.
--
--   episodes_to_judge   (n, episode_id, iteration, stage, is_new, is_solved): n numbers them in the order of ids
--   steps               the table
--
-- $name stands for a literal that warehouse/quality.py puts there. Hashes are of 64 bits and compared inside one query only.
-- Nearly every answer is one action and nearly every prompt of a text policy one message: those take the short way, without lambdas.
with read as (
    select
        e.n, s.step_index, e.is_new, e.is_solved, s.observation, s.screenshot_id, s.response,
        case when json_valid(s.action) and json_type(s.action) = 'OBJECT' then s.action
            else '{"kind":"invalid","reason":"the stored action is not a JSON object"}' end as action,
        case when len(s.messages) = 1 then coalesce(s.messages[1].content, '')
            else array_to_string(list_transform(s.messages, lambda m: coalesce(m.content, '')), chr(10)) end as prompt,
        case when len(s.messages) = 1 then coalesce(s.messages[1].screenshot_id, '') <> ''
            else len(list_filter(s.messages, lambda m: coalesce(m.screenshot_id, '') <> '')) > 0 end as has_image,
        string_split(unquoted(s.response), 'Action') as parts
    from steps s
    join episodes_to_judge e on e.episode_id = s.episode_id and e.iteration = s.iteration and e.stage = s.stage
),
parsed as (
    select
        *,
        stripped(parts[-1]) as action_text,
        stripped(regexp_replace(stripped(array_to_string(parts[:-2], 'Action')), '^Thought', '')) as thought_text,
        -- kind, reason, the words it writes, and its four coordinates
        action_fields(action) as single
    from read
),
listed as (
    select
        *, indices(action_text) as done, indices(thought_text) as said, single[1] = 'several' as is_several,
        case when single[1] = 'several' then list_transform(json_extract(action, '$.actions[*]'), lambda a: action_fields(a)) end as fields
    from parsed
),
understood as (
    select
        *,
        case when is_several then list_filter(fields, lambda f: f[1] = 'invalid')[1] when single[1] = 'invalid' then single end as invalid_fields,
        case when is_several then len(list_filter(fields, lambda f: is_active_kind(f[1]))) > 0 else is_active_kind(single[1]) end as is_active,
        case when is_several then array_to_string(list_transform(fields, lambda f: words_written(f)), ' ') else words_written(single) end as typed
    from listed
)
select
    n, step_index, is_new,
    hash(case when observation <> '' then observation else coalesce(screenshot_id, '') end) as state,
    hash(observation, screenshot_id) as screen,
    hash(
        -- the action as the policy meant it: element numbers where the answer names them, else pixels on an 8-pixel grid
        case when single[1] = 'tool' then action else regexp_replace(action, '"(?:x|y|to_x|to_y)": ?(?:null|[-+.0-9eE]+)', '', 'g') end,
        done,
        case when len(done) > 0 then [] when is_several then flatten(list_transform(fields, lambda f: on_grid(f[5:8]))) else on_grid(single[5:8]) end
    ) as signature,
    is_active,
    has_image,
    regexp_matches(response, '\S') as is_written,
    case when invalid_fields is not null then coalesce(invalid_fields[2], 'invalid action') end as invalid,
    contradiction(thought_text, action_text, said, done) as contradicts,
    case when $any_leak then list_filter($leaks, lambda found: found <> '') end as hidden,
    case when is_solved and not has_image and typed <> '' and len(long_words(typed, $leak_min_letters)) > 0
        then list_filter(long_words(typed, $leak_min_letters), lambda w: not contains(lower(prompt), lower(w))) end as unread,
    case when is_active and observation = '' and screenshot_id is null then 'shows nothing'
        when is_active and $busy then 'is still loading' end as unsettled,
    observation = '' and screenshot_id is null as is_blank
from understood
