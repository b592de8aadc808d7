"""The flywheel's invariants: rules about rows of several tables, each a query that lists the rows that break it. Data only.

A rule about all iterations checks what the iteration has added: the rest was checked when it was added. Which gate runs which rule, and
what happens on failure, is in checks.py; rules about the rows of one table are its Great Expectations suite
(warehouse/quality/expectations.py). A query reads views of the warehouse only, so it can be run again for any iteration, with `$iteration`
bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from warehouse.core.stages import IMPORTED_STAGE
from warehouse.storage.catalogue import ROUTED_PURPOSES

WITHDRAW = "take the rows back with `flywheel withdraw ID…`"
REWORK = (
    "put the table back with `flywheel restore TABLE VERSION`, or delete FLYWHEEL_HOME/work/ITERATION/STAGE: "
    "the stage is then run again and replaces all its rows"
)
ROUTE_AGAIN = "run again: verdicts and routes are rebuilt from the episodes; rows that no stage of an iteration writes have to be withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """A rule about one asset: `sql` lists its violations, with `$iteration` bound. One that does not block is shown as a warning."""

    name: str
    asset: str
    meaning: str
    sql: str
    fix: str = REWORK
    is_blocking: bool = True


_MEMBERS = """samples as (
    select 'ct' as kind, * from ct_samples union all by name select 'sft' as kind, * from sft_samples),
  members as (select kind, sample_id, weight from datasets where iteration = $iteration and stage = '{kind}_dataset'),
  used as (from members join samples using (kind, sample_id))"""
"""What the iteration's dataset of one kind holds: samples of either table, whichever iteration wrote them."""

_EPISODES_OF = "unnest(list_distinct(list_append(coalesce(prompt_episode_ids, []), episode_id))) as episode_id"
"""Of a sample every episode whose text it holds, a row each; none for one that is of no episode."""


def _of_dataset(kind: str) -> tuple[Invariant, ...]:
    """Rules about what a stage will train on. A row that was valid when it was routed may have been changed since."""
    members, asset = _MEMBERS.format(kind=kind), f"{kind}_dataset"
    return (
        Invariant(
            name=f"{kind}_dataset_of_samples_there_are",
            asset=asset,
            meaning="every member is one stored sample of an earlier iteration that was not withdrawn, drawn with a weight",
            fix=f"{WITHDRAW}; where one is stored twice, put the table back with `flywheel restore`",
            sql=f"""with {members},
                tombstones as (
                  select sample_id, iteration from ct_samples_stored where stage = 'withdrawn'
                  union all select sample_id, iteration from sft_samples_stored where stage = 'withdrawn'),
                taken_back as (select sample_id, min(iteration) as since from tombstones group by sample_id)
                select m.kind, m.sample_id, m.weight, t.since as withdrawn_since, count(s.sample_id) as stored,
                       list(s.iteration || '/' || s.stage order by s.iteration, s.stage) as written_by
                from members m left join samples s using (kind, sample_id) left join taken_back t using (sample_id)
                group by m.kind, m.sample_id, m.weight, t.since
                having case when t.since is not null then t.since <= $iteration
                       else stored <> 1 or max(s.iteration) >= $iteration or not coalesce(m.weight > 0, false) end""",
        ),
        Invariant(
            name=f"{kind}_dataset_trains_on_train_only",
            asset=asset,
            meaning="no eval or holdout instance, no held-out task and no evaluation is trained on",
            fix=WITHDRAW,
            sql=f"""with {members}
                select u.sample_id, u.iteration, u.stage, u.episode_id, e.task_name, e.seed, e.split, e.purpose, t.held_out
                from (select sample_id, iteration, stage, {_EPISODES_OF} from used) u left join episodes e using (episode_id)
                left join (select task_id, bool_or(held_out) as held_out from tasks group by task_id) t on t.task_id = e.task_id
                where e.split is distinct from 'train' or e.purpose = 'evaluation' or t.held_out""",
        ),
        Invariant(
            name=f"{kind}_dataset_screenshots_present",
            asset=asset,
            meaning="every screenshot that a sample shows is stored",
            fix="put the table `screenshots` back with `flywheel restore screenshots VERSION`, or withdraw the samples",
            sql=f"""with {members},
                shown as (select sample_id, iteration, stage, unnest(messages).screenshot_id as screenshot_id from used)
                select distinct sample_id, iteration, stage, screenshot_id from shown anti join screenshots using (screenshot_id)
                where screenshot_id is not null""",
        ),
    )


