"""The check on each RL specialist that says whether its critic was good enough to steer (UI-TARS-2 on value pretraining), and in how many
rounds.

A critic that never was is an error that keeps the specialist out of the merge where the run was to block (gate_policy), and a warning where
the per-task baseline stood in for it or it steered all the same. A specialist of an algorithm without a critic passes.
"""

import warnings
from collections.abc import Iterator

import dagster as dg
import duckdb

from assets.iterations.partitions import ITERATIONS
from assets.stages.asset_keys import rl_asset_key
from assets.stages.failures import ERROR_TYPE
from assets.stages.resources import WarehouseResource
from warehouse.core.errors import ValueGateNotPassed
from warehouse.core.stages import rl_stage
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

VALUE_GATE = "value_pretraining_gate"
MEANING = "the critic passed its gate: value loss below that of saying 0, explained variance above the threshold"
_CURVES = """
    select coalesce(json_extract_string(c.config, '$.algorithm'), 'ppo') = 'ppo' and bool_or(m.metric = 'value_gate') as has_critic,
           c.checkpoint_id is not null as made_policy,
           json_extract_string(c.config, '$.gate_policy') as policy,
           cast(json_extract_string(c.config, '$.gate_explained_variance') as double) as threshold,
           max(m.value) filter (m.metric = 'value_gate') as passed,
           sum(m.value) filter (m.metric = 'critic_steers') as rounds_steered,
           count(*) filter (m.metric = 'critic_steers') as rounds,
           arg_max(m.value, m.step) filter (m.metric = 'gate_explained_variance') as explained_variance,
           arg_max(m.value, m.step) filter (m.metric = 'value_loss_initial') as value_loss_initial,
           arg_max(m.value, m.step) filter (m.metric = 'value_loss_now') as value_loss_now
    from training_metrics m left join checkpoints c on c.iteration = m.iteration and c.stage = m.run and c.checkpoint_id = m.checkpoint_id
    where m.iteration = $iteration and m.run = $stage group by c.checkpoint_id, c.config
"""
"""Of a run that failed only the curves are there, under the checkpoint that it began with."""


def build_value_gate(names: tuple[str, ...]) -> dg.AssetChecksDefinition:
    """The op that judges the specialists. `names` are domains, or what stands in place of one where several are trained jointly."""
    stages = {rl_asset_key(name): rl_stage(name) for name in names}

    @dg.multi_asset_check(name="value_gate", specs=[_spec(key) for key in stages], can_subset=True)
    def run_value_gate(context: dg.AssetCheckExecutionContext, tables: WarehouseResource) -> Iterator[dg.AssetCheckResult]:
        with connect(tables.warehouse) as con:
            for key, stage in stages.items():
                if dg.AssetCheckKey(key, VALUE_GATE) in context.selected_asset_check_keys:
                    yield _judge(con, key, stage, context.partition_key)

    return run_value_gate


def _spec(key: dg.AssetKey) -> dg.AssetCheckSpec:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # of partitions, see assets/gates/checks.py
        return dg.AssetCheckSpec(VALUE_GATE, asset=key, description=MEANING, blocking=True, partitions_def=ITERATIONS)


def report_if_shut(context: dg.AssetExecutionContext, warehouse: Warehouse, name: str, failure: dg.Failure) -> None:
    """Report the check of a run that its gate has ended: the op that would have judged it is skipped when the run's asset fails."""
    error = failure.metadata.get(ERROR_TYPE)
    if error is None or error.value != ValueGateNotPassed.__name__:
        return
    with connect(warehouse) as con:
        found = _judge(con, rl_asset_key(name), rl_stage(name), context.partition_key)
    context.instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            rl_asset_key(name),
            VALUE_GATE,
            passed=False,
            metadata={**found.metadata, "run": context.run.run_id},
            description=f"{found.description}. {failure.description}" if found.metadata else failure.description,
            blocking=True,
            partition=context.partition_key,
        )
    )


def _judge(con: duckdb.DuckDBPyConnection, key: dg.AssetKey, stage: str, iteration: str) -> dg.AssetCheckResult:
    found = con.sql(_CURVES, params={"iteration": iteration, "stage": stage}).to_arrow_table().to_pylist()
    if not found or not found[0]["has_critic"]:
        return dg.AssetCheckResult(passed=True, asset_key=key, check_name=VALUE_GATE, description="the specialist has no critic")
    row = found[0]
    passed, is_error = bool(row["passed"]), row["policy"] == "block" or not row["made_policy"]
    text = f"explained variance {row['explained_variance']:.3f}"
    text += "" if row["threshold"] is None else f", threshold {row['threshold']:g}"
    if row["rounds"]:
        text += f", the critic steered in {row['rounds_steered']:.0f} of {row['rounds']} rounds"
    if not row["made_policy"]:
        text += ": the run failed and left no policy"
    elif not passed:
        text += {"block": ": the merge waits", "open": ": it steered all the same"}.get(row["policy"], ": the per-task baseline steered")
    return dg.AssetCheckResult(
        passed=passed,
        asset_key=key,
        check_name=VALUE_GATE,
        severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
        description=text,
        metadata={name: value for name, value in row.items() if isinstance(value, float)},
    )
