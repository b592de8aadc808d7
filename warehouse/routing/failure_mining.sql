-- What of failed episodes can be learned from after all. `routes` says which failed (V=0, sent to CT) and which solved attempts stand (SFT).
-- A pair belongs to the iteration in which its later half was routed.
create or replace temp view mined_steps as
select
    r.iteration, r.route, r.decided_verdict as is_solved, e.task_id, e.seed, e.domain, s.episode_id, s.step_index, s.reward, s.action,
    s.messages, s.response, case when s.observation <> '' then s.observation else coalesce(s.screenshot_id, '') end as state
from routes r
join episodes e on e.episode_id = r.episode_id and e.iteration = r.iteration
join steps s on s.episode_id = r.episode_id and s.iteration = r.iteration
where r.route <> 'withheld' and e.split = 'train'
    and s.episode_id not in (select episode_id from annotations where origin = 'human' group by episode_id having bool_and(withdrawn));

-- Steps of failed episodes that a solved attempt at the same instance took in the same state.
create or replace temp view shared_steps as
select distinct f.episode_id, f.step_index
from mined_steps f
join mined_steps s on s.task_id = f.task_id and s.seed = f.seed and s.state = f.state and s.action = f.action
where not f.is_solved and s.is_solved and s.route = 'sft';

create or replace temp view compared as
select distinct f.episode_id from mined_steps f join mined_steps s using (task_id, seed)
where not f.is_solved and s.is_solved and s.route = 'sft' and f.step_index = 0 and s.step_index = 0 and f.state = s.state;

-- The first wrong step of each failed episode, as far as anything tells. $attempts_tell: whether a solved attempt does.
create or replace temp view first_wrong_steps as
with wrong_steps as (
    -- an annotator corrected it afterwards, or found it beyond repair
    select episode_id, step_index from annotations
    where mode = 'relabel' and decision in ('edit', 'override', 'beyond_repair') and not withdrawn
    union all
    -- the environment took a reward back
    select episode_id, step_index from mined_steps where not is_solved and reward < 0
    union all
    -- the last progress that it saw was before
    select episode_id, max(step_index) + 1 from mined_steps where not is_solved and reward > 0 group by episode_id
    union all
    -- every solved attempt at the same instance did something else here, or was never here: a guess (failure_mining.py)
    select f.episode_id, f.step_index from mined_steps f join compared using (episode_id) anti join shared_steps using (episode_id, step_index)
    where $attempts_tell
)
select episode_id, min(step_index) as step_index from wrong_steps group by episode_id;
