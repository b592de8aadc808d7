"""`flywheel release promote|hold|rollback` as jobs of Dagster's page: one op each, whose configuration says which policy, who and why."""

from collections.abc import Callable

import dagster as dg

from assets.iterations.handoff import report_inputs
from assets.stages.failures import retried
from assets.stages.resources import WarehouseResource
from warehouse.lineage import releases
from warehouse.lineage.releases import Change

BY = dg.Field(str, description="who decides; kept with the change")
REASON = dg.Field(str, description="why; kept with the change")
POLICY = dg.Field(str, description="a checkpoint's id, or ITERATION/STAGE, e.g. 0003/merged_policy")
BACK_TO = dg.Field(str, is_required=False, description="the release to go back to; without it the one that was live before")


def _job(name: str, description: str, policy: dg.Field, change: Callable[..., Change]) -> dg.JobDefinition:
    @dg.op(name=f"{name}_release", config_schema={"policy": policy, "by": BY, "reason": REASON}, description=description)
    @retried
    def decide(context: dg.OpExecutionContext, tables: WarehouseResource) -> None:
        given = context.op_config
        made = change(tables.warehouse, given.get("policy"), by=given["by"], reason=given["reason"])
        context.log.info(f"{made.release} ({made.policy.checkpoint_id}) was {made.before} and is {made.state}; live: {made.live_id}")
        context.add_output_metadata({"policy": made.policy.checkpoint_id, "state": made.state, "live": made.live_id or "none"})
        report_inputs(context.instance, tables.warehouse)

    @dg.job(name=f"release_{name}", description=description, executor_def=dg.in_process_executor)
    def job() -> None:
        decide()

    return job


RELEASE_JOBS = [
    _job("promote", "Make a policy live, whatever the gate decided.", POLICY, releases.promote),
    _job("hold", "Keep a candidate from being released until a person promotes it.", POLICY, releases.hold),
    _job("rollback", "Take the live release back, for one that was live before.", BACK_TO, releases.rollback),
]
