"""Synthetic homes with a long history: as many iterations as asked for, each with every table that an iteration writes.

Rows have the schema, stages, proportions and relations of the quickstart's: episodes of two RL runs, of four evaluated policies, of
rollouts and of annotation; steps, verdicts, routes, annotations and samples of those that are routed; dataset snapshots of all samples so
far; checkpoints that name their parents and datasets; curves, merge candidates, stage results and the files of Data Docs. They are smaller
than real ones: two steps an episode with screens of a few lines, few screenshots, nine verdicts an episode. Nothing was trained, and
Dagster knows nothing of it. DuckDB makes the rows, the warehouse stores them: the same numbers give the same ids. Long homes are made
sooner where several iterations are committed together: the files are the same, the log is shorter.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake.transaction import AddAction
from PIL import Image

from assets.iterations.opened import write_opened
from warehouse.core.home import Home
from warehouse.core.identity import bytes_id, content_id
from warehouse.storage.catalogue import TABLES
from warehouse.storage.files.data_files import write_files
from warehouse.storage.log import writing
from warehouse.storage.rows import to_arrow
from warehouse.storage.tables import Warehouse

STEPS_PER_EPISODE = 2
SCREENSHOTS = 8
"""New pictures an iteration; steps of its rollouts show one of them."""
TUTORIALS = 2_000
DOMAINS = ("pointing", "forms")
TASKS_PER_DOMAIN = 8
ROLES = ("sft_model", *(f"rl_{domain}" for domain in DOMAINS), "merged_policy")
SHARES = {"rl": 0.36, "evaluation": 0.42, "rollouts": 0.10, "annotations": 0.12}
"""Of an iteration's episodes, by what they are run for."""
FILTERS = ("complete", "efficient", "grounded", "leak", "loop", "novel", "thoughtful", "duplicate")
RL_METRICS = (
    "reward",
    "success",
    "steps_per_episode",
    "entropy",
    "kl",
    "clip_fraction",
    "grad_norm",
    "learning_rate",
    "explained_variance",
    "value_loss",
    "mismatch_kl",
    "lambda_policy",
    "think_tokens_per_step",
    "invalid_actions",
)
ROUNDS = 10
NOTHING_FROM_PEOPLE = ("tasks", "episodes", "steps", "annotations", "verdicts")
CHECKED = (
    "datasets",
    "checkpoints",
    "training_metrics",
    "evaluations",
    "episodes",
    "steps",
    "verdicts",
    "routes",
    "ct_samples",
    "sft_samples",
)
"""Tables that a page of Data Docs is about in each iteration."""
_MACROS = (
    "create macro draw(hashed, num) as (hashed % num)::bigint",
    "create macro id(kind, of) as printf('%s-%016x', kind, hash(kind, of))",
    """create macro chat(asked, answered) as [
        {role: 'user', content: asked, screenshot_id: null::varchar, loss: 0.0::float},
        {role: 'assistant', content: answered, screenshot_id: null::varchar, loss: 1.0::float}]""",
)
_TASKS = f"""
create table tasks_made as
select id('task', d * 100 + t) as task_id, 'task-' || domain || '-' || t as name, domain, d * {TASKS_PER_DOMAIN} + t as place
from (select unnest(range({len(DOMAINS)})) as d, unnest([{", ".join(f"'{domain}'" for domain in DOMAINS)}]) as domain),
    range({TASKS_PER_DOMAIN}) tasks(t)
"""
_EPISODES = """
create or replace temp table made as
select
    id('episode', $stage || '/' || $iteration || '/' || $role || '/' || i) as episode_id, $purpose as purpose, t.task_id,
    t.name as task_name, t.domain,
    case when $purpose = 'evaluation' then i // num.tasks else $number * 100000 + i // num.tasks end as seed,
    case when $purpose <> 'evaluation' then 'train' when (i // num.tasks) % 2 = 0 then 'eval' else 'holdout' end as split,
    0::bigint as attempt, $policy as policy_id, case when $purpose = 'evaluation' then 0.0 else 1.0 end::double as temperature,
    'Click the item ' || draw(hash(i, $number), 1000) || ' of ' || t.name as instruction,
    case when is_crashed then 'crashed' when is_solved then 'success' else 'failure' end as outcome,
    case when is_crashed then null when is_solved then 1.0 else 0.0 end::double as reward,
    case when not is_crashed then id('content', t.task_id || '/' || seed) end as content_id,
    case when is_crashed then 0 else $steps end::bigint as num_steps, 0::bigint as num_retries,
    case when is_crashed then 'the browser is gone' end as error, 900.0::double as duration_ms, 'environment-1' as environment
from (select i, draw(hash(i, $stage, $number, $role, 'c'), 500) = 0 and $purpose <> 'evaluation' as is_crashed,
             draw(hash(i, $stage, $number, $role, 's'), 100) < $solved as is_solved from range($num) made(i)),
    (select count(*) as tasks from tasks_made where list_contains($domains, domain)) num
join (select *, row_number() over (order by place) - 1 as seat from tasks_made where list_contains($domains, domain)) t
    on t.seat = i % num.tasks
"""
_STEPS = """
create or replace temp table made_steps as
select
    e.episode_id, s::bigint as step_index, e.policy_id,
    '"Ok ' || draw(hash(e.episode_id, s), 97) || '" <button> [2]' || chr(10) || '"Name" <textbox> [3]' as observation,
    case when $pictures > 0 and s = 0 then shots.ids[1 + draw(hash(e.episode_id), $pictures)] end as screenshot_id,
    chat(e.instruction, '')[1:1] as messages, 'Thought click Ok Action click [2]' as response, 'click Ok' as thought,
    '{"kind":"click","x":' || draw(hash(e.episode_id, s), 160) || ',"y":40,"button":"left","count":1}' as action,
    [1, 2, 3]::bigint[] as prompt_token_ids, [4, 5]::bigint[] as response_token_ids, [-0.5, -0.25]::float[] as response_logprobs,
    null::bigint[] as response_versions, 0.0::double as reward, 20.0::double as latency_ms
from made e, (select $shots::varchar[] as ids) shots, unnest(range(e.num_steps)) u(s)
"""
_VERDICTS = f"""
select episode_id, judge, '1' as judge_version, case when judge = 'verifier' then 'verdict' else 'filter' end as kind,
    case when judge = 'verifier' then 'verifier' else 'filter' end as origin,
    score, 0.5::double as threshold, score >= 0.5 as passed, []::varchar[] as reasons, null::bigint as cost_tokens, null::double as cost_ms
from (select episode_id, judge, case when judge = 'verifier' then reward else 1.0 - 0.6 * (draw(hash(episode_id, judge), 40) = 0)::int end
      as score from routed, unnest([{", ".join(f"'{name}'" for name in ("verifier", *FILTERS))}]) j(judge)
      where judge <> 'verifier' or outcome <> 'crashed')
"""
_ROUTES = """
select episode_id,
    case when outcome = 'crashed' or is_duplicate then 'withheld' when reward > 0 and not is_poor then 'sft' else 'ct' end as route,
    case when outcome = 'crashed' then 'crashed' when is_duplicate then 'duplicate 0.4 < 0.5' when reward = 0 then 'V=0: verifier 0 < 0.5'
         when is_poor then 'V=1 (verifier 1 >= 0.5), demoted by loop 0.4 < 0.5' else 'V=1: verifier 1 >= 0.5' end as reason
from (select *, draw(hash(episode_id, 'loop'), 40) = 0 as is_poor, draw(hash(episode_id, 'duplicate'), 40) = 0 as is_duplicate from routed)
"""
_NOTES = """
create or replace temp table notes as
select id('annotation', s.episode_id || s.step_index) as annotation_id, s.episode_id, s.step_index, 'oracle' as annotator,
    'scripted' as origin, 'relabel' as mode, case when draw(hash(s.episode_id, s.step_index), 3) = 0 then 'override' else 'accept' end
    as decision, s.response as proposal, s.response, s.messages, false as withdrawn, s.episode_id || s.step_index as place, e.domain
from made_steps s join made e using (episode_id)
"""
_SAMPLES = """
create or replace temp table samples as
select id('sample', s.episode_id || s.step_index) as sample_id, 'rollout' as origin, e.domain, chat(e.instruction, s.response) as messages,
    s.episode_id, s.step_index, null::varchar as annotation_id, e.reward > 0 as verdict, false as withdrawn, r.route
from kept_steps s join routed e using (episode_id) join routes_made r using (episode_id)
where r.route <> 'withheld' and e.purpose = 'rollout'
union all
select id('sample', place), 'annotation', domain, chat('as before', response), episode_id, step_index, annotation_id, true, false, 'sft'
from notes
"""
_COMPONENT = """case origin when 'tutorial' then 'tutorial' when 'rollout' then case {route} when 'ct' then 'failure' else 'rollout' end
else 'approved' end"""
"""Of the sample's part in a dataset's mixture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of a home: iterations after the seed, and episodes in each."""

    iterations: int
    episodes: int


