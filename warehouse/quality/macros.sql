-- What the filters read of a thought and of a stored action, written once: for their query over steps, and for single answers by
-- contradictions.py. The text of an answer is never taken apart: how thoughts and actions are written is the grammars' business.
create or replace temp macro long_words(text, letters) as list_filter(regexp_extract_all(text, '\p{L}+'), lambda w: length(w) >= letters);
create or replace temp macro action_fields(action) as
    json_extract_string(action, ['$.kind', '$.reason', '$.text', '$.answer', '$.x', '$.y', '$.to_x', '$.to_y']);
create or replace temp macro is_active_kind(kind) as coalesce(kind, '') not in ('wait', 'finished', 'call_user', 'invalid');
create or replace temp macro words_written(fields) as
    case fields[1] when 'type' then coalesce(fields[3], '') when 'finished' then coalesce(fields[4], '') else '' end;
create or replace temp macro on_grid(coordinates) as list_transform(coordinates, lambda c: round_even(try_cast(c as double) / 8, 0)::integer);
create or replace temp macro share(num_bad, num) as case when num = 0 then 1.0 else (num - num_bad) / num::double end;

-- A thought without what it quotes, which proves nothing: names and texts of the page, in quotes, and roles of elements, <button>.
create or replace temp macro unquoted(thought) as regexp_replace(thought, '"[^"]*"|<[^<>]*>', ' _ ', 'g');
-- The verb that a thought begins with, in small letters, '' for none that can be read. What it only plans ("I need to type …") and what may
-- be a noun or a way to say "but" is none.
create or replace temp macro leading_verb(thought) as regexp_extract(lower(thought),
    '^[\s"''*#>(-]*(?:(?:i|we|let|me|us|will|ll|am|m|going\s+to|now|next|then|first|please|just)[\s,:’'']+)*('
    || '(?:(?:double|triple|right|left|middle)[-_ ]?)?(?:click(?:ing)?|tap(?:ping)?)\b|(?:long[-_ ])?press(?:ing)?\b|typ(?:e|ing)\b|'
    || 'scroll(?:ing)?\b|drag(?:ging)?\b|swip(?:e|ing)\b|select(?:ing)?\b|hover(?:ing)?\b|finished\b|'
    || 'wait(?:ing)?(?:\s+(?:for|until|till|a|one)\b|\s+\d|[\s.]*$))', 1);
-- Whether a thought in small letters has a word for a kind of action, wherever; null for kinds without words.
create or replace temp macro names_kind(thought, kind) as case kind
    when 'click' then regexp_matches(thought,
        '\b(?:click|double|triple|right|middle|tap|press|hit|push|select|choos|pick|check|tick|toggl|open|clos|focus|activat)')
    when 'long_press' then regexp_matches(thought, '\b(?:long|press|hold|tap|click)')
    when 'mouse_down' then regexp_matches(thought, '\b(?:click|tap|press|hold|drag|grab|mouse|select)')
    when 'mouse_up' then regexp_matches(thought, '\b(?:click|tap|press|releas|drop|drag|mouse|select)')
    when 'drag' then regexp_matches(thought, '\b(?:drag|drop|swip|mov|slid|scroll|select)')
    when 'move_to' then regexp_matches(thought, '\b(?:hover|mov|point|drag|mouse)')
    when 'scroll' then regexp_matches(thought, '\b(?:scroll|swip|wheel|drag)')
    when 'type' then regexp_matches(thought, '\b(?:typ|enter|writ|input|fill|press|hit|insert|past|search|run|execut)')
    when 'hotkey' then regexp_matches(thought, '\b(?:press|hit|key|hotkey|shortcut|typ|enter|select|copy|past|sav|ctrl|scroll)')
    when 'key_down' then regexp_matches(thought, '\b(?:press|hit|key|hold|typ)')
    when 'key_up' then regexp_matches(thought, '\b(?:press|hit|key|releas|typ)')
    when 'select' then regexp_matches(thought, '\b(?:select|choos|pick|click|tap|set|option)')
    when 'navigate' then regexp_matches(thought, '\b(?:navigat|go|open|visit|typ|enter|load|brows)')
    when 'navigate_back' then regexp_matches(thought, '\b(?:back|return|previous)')
    when 'press_back' then regexp_matches(thought, '\b(?:back|return|previous|clos)')
    when 'press_home' then regexp_matches(thought, '\bhome')
    when 'open_app' then regexp_matches(thought, '\b(?:open|launch|start|run|click|tap)')
    when 'wait' then regexp_matches(thought, '\bwait')
    when 'tool' then regexp_matches(thought, '\b(?:run|execut|typ|writ|enter|search|read|open|creat|edit|call|us|select|look|list)')
    when 'finished' then regexp_matches(thought, '\b(?:finish|done|answer|complet|report)')
    when 'call_user' then regexp_matches(thought, '\b(?:ask|call|user|help)')
end;
-- The kinds of an action as it is stored, one or several.
create or replace temp macro kinds_of(action) as case
    when json_extract_string(action, '$.kind') = 'several' then json_extract_string(action, '$.actions[*].kind')
    else [json_extract_string(action, '$.kind')]
end;
-- Whether a thought, unquoted, can be compared with kinds of actions: it begins with a verb, and there are words for each kind.
create or replace temp macro is_comparable(thought, kinds) as coalesce(
    leading_verb(thought) <> '' and len(kinds) > 0 and len(list_filter(kinds, lambda k: names_kind('', k) is null)) = 0, false);
-- In what the two contradict each other where they can be compared; null where the thought names any of the kinds.
create or replace temp macro contradiction(thought, kinds) as case
    when len(list_filter(kinds, lambda k: names_kind(lower(thought), k))) = 0
        then 'the thought says ' || leading_verb(thought) || ', the action ' || array_to_string(kinds, ', ') end;