def _of_samples(kind: str, asset: str) -> tuple[Invariant, ...]:
    """Rules about the samples that an iteration adds, shown on an asset of the gate downstream of them."""
    table = f"{kind}_samples"
    return (
        Invariant(
            name=f"{kind}_trains_on_train_only",
            asset=asset,
            meaning="no eval or holdout instance, no held-out task and no evaluation is in a training set",
            fix=WITHDRAW,
            sql=f"""select s.sample_id, s.stage, e.episode_id, e.task_name, e.seed, e.split, e.purpose, t.held_out
                    from (select sample_id, stage, {_EPISODES_OF} from {table} where iteration = $iteration and not withdrawn) s
                    join episodes e using (episode_id)
                    left join (select task_id, bool_or(held_out) as held_out from tasks group by task_id) t on t.task_id = e.task_id
                    where e.split <> 'train' or e.purpose = 'evaluation' or t.held_out""",
        ),
        Invariant(
            name=f"{kind}_history_without_duplicates",
            asset=asset,
            meaning="a sample joins once; history is append-only",
            fix="remove the partition that repeats it: `flywheel restore` puts the table back to before it was written",
            sql=f"""select sample_id, count(*) as times, list(iteration || '/' || stage order by iteration, stage) as written_by
                    from {table} semi join (select sample_id from {table} where iteration = $iteration) using (sample_id)
                    where not withdrawn group by sample_id having times > 1 and max(iteration) = $iteration""",
        ),
        Invariant(
            name=f"{kind}_learns_from_something",
            asset=asset,
            meaning="a sample has a message with a loss weight above 0, and none below 0",
            fix=WITHDRAW,
            sql=f"""select sample_id, stage, list_transform(messages, lambda m: m.loss) as weights from {table}
                    where iteration = $iteration and not withdrawn
                    and not coalesce(list_max(weights) > 0 and list_min(weights) >= 0, false)""",
        ),
    )


