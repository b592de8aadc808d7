"""The training stages: CT → SFT → RL for each domain → merge by parameter interpolation. The learning itself is `models`, run by workers.

CT may run on a slower cadence than SFT and RL; a skipped stage passes its input on, and says so.
"""

from typing import Any

import dagster as dg
from pydantic import BaseModel

from assets.critics import critic_start
from assets.gates.value_gate import report_if_shut
from assets.iterations.handoff import iteration_input
from assets.iterations.keys import iteration_number, previous_key
from assets.stages.asset_keys import rl_asset_key
from assets.stages.failures import RETRYABLE
from assets.stages.metadata import data_version, describe, of_result, picture
from assets.stages.requests import MergeRequest, RlRequest, StageResult, SupervisedRequest
from assets.stages.resources import ProfileResource, StageRunner, WarehouseResource
from assets.stages.stage_assets import is_asked_for, stage_asset
from warehouse.core.home import page_name
from warehouse.core.stages import joint_name, rl_stage
from warehouse.evaluation.merge_results import kept_by_search, mixtures
from warehouse.lineage import registry
from warehouse.reporting.merge_report import mixtures_chart, mixtures_table, retention_table
from warehouse.reporting.run_charts import run_curves, training_curves
from warehouse.reporting.steering import steered_rounds, steering_table
from warehouse.reporting.svg import as_markdown
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

GROUP = "training"


def policy_into(warehouse: Warehouse, iteration: str) -> registry.Registered:
    """The policy that enters an iteration: the live release, or the seed policy."""
    return registry.entering(warehouse, iteration, previous_key(iteration))


def _dataset_id(warehouse: Warehouse, iteration: str, kind: str) -> str:
    rows = warehouse.read("datasets", iteration=iteration, stage=f"{kind}_dataset", columns=["dataset_id"])
    if rows.num_rows == 0:
        words = f"{kind}_dataset of iteration {iteration} is empty: nothing to learn from"
        raise dg.Failure(words, metadata={RETRYABLE: False}, allow_retries=False)
    return str(rows["dataset_id"][0].as_py())


def _trained(warehouse: Warehouse, result: StageResult, iteration: str, stage: str, config: BaseModel) -> dg.MaterializeResult[None]:
    with connect(warehouse, tables=["training_metrics"], iterations=[iteration]) as con:
        curves = training_curves(con, iteration, stage)
        steered = steered_rounds(run_curves(con, iteration, stage))
    page = warehouse.home.reports / page_name(iteration, stage)
    more: dict[str, Any] = {"curves": picture(as_markdown(curves)), "page": dg.MetadataValue.path(page)} if curves else {}
    if steered:
        more["steering"] = dg.MetadataValue.md(steering_table(steered))
    return dg.MaterializeResult(
        data_version=dg.DataVersion(str(result.checkpoint_id)),
        metadata=of_result(result, config=config, **more, checkpoint=result.checkpoint_id),
    )


@stage_asset(
    table="checkpoints",
    group_name=GROUP,
    deps=["ct_dataset", iteration_input],
    kinds={"torch"},
    description="Continual training on D_CT, from the policy that entered the iteration.",
)
def ct_model(
    context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource, runner: StageRunner
) -> dg.MaterializeResult[None]:
    settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
    entering = policy_into(warehouse, iteration)
    number = iteration_number(iteration)
    if (number - 1) % settings.ct_every and not is_asked_for(context.run):
        note = f"CT runs every {settings.ct_every} iterations; {entering.checkpoint_id} is passed on"
        version = registry.pass_on(warehouse, entering, iteration=iteration, stage="ct_model", note=note)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(entering.checkpoint_id), metadata=describe(wrote={"checkpoints": version}, note=note)
        )
    config = settings.ct if number == 1 else settings.ct_refresh
    request = SupervisedRequest(
        iteration=iteration,
        stage="ct_model",
        seed=settings.seed,
        tracking=settings.tracking,
        hosts=settings.training,
        kind="ct",
        checkpoint_id=entering.checkpoint_id,
        dataset_id=_dataset_id(warehouse, iteration, "ct"),
        config=config,
    )
    return _trained(warehouse, runner.run(context, request), iteration, "ct_model", config)