class History:
    """Grows a home iteration by iteration. What was there before is known again, so a home can be made longer by another process."""

    def __init__(self, home: Home, num_episodes: int, together: int = 1) -> None:
        self.warehouse, self._num, self._together = Warehouse(home), num_episodes, together
        self._waiting: dict[str, list[AddAction]] = {}
        self._con = duckdb.connect()
        for macro in _MACROS:
            self._con.execute(macro)
        self._con.execute(_TASKS)
        self._con.execute("create table members (kind varchar, sample_id varchar, component varchar, iteration varchar)")
        self._parent = "checkpoint-seed"
        self._writers: dict[str, ThreadPoolExecutor] = {}
        self._written: list[Future[int]] = []

    def seed(self) -> None:
        """Tasks, tutorials, the random policy."""
        for table in TABLES if self._together > 1 else ():  # rows written together wait for their commit, and a table begins with one
            with self.warehouse.maintaining(table):
                pass
        tasks = self._con.sql(
            "select task_id, 'miniwob' as source, name, domain, 8::bigint as max_steps, false as held_out, '1' as version from tasks_made"
        ).to_arrow_table()
        self._put("tasks", tasks, "0000", "tasks")
        instances = self._con.sql(
            "select task_id, seed::bigint as seed, case when seed % 2 = 0 then 'eval' else 'holdout' end as split, "
            "id('content', task_id || seed) as content_id, null::varchar as instruction, null::double as difficulty, '{}' as provenance, "
            "'evaluated on' as why from tasks_made, range(20) seeds(seed)"
        ).to_arrow_table()
        self._put("task_instances", instances, "0000", "tasks")
        self._con.execute(
            f"create or replace temp table tutorials as select id('sample', 'tutorial' || i) as sample_id, 'tutorial' as origin, "
            f"'general' as domain, chat('read ' || i, 'so') as messages, null::varchar as episode_id, null::bigint as step_index, "
            f"null::varchar as annotation_id, null::boolean as verdict, false as withdrawn from range({TUTORIALS}) t(i)"
        )
        self._put("ct_samples", self._con.sql("from tutorials").to_arrow_table(), "0000", "seed_tutorials")
        self._con.execute("insert into members select 'ct', sample_id, 'tutorial', '0000' from tutorials")
        self._checkpoint("0000", "seed_policy", self._parent, [], [])
        self._wait()

    def resume(self, number: int) -> None:
        """Take up a home that has `number` iterations."""
        for kind in ("ct", "sft"):
            samples = self.warehouse.read(f"{kind}_samples", columns=["sample_id", "origin", "iteration"])
            self._con.register("held", samples)
            component = _COMPONENT.format(route=f"'{kind}'")
            self._con.execute(f"insert into members select '{kind}', sample_id, {component}, iteration from held")
            self._con.unregister("held")
        if number:
            self._parent = self._id(number, "merged_policy")

    def iterate(self, number: int) -> None:
        """Everything that iteration `number` writes."""
        iteration = f"{number:04d}"
        data = {kind: self._dataset(iteration, kind) for kind in ("ct", "sft")}
        start = self._models(iteration, number, data)
        self._rl(iteration, number)
        merged = self._merge(iteration, number, start)
        self._evaluate(iteration, number)
        self._collect(iteration, number, merged)
        self._wait()
        self._leave_files(iteration)
        write_opened(self.warehouse.home, [f"{opened:04d}" for opened in range(1, number + 2)])
        self._parent = merged

    def _put(self, table: str, rows: pa.Table | list[dict[str, Any]], iteration: str, stage: str) -> None:
        if isinstance(rows, pa.Table):
            spec = TABLES[table]
            wanted = pa.schema([field for field in spec.schema if field.name in rows.column_names])
            rows = rows.select(wanted.names).cast(wanted)
        if self._together > 1:
            place = {"iteration": iteration, "stage": stage}
            data = to_arrow(TABLES[table], rows, **place)
            self._waiting.setdefault(table, []).extend(write_files(TABLES[table], data, self.warehouse.folder(table), place))
            return
        # A commit waits for the disk and for Delta's threads more than it computes: tables are written beside each other, each in order.
        writer = self._writers.setdefault(table, ThreadPoolExecutor(1))
        self._written.append(writer.submit(self.warehouse.replace_partition, table, rows, iteration=iteration, stage=stage))

    def commit(self) -> None:
        """Of several iterations what has been written since."""
        for table, files in self._waiting.items():
            writer = self._writers.setdefault(table, ThreadPoolExecutor(1))
            self._written.append(writer.submit(self._commit, table, files))
        self._waiting = {}
        self._wait()

    def _commit(self, table: str, files: list[AddAction]) -> int:
        newest = files[-1].partition_values if files else {}
        with self.warehouse.maintaining(table) as (delta, after):
            return writing.commit(delta, TABLES[table], files, {}, {**newest, **after}, "append")

    def _wait(self) -> None:
        for written in self._written:
            written.result()
        self._written.clear()

    def _id(self, number: int, stage: str) -> str:
        return content_id("checkpoint", [number, stage])

    def _checkpoint(self, iteration: str, stage: str, checkpoint: str, parents: list[str], data: list[str], **config: Any) -> None:
        note = "the candidate does not lose: +0.004 [-0.010, +0.020] on 340 pairs" if stage == "released_policy" else ""
        row = {
            "checkpoint_id": checkpoint,
            "path": f"checkpoints/{iteration}/{stage}/{checkpoint}",
            "parents": parents,
            "datasets": data,
            "config": json.dumps(config),
            "metrics": "{}",
            "note": note,
        }
        self._put("checkpoints", [row], iteration, stage)

    def _dataset(self, iteration: str, kind: str) -> str:
        dataset = content_id("dataset", [iteration, kind])
        kinds = "('ct')" if kind == "ct" else "('sft')"
        rows = self._con.sql(
            f"select '{dataset}' as dataset_id, kind, sample_id, component, 0.5::double as weight from members where kind in {kinds}"
        ).to_arrow_table()
        self._put("datasets", rows, iteration, f"{kind}_dataset")
        return dataset

    def _models(self, iteration: str, number: int, data: dict[str, str]) -> str:
        for kind, parent in (("ct", self._parent), ("sft", self._id(number, "ct_model"))):
            stage = f"{kind}_model"
            checkpoint = self._id(number, stage)
            self._checkpoint(iteration, stage, checkpoint, [parent], [data[kind]])
            self._curves(iteration, stage, checkpoint, ("loss", "eval_loss", "learning_rate"), 20)
        return self._id(number, "sft_model")

    def _curves(self, iteration: str, stage: str, checkpoint: str, metrics: tuple[str, ...], num: int) -> None:
        rows = self._con.sql(
            "select $run as run, s::bigint as step, metric, "
            "(1.0 / (s + 1) + draw(hash(metric, s, $iteration), 100) / 1000)::double as value, "
            "$checkpoint as checkpoint_id from unnest($metrics::varchar[]) m(metric), range($num) steps(s)",
            params={"run": stage, "iteration": iteration, "checkpoint": checkpoint, "metrics": list(metrics), "num": num},
        ).to_arrow_table()
        self._put("training_metrics", rows, iteration, stage)

    def _rl(self, iteration: str, number: int) -> None:
        for domain in DOMAINS:
            stage = f"rl_{domain}"
            checkpoint = self._id(number, stage)
            num = int(self._num * SHARES["rl"]) // len(DOMAINS)
            self._play(number, stage, "rl", num, policy=content_id("policy", [number, stage]), domains=(domain,))
            self._store_played(iteration, stage)
            names = (*RL_METRICS, *(f"success/task-{domain}-{t}" for t in range(TASKS_PER_DOMAIN)))
            self._curves(iteration, stage, checkpoint, names, ROUNDS)
            self._checkpoint(iteration, stage, checkpoint, [self._id(number, "sft_model")], [])

    def _merge(self, iteration: str, number: int, start: str) -> str:
        parents = [self._id(number, f"rl_{domain}") for domain in DOMAINS]
        rows = self._con.sql(
            "select c as candidate, 'linear' as method, '{\"rl_pointing\": 0.5, \"rl_forms\": 0.5}' as weights, c = 2 as is_chosen, "
            "task_id, name as task_name, domain, 6::bigint as num_episodes, draw(hash(c, name, $number), 7) as num_success, "
            "0::bigint as num_crashed "
            "from tasks_made, range(5) candidates(c)",
            params={"number": number},
        ).to_arrow_table()
        self._put("merge_candidates", rows, iteration, "merged_policy")
        merged = self._id(number, "merged_policy")
        self._checkpoint(iteration, "merged_policy", merged, parents, [], weights=dict.fromkeys(parents, 0.5))
        self._checkpoint(iteration, "released_policy", merged, parents, [])
        return merged

    def _evaluate(self, iteration: str, number: int) -> None:
        num = int(self._num * SHARES["evaluation"]) // len(ROLES)
        episodes, steps, counts = [], [], []
        for role in ROLES:
            self._play(number, "evaluation", "evaluation", num, policy=self._id(number, role), role=role)
            episodes.append(self._con.sql("from made").to_arrow_table())
            steps.append(self._con.sql("from made_steps").to_arrow_table())
            counts.append(
                self._con.sql(
                    f"select policy_id as checkpoint_id, '{role}' as checkpoint_role, task_id, task_name, domain, split, "
                    "count(*)::bigint as num_episodes, count(*) filter (outcome = 'success')::bigint as num_success, 0::bigint as "
                    "num_crashed from made group by all"
                ).to_arrow_table()
            )
        self._put("evaluations", pa.concat_tables(counts), iteration, "evaluation")
        self._put("steps", pa.concat_tables(steps), iteration, "evaluation")
        self._put("episodes", pa.concat_tables(episodes), iteration, "evaluation")

    def _collect(self, iteration: str, number: int, policy: str) -> None:
        self._put("task_instances", [], iteration, "task_pool")
        shots = [_screenshot(number, place) for place in range(SCREENSHOTS)]
        self.warehouse.add_screenshots(shots)
        num, ids = int(self._num * SHARES["rollouts"]), [shot["screenshot_id"] for shot in shots]
        self._play(number, "rollouts", "rollout", num, policy=policy, shots=ids)
        self._store_played(iteration, "rollouts")
        self._con.execute("create or replace temp table routed as from made")
        self._con.execute("create or replace temp table kept_steps as from made_steps")
        self._play(number, "annotations", "annotation", int(self._num * SHARES["annotations"]), policy=policy)
        self._store_played(iteration, "annotations")
        self._con.execute("insert into routed from made")
        self._con.execute(_NOTES)
        self._put("annotations", self._con.sql("select * exclude (place, domain) from notes").to_arrow_table(), iteration, "annotations")
        for table in NOTHING_FROM_PEOPLE:
            self._put(table, [], iteration, "human_annotations")
        self._put("verdicts", self._con.sql(_VERDICTS).to_arrow_table(), iteration, "verdicts")
        self._put("verdicts", [], iteration, "judgements")
        self._put("judge_reports", [], iteration, "judge_reports")
        self._con.execute(f"create or replace temp table routes_made as {_ROUTES}")
        self._put("routes", self._con.sql("from routes_made").to_arrow_table(), iteration, "routing")
        self._con.execute(_SAMPLES)
        for kind in ("ct", "sft"):
            rows = self._con.sql(f"select * exclude (route) from samples where route = '{kind}'").to_arrow_table()
            self._put(f"{kind}_samples", rows, iteration, "routing")
        self._con.execute(f"insert into members select route, sample_id, {_COMPONENT.format(route='route')}, '{iteration}' from samples")
        self._put("orm_samples", [], iteration, "orm_samples")
        self._put("datasets", [], iteration, "orm_dataset")

    def _play(
        self,
        number: int,
        stage: str,
        purpose: str,
        num: int,
        *,
        policy: str,
        role: str = "",
        domains: tuple[str, ...] = DOMAINS,
        shots: list[str] | None = None,
    ) -> None:
        self._con.execute(
            _EPISODES,
            {
                "stage": stage,
                "iteration": f"{number:04d}",
                "number": number,
                "role": role,
                "purpose": purpose,
                "policy": policy,
                "num": num,
                "domains": list(domains),
                "steps": STEPS_PER_EPISODE,
                "solved": 60 + min(30, number),
            },
        )
        self._con.execute(_STEPS, {"pictures": len(shots or ()), "shots": shots or []})

    def _store_played(self, iteration: str, stage: str) -> None:
        self._put("steps", self._con.sql("from made_steps").to_arrow_table(), iteration, stage)
        self._put("episodes", self._con.sql("from made").to_arrow_table(), iteration, stage)

    def _leave_files(self, iteration: str) -> None:
        """Results of the stages, and the files of the data checks."""
        home = self.warehouse.home
        for stage in ("ct_model", "sft_model", "rl_pointing", "rl_forms", "merged_policy", "evaluation", "rollouts", "annotations"):
            folder = home.work / iteration / stage
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "result.json").write_text(json.dumps({"duration_s": 60.0}))
        docs = home.reports / "data_docs" / iteration
        docs.mkdir(parents=True, exist_ok=True)
        for table in CHECKED:
            reported = {"iteration": iteration, "table": table, "stage": None, "success": True, "num_rows": 1, "num_expectations": 20}
            (docs / f"{table}.json").write_text(json.dumps(reported | {"num_failures": 0}))
            (docs / f"{table}.html").write_text("<!doctype html>")


