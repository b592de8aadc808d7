-- What was shown at each step: one row a step, in one pass over screens and prompts, which are nearly all that there is to read.
--
--   screens_to_read   (n, place, is_new, words, is_candidate): episodes to judge, with the words that were typed in
--                     them (null where none), and whether they are compared screen by screen
--   steps_to_read     the table `steps`, as far as it may matter
--
-- Nearly every prompt of a text policy is one message: that takes the short way, without lambdas.
with placed as (
    select
        r.n, r.is_new, r.words, r.is_candidate, s.step_index, coalesce(s.observation, '') as observation, s.screenshot_id,
        hash(s.observation) as seen,
        case when len(s.messages) = 1 then coalesce(s.messages[1].content, '')
            else array_to_string(list_transform(s.messages, lambda m: coalesce(m.content, '')), chr(10)) end as prompt,
        case when len(s.messages) = 1 then coalesce(s.messages[1].screenshot_id, '') <> ''
            else len(list_filter(s.messages, lambda m: coalesce(m.screenshot_id, '') <> '')) > 0 end as has_image
    from steps_to_read s
    join screens_to_read r on r.place = hash(s.episode_id, s.iteration, s.stage)
)
select
    n, step_index, is_new,
    case when observation <> '' then seen else hash(coalesce(screenshot_id, '')) end as state,
    hash(seen, screenshot_id) as screen,
    observation = '' and screenshot_id is null as is_blank,
    has_image,
    case when $any_leak then list_filter($leaks, lambda found: found <> '') end as hidden,
    -- of the words that are typed in this episode, sooner or later, those that its prompt holds
    case when words is not null then list_filter(words, lambda w: contains(lower(prompt), w)) end as read,
    case when observation = '' and screenshot_id is null then 'shows nothing' when $busy then 'is still loading' end as unsettled,
    case when is_candidate and observation = '' then screenshot_id end as picture,
    case when is_candidate and observation <> ''
        then list_transform(string_split(regexp_replace(observation, '\n$', ''), chr(10)), lambda line: hash(line)) end as lines
from placed
