-- In what thought and action contradict each other at steps whose answers are not in the compact grammar: one row such a step. Nothing is
-- read where every answer is compact.
--
--   actions_taken   actions_taken.sql; `is_foreign` tells which steps, and those whose answers contradict themselves as they stand are settled
with foreign_steps as (select n, step_index from actions_taken where is_foreign and contradicts is null),
compared as (
    select f.n, f.step_index, s.thought, kinds_of(s.action) as kinds, kinds_named(s.thought, kinds_of(s.action)) as named
    from steps_to_read s
    join episodes_to_judge e on e.place = hash(s.episode_id, s.iteration, s.stage)
    join foreign_steps f on f.n = e.n and f.step_index = s.step_index
)
select n, step_index, named is not null as is_read, contradiction_of_kinds(thought, kinds, named) as contradicts from compared