def make_history(home: Home, size: Size, *, begin: int = 0, together: int = 1) -> Iterator[int]:
    """A home of that size; yields each iteration's number once it is there. `begin`: iterations that it has already. `together`:
    so many iterations are committed at once."""
    history = History(home, size.episodes, together)
    if begin:
        history.resume(begin)
    else:
        history.seed()
    for number in range(begin + 1, size.iterations + 1):
        history.iterate(number)
        if together > 1 and (number % together == 0 or number == size.iterations):
            history.commit()
        yield number


def _screenshot(number: int, place: int) -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.new("RGB", (160, 210), (number % 256, place, number // 256)).save(buffer, "PNG")
    data = buffer.getvalue()
    return {"screenshot_id": bytes_id("screen", data), "format": "png", "width_px": 160, "height_px": 210, "data": data}


def main() -> None:
    import argparse
    import time

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--episodes", type=int, default=5_000, help="in each iteration")
    parser.add_argument("--begin", type=int, default=0, help="iterations that the home has already")
    parser.add_argument("--together", type=int, default=1, help="iterations that are committed at once")
    arguments = parser.parse_args()
    began = time.perf_counter()
    size = Size(iterations=arguments.iterations, episodes=arguments.episodes)
    for number in make_history(Home(arguments.home), size, begin=arguments.begin, together=arguments.together):
        if number % 10 == 0:
            print(f"{number} iterations, {time.perf_counter() - began:.0f} s, {time.process_time():.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
