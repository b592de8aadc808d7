-- How an answer is read, written once: by the filters' query over steps, and for single answers by quality.contradictions_in.
-- An answer is `Thought … Action …`; quoted text is taken out first: what a page says proves nothing.
create or replace temp macro stripped(text) as regexp_replace(text, '^\s+|\s+$', '', 'g');
-- `pieces` are what stands between quotes: where these come in pairs every other piece is quoted, and the expression is not needed.
create or replace temp macro unquoted(response, pieces) as case
    when len(pieces) = 1 then response
    when len(pieces) % 2 = 1 then array_to_string(pieces[1:len(pieces):2], '""')
    else regexp_replace(response, '"[^"]*"', '""', 'g')
end;
create or replace temp macro thought_of(text) as stripped(regexp_replace(stripped(text), '^Thought', ''));
create or replace temp macro indices(text) as regexp_extract_all(text, '\[(\d+)\]', 1);
create or replace temp macro long_words(text, letters) as list_filter(regexp_extract_all(text, '\p{L}+'), lambda w: length(w) >= letters);
create or replace temp macro action_fields(action) as
    json_extract_string(action, ['$.kind', '$.reason', '$.text', '$.answer', '$.x', '$.y', '$.to_x', '$.to_y']);
create or replace temp macro is_active_kind(kind) as coalesce(kind, '') not in ('wait', 'finished', 'call_user', 'invalid');
create or replace temp macro words_written(fields) as
    case fields[1] when 'type' then coalesce(fields[3], '') when 'finished' then coalesce(fields[4], '') else '' end;
create or replace temp macro on_grid(coordinates) as list_transform(coordinates, lambda c: round_even(try_cast(c as double) / 8, 0)::integer);
create or replace temp macro names(found) as array_to_string(
    list_transform(list_sort(list_distinct(list_transform(found, lambda i: try_cast(i as hugeint)))), lambda i: '[' || i || ']'), ' ');
-- Not `in`, of which DuckDB would make a join, which looks at every row.
create or replace temp macro is_verb(word) as
    regexp_full_match(word, 'click|type|press|scroll|drag|select|double_click|right_click|run|wait|finished');
create or replace temp macro first_word(text) as regexp_extract(text, '^\S+');
-- In what a thought contradicts its action, as far as both name elements (`said` and `done`) or verbs; null where it does not.
create or replace temp macro contradiction(thought, said, action, done) as case
    when len(done) > 0 and len(said) > 0 and not list_has_all(said, done)
        then 'the thought names ' || names(said) || ', the action ' || names(done)
    when first_word(thought) <> first_word(action) and is_verb(first_word(thought)) and is_verb(first_word(action))
        then 'the thought says ' || first_word(thought) || ', the action ' || first_word(action)
end;
create or replace temp macro share(num_bad, num) as case when num = 0 then 1.0 else (num - num_bad) / num::double end;
