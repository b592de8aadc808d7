"""Asset checks: the Great Expectations suites of the catalogue, and the flywheel's invariants. Blocking where a bad value would poison
what follows. The gate of value pretraining is value_gate.py's.

A check reads the warehouse only, so it can be run again on any iteration. Each query of INVARIANTS lists the rows that break a
rule: none is right.
"""

import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import dagster as dg
import duckdb

from assets.partitions import ITERATIONS
from assets.resources import WarehouseResource
from warehouse.expectations import ValidationReport, build_data_docs, validate
from warehouse.query import connect
from warehouse.stages import SEED_ITERATION

ROWS_SHOWN = 20
MESSAGE_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """A rule about one asset: `sql` lists its violations, with `$iteration` bound."""

    name: str
    asset: str
    meaning: str
    sql: str


INVARIANTS = (
    Invariant(
        name="demonstrations_on_train_only",
        asset="seed_demonstrations",
        meaning="what the oracle demonstrated are solved train instances",
        sql="""select s.sample_id, e.task_name, e.seed, e.split, e.outcome from sft_samples s left join episodes e using (episode_id)
               where s.iteration = $iteration and s.origin = 'demonstration'
               and (e.split is distinct from 'train' or e.outcome is distinct from 'success')""",
    ),
    Invariant(
        name="merge_weights_on_simplex",
        asset="merged_policy",
        meaning="the weights of the merge are 0 or more and add up to 1",
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
        meaning="a specialist follows its critic only once that has explained as much variance as the gate of value pretraining asks, "
        "unless its gate_policy is open",
        sql="""select m.run, m.step from training_metrics m join checkpoints c on c.iteration = m.iteration and c.stage = m.run
               where m.iteration = $iteration and m.metric = 'critic_steers' and m.value > 0
               and json_extract_string(c.config, '$.gate_policy') is distinct from 'open' and not exists (
                 from training_metrics g where g.iteration = m.iteration and g.run = m.run and g.step <= m.step
                 and g.metric = 'gate_explained_variance'
                 and g.value > cast(json_extract_string(c.config, '$.gate_explained_variance') as double))""",
    ),
    Invariant(
        name="routing_total_and_disjoint",
        asset="routes",
        meaning="every terminal rollout or annotation episode has exactly one route",
        sql="""select e.episode_id, count(r.route) as num_routes
               from episodes e left join routes r on r.episode_id = e.episode_id and r.iteration = e.iteration
               where e.iteration = $iteration and e.purpose in ('rollout', 'annotation')
               group by all having num_routes <> 1
               union all
               select r.episode_id, 0 from routes r anti join episodes e using (episode_id) where r.iteration = $iteration""",
    ),
    Invariant(
        name="sft_only_successes_or_corrections",
        asset="sft_samples",
        meaning="D_SFT takes whole episodes only with V=1, and steps only from an annotation",
        sql="""select sample_id, episode_id, verdict from sft_samples
               where iteration = $iteration and annotation_id is null and verdict is distinct from true""",
    ),
    Invariant(
        name="sft_verdict_agrees_with_verifier",
        asset="sft_samples",
        meaning="the verdict a sample carries is that of whoever was to be heard first: a person, the verifier, a judge, the ORM",
        sql="""with newest as (
                 select * from verdicts where kind = 'verdict'
                 qualify row_number() over (partition by episode_id, judge order by iteration desc, judge_version desc, stage desc) = 1),
               heard as (
                 select episode_id, arg_min(passed, coalesce(list_position(['human', 'verifier', 'judge', 'orm'], origin), 9)) as passed
                 from newest group by episode_id)
               select s.sample_id, s.episode_id from sft_samples s join heard h on h.episode_id = s.episode_id
               where s.iteration = $iteration and s.annotation_id is null and not h.passed""",
    ),
    *(
        Invariant(
            name=f"{kind}_trains_on_train_only",
            asset=f"{kind}_samples",
            meaning="no eval or holdout instance is in a training set",
            sql=f"""select s.sample_id, e.task_name, e.seed, e.split from {kind}_samples s join episodes e using (episode_id)
                    where s.iteration = $iteration and e.split <> 'train'""",
        )
        for kind in ("ct", "sft")
    ),
    *(
        Invariant(
            name=f"{kind}_history_without_duplicates",
            asset=f"{kind}_samples",
            meaning="a sample joins once; history is append-only",
            sql=f"""select sample_id, count(*) as times from {kind}_samples where not withdrawn group by sample_id
                    having times > 1 and max(iteration) = $iteration""",
        )
        for kind in ("ct", "sft")
    ),
    Invariant(
        name="episodes_counted_once",
        asset="rollouts",
        meaning="no episode is stored twice",
        sql="select episode_id, count(*) as times from episodes group by episode_id having times > 1 and max(iteration) = $iteration",
    ),
    Invariant(
        name="policies_registered",
        asset="rollouts",
        meaning="whoever acted for the data sets is a registered checkpoint",
        sql="""select e.episode_id, e.policy_id from episodes e anti join checkpoints c on c.checkpoint_id = e.policy_id
               where e.iteration = $iteration and e.purpose in ('rollout', 'annotation')""",
    ),
    Invariant(
        name="screenshots_present",
        asset="rollouts",
        meaning="every screenshot that a step names is stored",
        sql="""select s.episode_id, s.step_index, s.screenshot_id from steps s anti join screenshots c using (screenshot_id)
               where s.iteration = $iteration and s.screenshot_id is not null""",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Checks that one op runs in one process (importing Great Expectations costs seconds) between two stages of the wheel.

    `suites` maps an asset to the tables whose suite guards it. Only checks on `guards` block what follows; checks on assets further
    upstream are shown there, but cannot block what has run already.
    """

    name: str
    guards: tuple[str, ...]
    suites: dict[str, tuple[str, ...]]
    is_seed: bool = False
    """Of assets without partitions, whose rows are iteration 0000's."""

    @property
    def invariants(self) -> tuple[Invariant, ...]:
        return tuple(invariant for invariant in INVARIANTS if invariant.asset in self.guards)

    def specs(self) -> list[dg.AssetCheckSpec]:
        return [
            *(self._spec(invariant.name, invariant.asset, invariant.meaning, blocking=True) for invariant in self.invariants),
            *(
                self._spec(
                    _suite_check(table),
                    asset,
                    f"The Great Expectations suite of `{table}`, made from the catalogue.",
                    blocking=asset in self.guards,
                )
                for asset, tables in self.suites.items()
                for table in tables
            ),
        ]

    def _spec(self, name: str, asset: str, description: str, *, blocking: bool) -> dg.AssetCheckSpec:
        with warnings.catch_warnings():
            # Without partitions a check loads all of its asset's. Dagster calls them a preview in the version that we pin, at every check.
            warnings.simplefilter("ignore", dg.PreviewWarning)
            partitions = None if self.is_seed else ITERATIONS
            return dg.AssetCheckSpec(name, asset=asset, description=description, blocking=blocking, partitions_def=partitions)


GATES = (
    Gate(
        name="seed_gate",
        guards=("seed_tutorials", "seed_demonstrations", "seed_policy"),
        suites={
            "tasks": ("tasks",),
            "seed_tutorials": ("ct_samples",),
            "seed_demonstrations": ("episodes", "steps", "screenshots", "sft_samples"),
            "seed_policy": ("checkpoints",),
        },
        is_seed=True,
    ),
    Gate(name="merge_gate", guards=("merged_policy",), suites={}),
    Gate(
        name="collection_gate",
        guards=("rollouts", "annotations"),
        suites={
            "sft_dataset": ("datasets",),
            "merged_policy": ("checkpoints", "training_metrics", "merge_candidates"),
            "evaluations": ("evaluations",),
            "rollouts": ("episodes", "steps", "screenshots"),
            "annotations": ("annotations",),
        },
    ),
    Gate(
        name="routing_gate",
        guards=("routes", "ct_samples", "sft_samples"),
        suites={"verdicts": ("verdicts",), "routes": ("routes",), "ct_samples": ("ct_samples",), "sft_samples": ("sft_samples",)},
    ),
)


def build_gate(gate: Gate) -> dg.AssetChecksDefinition:
    """The op of one gate."""

    @dg.multi_asset_check(name=gate.name, specs=gate.specs(), can_subset=True)
    def run_gate(context: dg.AssetCheckExecutionContext, tables: WarehouseResource) -> Iterator[dg.AssetCheckResult]:
        iteration, wanted = SEED_ITERATION if gate.is_seed else context.partition_key, context.selected_asset_check_keys
        with connect(tables.warehouse) as con:
            for invariant in gate.invariants:
                if dg.AssetCheckKey(dg.AssetKey(invariant.asset), invariant.name) in wanted:
                    yield _run_invariant(con, invariant, iteration)
        suites = [
            (asset, validate(tables.warehouse, table, iteration))
            for asset, names in gate.suites.items()
            for table in names
            if dg.AssetCheckKey(dg.AssetKey(asset), _suite_check(table)) in wanted
        ]
        if suites:
            docs = build_data_docs(tables.home, [report for _, report in suites])
            for asset, report in suites:
                yield _suite_result(asset, report, docs)

    return run_gate


def _suite_check(table: str) -> str:
    return f"expectations_{table}"


def _run_invariant(con: duckdb.DuckDBPyConnection, invariant: Invariant, iteration: str) -> dg.AssetCheckResult:
    violations = con.sql(invariant.sql, params={"iteration": iteration}).to_arrow_table()
    shown = json.loads(json.dumps(violations.slice(0, ROWS_SHOWN).to_pylist(), default=str))
    return dg.AssetCheckResult(
        passed=violations.num_rows == 0,
        asset_key=invariant.asset,
        check_name=invariant.name,
        description=f"{violations.num_rows} rows break the rule: {json.dumps(shown)[:MESSAGE_CHARS]}" if shown else invariant.meaning,
        metadata={"rule": invariant.meaning, "violations": violations.num_rows, "rows": dg.MetadataValue.json(shown)},
    )


def _suite_result(asset: str, report: ValidationReport, docs: Path) -> dg.AssetCheckResult:
    failures = json.loads(json.dumps([asdict(failure) for failure in report.failures], default=str))
    return dg.AssetCheckResult(
        passed=report.success,
        asset_key=asset,
        check_name=_suite_check(report.table),
        description=f"{len(failures)} expectations failed: {json.dumps(failures)[:MESSAGE_CHARS]}"
        if failures
        else "every expectation holds",
        metadata={
            "expectations": report.num_expectations,
            "failures": dg.MetadataValue.json(failures),
            "data docs": dg.MetadataValue.path(str(docs)),
        },
    )