@stage_asset(
    table="checkpoints",
    group_name=GROUP,
    deps=["sft_dataset", ct_model],
    kinds={"torch"},
    description="Supervised fine-tuning on D_SFT, from this iteration's CT checkpoint.",
)
def sft_model(
    context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource, runner: StageRunner
) -> dg.MaterializeResult[None]:
    settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
    config = settings.sft if iteration_number(iteration) == 1 else settings.sft_refresh
    request = SupervisedRequest(
        iteration=iteration,
        stage="sft_model",
        seed=settings.seed,
        tracking=settings.tracking,
        hosts=settings.training,
        kind="sft",
        config=config,
        checkpoint_id=registry.made_by(warehouse, iteration, "ct_model").checkpoint_id,
        dataset_id=_dataset_id(warehouse, iteration, "sft"),
    )
    return _trained(warehouse, runner.run(context, request), iteration, "sft_model", config)


def build_rl_asset(*domains: str) -> dg.AssetsDefinition:
    """The RL specialist of one domain, or one policy trained on several jointly."""
    name = domains[0] if len(domains) == 1 else joint_name(domains)

    @stage_asset(
        table="checkpoints",
        stage=rl_stage(name),
        key=rl_asset_key(name),
        group_name=GROUP,
        deps=[sft_model],
        kinds={"torch", "chromium"},
        description=f"RL on live {' and '.join(domains)} tasks, from this iteration's SFT checkpoint.",
    )
    def rl_model(
        context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource, runner: StageRunner
    ) -> dg.MaterializeResult[None]:
        settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
        request = RlRequest(
            iteration=iteration,
            stage=rl_stage(name),
            seed=settings.seed,
            tracking=settings.tracking,
            hosts=settings.training,
            domains=domains,
            skip_instances=0 if len(domains) == 1 else settings.rl_instances * (1 + settings.tasks.joint.index(domains)),
            acting=settings.acting,
            harness=settings.rl_harness,
            config=settings.rl,
            checkpoint_id=registry.made_by(warehouse, iteration, "sft_model").checkpoint_id,
            **critic_start(warehouse, iteration, name, settings.rl),
            replay_dataset_ids=tuple(_dataset_id(warehouse, iteration, kind) for kind in ("sft", "ct")),
        )
        try:
            result = runner.run(context, request)
        except dg.Failure as failure:
            report_if_shut(context, warehouse, name, failure)
            raise
        return _trained(warehouse, result, iteration, rl_stage(name), settings.rl)

    return rl_model


def _search_report(warehouse: Warehouse, iteration: str) -> dict[str, dg.MarkdownMetadataValue]:
    """Every mixture that was tried and what it solved of the eval split, as a picture and a table, and what the chosen one keeps of each
    specialist. Nothing where the weights were given."""
    with connect(warehouse, tables=["merge_candidates"], iterations=[iteration]) as con:
        tried = mixtures(con, iteration)
    if not tried:
        return {}
    return {
        "mixtures": picture(as_markdown(mixtures_chart(tried))),
        "search": dg.MetadataValue.md(mixtures_table(tried)),
        "kept": dg.MetadataValue.md(retention_table(kept_by_search(tried))),
    }


def build_merge_asset(domains: tuple[str, ...], joint: tuple[tuple[str, ...], ...] = ()) -> dg.AssetsDefinition:
    """The merge of all domains' specialists. `joint` are groups whose jointly trained policies are merged too."""
    names = (*domains, *(joint_name(group) for group in joint))

    @stage_asset(
        table="checkpoints",
        group_name=GROUP,
        deps=[rl_asset_key(name) for name in names],
        kinds={"safetensors"},
        description="θ = Σ α_k θ_k over the specialists, α on the simplex, chosen on the eval split.",
    )
    def merged_policy(
        context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource, runner: StageRunner
    ) -> dg.MaterializeResult[None]:
        settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
        request = MergeRequest(
            iteration=iteration,
            stage="merged_policy",
            seed=settings.seed,
            acting=settings.acting,
            merge=settings.merge,
            specialists={rl_stage(name): registry.made_by(warehouse, iteration, rl_stage(name)).checkpoint_id for name in names},
            base=registry.made_by(warehouse, iteration, "sft_model").checkpoint_id,
        )
        result = runner.run(context, request)
        return dg.MaterializeResult(
            data_version=data_version(result.checkpoint_id),
            metadata=of_result(result, config=settings.merge, checkpoint=result.checkpoint_id, **_search_report(warehouse, iteration)),
        )

    return merged_policy