INVARIANTS = (
    Invariant(
        name="demonstrations_on_train_only",
        asset="seed_demonstrations",
        meaning="what the oracle demonstrated are solved train instances",
        sql="""select s.sample_id, e.task_name, e.seed, e.split, e.outcome from sft_samples s left join episodes e using (episode_id)
               where s.iteration = $iteration and s.stage = 'seed_demonstrations' and s.origin = 'demonstration' and not s.withdrawn
               and (e.split is distinct from 'train' or e.outcome is distinct from 'success')""",
    ),
    *_of_dataset("ct"),
    *_of_dataset("sft"),
    Invariant(
        name="sft_dataset_of_successes_and_corrections",
        asset="sft_dataset",
        meaning="SFT learns from whole episodes only with V=1, as their outcome or their route has it, and from steps only where an "
        "annotation that stands is behind them",
        fix=WITHDRAW,
        sql=f"""with {_MEMBERS.format(kind="sft")},
                 judged as (
                   select u.sample_id, u.iteration, u.stage, u.origin, u.verdict, u.annotation_id, u.episode_id,
                     (select max(e.outcome) from episodes e where e.episode_id = u.episode_id) as outcome,
                     (select max(r.route || ', ' || r.reason) from routes r where r.episode_id = u.episode_id) as route,
                     (select bool_and(r.route = 'sft' and r.decided_verdict) from routes r where r.episode_id = u.episode_id) as is_routed,
                     exists (from annotations a where a.annotation_id = u.annotation_id and not a.withdrawn
                             and a.decision <> 'beyond_repair') as stands
                   from used u where u.kind = 'sft')
               select * from judged where not coalesce(case
                 when annotation_id is not null then stands
                 when origin = 'general' and episode_id is null then true
                 when episode_id is null and starts_with(stage, '{IMPORTED_STAGE}') then verdict
                 when origin in ('rollout', 'gateway', 'correction', 'reflection') then verdict and is_routed
                 else verdict and (episode_id is null or outcome = 'success') end, false)""",
    ),
    Invariant(
        name="merge_weights_on_simplex",
        asset="merged_policy",
        meaning="the weights of the merge are 0 or more and sum to 1",
        sql="""select checkpoint_id, list_sum(weights) as total, list_min(weights) as least from (
                 select checkpoint_id, cast(json_extract_string(config, '$.weights.*') as double[]) as weights
                 from checkpoints where iteration = $iteration and stage = 'merged_policy')
               where not coalesce(abs(total - 1) <= 1e-6 and least >= 0, false)""",
    ),
    Invariant(
        name="merge_of_one_parent",
        asset="merged_policy",
        meaning="all specialists that are merged were trained from one checkpoint",
        sql="""with merged as (
                 select checkpoint_id, unnest(json_keys(config, '$.weights')) as specialist
                 from checkpoints where iteration = $iteration and stage = 'merged_policy'),
               lines as (
                 select m.checkpoint_id, m.specialist, unnest(list_append(s.parents, m.specialist)) as ancestor
                 from merged m join checkpoints s on s.checkpoint_id = m.specialist),
               shared as (select checkpoint_id, ancestor, count(distinct specialist) as num from lines group by all)
               select m.checkpoint_id, list(m.specialist) as specialists from merged m group by m.checkpoint_id
               having count(*) is distinct from (select max(num) from shared s where s.checkpoint_id = m.checkpoint_id)""",
    ),
    Invariant(
        name="critic_steers_after_its_gate",
        asset="merged_policy",
        meaning="a specialist follows its critic only in rounds whose gate that passes, once it has explained as much variance as the gate "
        "asks, unless its gate_policy is open",
        sql="""select m.run, m.step from training_metrics m join checkpoints c on c.iteration = m.iteration and c.stage = m.run
               where m.iteration = $iteration and m.metric = 'critic_steers' and m.value > 0
               and json_extract_string(c.config, '$.gate_policy') is distinct from 'open' and (exists (
                 from training_metrics g where g.iteration = m.iteration and g.run = m.run and g.step = m.step
                 and g.metric = 'value_gate' and g.value = 0)
               or not exists (
                 from training_metrics g where g.iteration = m.iteration and g.run = m.run and g.step <= m.step
                 and g.metric = 'gate_explained_variance'
                 and g.value > cast(json_extract_string(c.config, '$.gate_explained_variance') as double)))""",
    ),
    Invariant(
        name="verdicts_agree_in_full_chromium",
        asset="evaluations",
        meaning="what is played again in full Chromium through Playwright ends as it did here, in nine of ten instances, or all but one",
        fix="compare the two episodes of an instance with `flywheel replay`; pages that differ between the browsers differ in their first "
        "screens already, a policy that hardly knows may also act otherwise on a pixel",
        is_blocking=False,
        sql="""with twice as (
                 select b.task_name, b.seed, a.outcome as here, b.outcome as there, a.episode_id, b.episode_id as again,
                   (a.outcome = 'success') <> (b.outcome = 'success') as differs
                 from episodes b join episodes a using (iteration, stage, policy_id, task_id, seed)
                 where b.iteration = $iteration and b.purpose = 'second_browser' and a.purpose = 'evaluation'
                 and a.outcome <> 'crashed' and b.outcome <> 'crashed')
               select * exclude (differs) from (
                 select *, count(*) over () as num_played, count(*) filter (where differs) over () as num_differ from twice)
               where differs and num_differ > greatest(1, num_played // 10)""",
    ),
    Invariant(
        name="episodes_counted_once",
        asset="rollouts",
        meaning="no episode is stored twice",
        sql="""select episode_id, count(*) as times, list(iteration || '/' || stage order by iteration, stage) as written_by
               from episodes semi join (select episode_id from episodes where iteration = $iteration) using (episode_id)
               group by episode_id having times > 1 and max(iteration) = $iteration""",
    ),
    Invariant(
        name="instances_of_one_split",
        asset="rollouts",
        meaning="an instance belongs to one split, whichever policy played it: what is evaluated on is never trained on",
        sql="""select task_id, task_name, seed, list(distinct split order by split) as splits, min(episode_id) as episode_id
               from episodes semi join (select task_id, seed from episodes where iteration = $iteration) using (task_id, seed)
               group by task_id, task_name, seed having count(distinct split) > 1 and max(iteration) = $iteration
               union all
               select e.task_id, e.task_name, e.seed, [e.split, i.split], e.episode_id from episodes e join task_instances i
               using (task_id, seed) where e.iteration = $iteration and e.split <> i.split""",
    ),
    Invariant(
        name="contents_of_one_split",
        asset="rollouts",
        meaning="the first screen of an evaluated page was in no training episode: pages are identified by it, not by seeds",
        fix="withdraw the samples of these episodes, and make its contents.json again (`python -m sandbox.tasks.contents`)",
        sql="""with shown as (
                 select e.* from episodes e join (select distinct task_id from tasks where is_known_by_first_screen) using (task_id)
                 where e.content_id is not null and e.iteration <= $iteration)
               select content_id, list(distinct split order by split) as splits, list(distinct task_name order by task_name) as tasks,
                 min(episode_id) filter (split = 'train') as learned_from, min(episode_id) filter (split <> 'train') as evaluated
               from shown where content_id in (select content_id from episodes where iteration = $iteration)
               group by content_id having count(distinct split) > 1""",
    ),
    Invariant(
        name="pool_without_duplicates",
        asset="rollouts",
        meaning="no two instances of the task pool are the same, within a split or across splits",
        sql="""select content_id, count(*) as times, list(task_id || '/' || seed order by seed) as instances, list(distinct split) as splits
               from task_instances
               semi join (select content_id from task_instances where iteration = $iteration) using (content_id)
               group by content_id having times > 1 and max(iteration) = $iteration""",
    ),
    Invariant(
        name="policies_registered",
        asset="rollouts",
        meaning="every policy that acted for the datasets is a registered checkpoint; the gateway's may be of a server elsewhere",
        sql=f"""select e.episode_id, e.policy_id from episodes e anti join checkpoints c on c.checkpoint_id = e.policy_id
               where e.iteration = $iteration and e.purpose in {ROUTED_PURPOSES} and e.purpose <> 'gateway'""",
    ),
    Invariant(
        name="screenshots_present",
        asset="rollouts",
        meaning="every screenshot that a step names is stored",
        sql="""select s.episode_id, s.step_index, s.screenshot_id, s.stage from steps s anti join screenshots c using (screenshot_id)
               where s.iteration = $iteration and s.screenshot_id is not null""",
    ),
    Invariant(
        name="steps_of_an_episode_complete",
        asset="rollouts",
        meaning="an episode has as many steps as it says, numbered from 0 without a gap",
        sql="""select e.episode_id, e.stage, e.num_steps, count(s.step_index) as stored, min(s.step_index) as first,
               max(s.step_index) as last
               from episodes e left join steps s on s.episode_id = e.episode_id and s.iteration = e.iteration and s.stage = e.stage
               where e.iteration = $iteration and e.outcome <> 'crashed' group by all
               having stored <> e.num_steps or (stored > 0 and (first <> 0 or last <> stored - 1))""",
    ),
    Invariant(
        name="tokens_with_their_log_probabilities",
        asset="rollouts",
        meaning="every token that a policy wrote has its log-probability",
        sql="""select episode_id, step_index, stage, len(response_token_ids) as tokens, len(response_logprobs) as logprobs from steps
               where iteration = $iteration and tokens <> logprobs and logprobs > 0""",
    ),
    Invariant(
        name="outcomes_with_their_rewards",
        asset="rollouts",
        meaning="a crash of the infrastructure is never a reward, and has its error",
        sql="""select episode_id, stage, outcome, reward, error from episodes
               where iteration = $iteration and outcome = 'crashed' and (reward is not null or error is null)""",
    ),
    Invariant(
        name="annotations_of_steps_there_are",
        asset="annotations",
        meaning="an annotation is about a step that was taken",
        sql="""select a.annotation_id, a.episode_id, a.step_index from annotations a anti join steps s using (episode_id, step_index)
               where a.iteration = $iteration and not a.withdrawn""",
    ),
    Invariant(
        name="verdicts_follow_their_scores",
        asset="routes",
        meaning="a judge passes episodes whose score reaches its threshold, and no others",
        fix=ROUTE_AGAIN,
        sql="""select episode_id, judge, score, threshold, passed from verdicts
               where iteration = $iteration and passed is distinct from (score >= threshold)""",
    ),
    Invariant(
        name="verdict_for_every_end",
        asset="routes",
        meaning="in each domain the verifier has given V to every finished episode, or to none; where to none, a judge has, or the episode "
        "is withheld without V. An episode that the infrastructure crashed has no V of its verifier",
        fix=ROUTE_AGAIN,
        sql=f"""with judged as (
                 select e.episode_id, e.domain, e.outcome, count(v.judge) filter (v.judge = 'verifier') as num_verdicts,
                   count(v.judge) as num_judges, e.outcome = 'crashed' or bool_or(e.reward is null) as is_broken
                 from episodes e left join verdicts v on v.episode_id = e.episode_id and v.kind = 'verdict'
                 where e.iteration = $iteration and e.purpose in {ROUTED_PURPOSES} group by e.episode_id, e.domain, e.outcome),
               heard as (select domain, max(num_verdicts) > 0 as has_verifier from judged where not is_broken group by domain)
               select j.episode_id, j.domain, j.outcome, j.num_verdicts from judged j left join heard h using (domain)
               left join routes r on r.episode_id = j.episode_id and r.iteration = $iteration
               where (j.is_broken and j.num_verdicts > 0)
                 or (not j.is_broken and h.has_verifier and j.num_verdicts = 0)
                 or (not j.is_broken and j.num_judges = 0 and not coalesce(r.route = 'withheld' and r.decided_verdict is null, false))""",
    ),
    Invariant(
        name="routing_total_and_disjoint",
        asset="routes",
        meaning="every terminal episode of a rollout, an annotation or the gateway has exactly one route",
        fix=ROUTE_AGAIN,
        sql=f"""select e.episode_id, count(r.route) as num_routes
               from episodes e left join routes r on r.episode_id = e.episode_id and r.iteration = e.iteration
               where e.iteration = $iteration and e.purpose in {ROUTED_PURPOSES}
               group by all having num_routes <> 1
               union all
               select r.episode_id, 0 from routes r anti join episodes e using (episode_id) where r.iteration = $iteration""",
    ),
    Invariant(
        name="sft_only_successes_or_corrections",
        asset="sft_samples",
        meaning="D_SFT takes answers only from episodes with V=1 (where a failed one went wrong too) and from annotators",
        fix=WITHDRAW,
        sql="""select s.sample_id, s.stage, s.origin, s.episode_id, s.verdict, e.outcome, e.reward
               from sft_samples s left join episodes e using (episode_id)
               where s.iteration = $iteration and s.annotation_id is null and not s.withdrawn and s.verdict is distinct from true""",
    ),
    Invariant(
        name="sft_verdict_agrees_with_its_route",
        asset="sft_samples",
        meaning="a sample of D_SFT without an annotation is of an episode that was routed there with V=1, by a judge that gave it",
        fix=f"{ROUTE_AGAIN}; or {WITHDRAW}",
        sql="""select s.sample_id, s.stage, s.origin, s.episode_id, r.route, r.reason
               from sft_samples s left join routes r using (episode_id)
               where s.iteration = $iteration and s.annotation_id is null and not s.withdrawn
               and (r.route is not null or s.origin in ('rollout', 'gateway', 'correction', 'reflection'))
               and not (coalesce(r.route = 'sft' and r.decided_verdict, false) and exists (
                 from verdicts v
                 where v.episode_id = r.episode_id and v.judge = r.decided_by and abs(v.score - r.decided_score) < 0.005))""",
    ),
    Invariant(
        name="corrections_stand",
        asset="sft_samples",
        meaning="a corrected step comes from an annotation that stands and was not given up as beyond repair",
        fix=WITHDRAW,
        sql="""select s.sample_id, s.annotation_id, a.decision from sft_samples s join annotations a using (annotation_id)
               where s.iteration = $iteration and not s.withdrawn and (a.decision = 'beyond_repair' or a.withdrawn)""",
    ),
    *_of_samples("ct", "ct_samples"),
    *_of_samples("sft", "sft_samples"),
    *_of_samples("orm", "orm_dataset"),
    Invariant(
        name="orm_verdicts_are_true",
        asset="orm_dataset",
        meaning="a judge is trained on a person's verdict of an episode, else on its verifier's",
        sql="""with human as (
                 select episode_id, passed from verdicts where origin = 'human' and kind = 'verdict'
                 qualify row_number() over (partition by episode_id order by iteration desc, judge_version desc, stage desc) = 1),
               known as (select episode_id, max(reward) as reward from episodes group by episode_id)
               select s.sample_id, s.episode_id, s.verdict, h.passed as person, k.reward
               from orm_samples s left join human h using (episode_id) left join known k using (episode_id)
               where s.iteration = $iteration and not s.withdrawn
               and not coalesce(case when h.passed is not null then s.verdict = h.passed
                                when s.verdict then k.reward > 0 else k.reward < 1 end, false)""",
    ),
)
