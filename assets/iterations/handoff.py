"""The handoff from iteration t to t+1, the back edge of the loop.

`iteration_input` is external: it is reported, not computed, so the graph stays a DAG. `iteration_output` closes an iteration once
its data has routed, its policy is released and the checks have passed: it draws the lineage, adds the next partition key and reports
`iteration_input` of t+1 with a data version made of (released policy, samples of D_CT and D_SFT up to t).
"""

from typing import Any

import dagster as dg

from assets.iterations.keys import next_key, previous_key
from assets.iterations.opened import write_opened
from assets.iterations.partitions import ITERATIONS
from assets.stages.asset_keys import ITERATION_OUTPUT
from assets.stages.metadata import ITERATIONS_DRAWN, describe, picture
from assets.stages.resources import WarehouseResource
from assets.stages.stage_assets import stage_asset
from warehouse.core.home import Home
from warehouse.core.identity import content_id
from warehouse.lineage import registry
from warehouse.lineage.iterations_graph import iterations_graph
from warehouse.reporting.iteration_summaries import summaries
from warehouse.reporting.svg import as_markdown
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

INPUT = dg.AssetKey("iteration_input")
SAMPLES = ("ct_samples", "sft_samples")
DATA_VERSION = "dagster/data_version"
"""Tag of a materialization, as Dagster reads it."""

iteration_input = dg.AssetSpec(
    INPUT,
    partitions_def=ITERATIONS,
    group_name="datasets",
    kinds={"deltalake"},
    description="What enters an iteration: the policy released before it, and the samples of D_CT and D_SFT so far.",
)


def open_iteration(instance: dg.DagsterInstance, warehouse: Warehouse, key: str, policy: registry.Registered) -> str:
    """Report the input of iteration `key` and add its partition; returns the data version."""
    data_version = _report_input(instance, warehouse, key, policy)
    # Last: an iteration whose partition exists counts as open, and its input is not reported again.
    add_iteration(instance, warehouse.home, key)
    return data_version


def report_inputs(instance: dg.DagsterInstance, warehouse: Warehouse) -> None:
    """Report the input of every open iteration again whose policy or samples have changed: what has read them becomes stale."""
    for key in sorted(instance.get_dynamic_partitions(str(ITERATIONS.name))):
        policy = registry.entering(warehouse, key, previous_key(key))
        latest = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=INPUT, asset_partitions=[key]), limit=1).records
        known = latest[0].asset_materialization if latest else None
        if known is None or (known.tags or {}).get(DATA_VERSION) != _data_version(warehouse, key, policy):
            _report_input(instance, warehouse, key, policy)


def _data_version(warehouse: Warehouse, key: str, policy: registry.Registered) -> str:
    """The same for the same policy and the same samples, however often they were written: an iteration that has read them does not become
    stale."""
    return content_id("input", {"policy": policy.checkpoint_id, **samples_before(warehouse, key)})


def _report_input(instance: dg.DagsterInstance, warehouse: Warehouse, key: str, policy: registry.Registered) -> str:
    versions = {table: warehouse.version(table) for table in SAMPLES}
    data_version = _data_version(warehouse, key, policy)
    instance.report_runless_asset_event(
        dg.AssetMaterialization(
            INPUT,
            partition=key,
            metadata={
                "policy": policy.checkpoint_id,
                "released by": f"{policy.iteration}/{policy.stage}",
                "lineage": dg.MetadataValue.asset(ITERATION_OUTPUT),
                **versions,
            },
            tags={DATA_VERSION: data_version},
        )
    )
    return data_version


def add_iteration(instance: dg.DagsterInstance, home: Home, key: str) -> None:
    """Add the partition after recording it in the home: a process that is killed in between adds it when it is run again."""
    write_opened(home, {*instance.get_dynamic_partitions(str(ITERATIONS.name)), key})
    instance.add_dynamic_partitions(str(ITERATIONS.name), [key])


def samples_before(warehouse: Warehouse, key: str) -> dict[str, list[str]]:
    """The ids of every sample that iteration `key` may learn from, by table."""
    with connect(warehouse, tables=SAMPLES) as con:
        return {
            table: [
                sample_id
                for (sample_id,) in con.execute(
                    f"select distinct sample_id from {table} where iteration < ? and not withdrawn order by all", [key]
                ).fetchall()
            ]
            for table in SAMPLES
        }


@stage_asset(
    group_name="routing",
    kinds={"duckdb"},
    deps=["routes", "ct_samples", "sft_samples", "released_policy", "evaluations"],
    description="Closes the iteration: lineage drawing, and the input of the next one.",
)
def iteration_output(context: dg.AssetExecutionContext, tables: WarehouseResource) -> dg.MaterializeResult[None]:
    warehouse = tables.warehouse
    with connect(warehouse, tables=["evaluations"]) as con:
        found = summaries(warehouse)
        (warehouse.home.reports / "lineage.svg").write_text(iterations_graph(con, found).to_svg())
        drawing = iterations_graph(con, dict(list(found.items())[-ITERATIONS_DRAWN:])).to_svg()
    released = registry.acting(warehouse, context.partition_key)
    following = next_key(context.partition_key)
    version = open_iteration(context.instance, warehouse, following, released)
    shown: dict[str, Any] = {
        "across iterations": picture(as_markdown(drawing)),
        "next iteration": following,
        "released policy": released.checkpoint_id,
    }
    return dg.MaterializeResult(data_version=dg.DataVersion(version), metadata=describe(read=warehouse.versions(), **shown))
