"""Evaluation on fixed sets and the release gate. Every choice reads the `eval` split, every reported curve the `holdout` split."""

import dagster as dg

from assets.iteration_keys import previous_key
from assets.keys import rl_asset_key
from assets.metadata import ITERATIONS_DRAWN, data_version, describe, of_result, picture
from assets.profile import Profile
from assets.requests import EvaluateRequest
from assets.resources import ProfileResource, StageRunner, WarehouseResource
from assets.stage_assets import stage_asset
from warehouse.core.stages import SEED_ITERATION, joint_name, rl_stage
from warehouse.evaluation.choosing import outcomes_to_choose
from warehouse.evaluation.evaluations import evaluations as evaluated
from warehouse.evaluation.evaluations import success_by_domain
from warehouse.evaluation.merge_results import retentions
from warehouse.evaluation.novelty import novelty
from warehouse.evaluation.statistics import compare_paired, release_gate
from warehouse.lineage import registry
from warehouse.reporting.charts import success_by_stage
from warehouse.reporting.merge_report import retention_table, successes_table
from warehouse.reporting.svg import as_markdown
from warehouse.storage.content import content_digest
from warehouse.storage.query import connect
from warehouse.storage.tables import Warehouse

GROUP = "release"


def build_evaluation_asset(domains: tuple[str, ...], joint: tuple[tuple[str, ...], ...] = ()) -> dg.AssetsDefinition:
    """Greedy success of every policy the iteration made; `joint` are the groups of domains that one policy each was trained on."""
    names = (*domains, *(joint_name(group) for group in joint))
    always = ("sft_model", *(rl_stage(name) for name in names), "merged_policy")

    @stage_asset(
        table="evaluations",
        stage="evaluation",
        group_name=GROUP,
        kinds={"chromium"},
        deps=["ct_model", "sft_model", *(rl_asset_key(name) for name in names), "merged_policy"],
        description="Greedy success on the fixed instances, per task, of the SFT, RL and merged policies; of the first CT as well.",
    )
    def evaluations(
        context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource, runner: StageRunner
    ) -> dg.MaterializeResult[None]:
        settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
        is_first_ct = previous_key(iteration) == SEED_ITERATION and settings.evaluates_first_ct
        roles = ("ct_model", *always) if is_first_ct else always
        request = EvaluateRequest(
            iteration=iteration,
            stage="evaluation",
            seed=settings.seed,
            acting=settings.acting,
            evaluation=settings.evaluation,
            checkpoints={role: registry.made_by(warehouse, iteration, role).checkpoint_id for role in roles},
            splits={role: ("eval", "holdout") if role == "merged_policy" else ("holdout",) for role in roles},
        )
        result = runner.run(context, request)
        with connect(warehouse, tables=["evaluations"]) as con:
            found = evaluated(con)
            drawn = sorted({one.iteration for one in found})[-ITERATIONS_DRAWN:]
            chart = success_by_stage([one for one in found if one.iteration in drawn])
            kept = retention_table(retentions(con, iteration))
            beside = successes_table(success_by_domain(con, iteration))
        novel = novelty(warehouse, iteration)
        content = content_digest(warehouse, ("evaluations", "episodes"), iteration=iteration, stage=request.stage)
        return dg.MaterializeResult(
            data_version=data_version(request.checkpoints, content),
            metadata=of_result(
                result,
                config=settings.evaluation,
                success=picture(as_markdown(chart)),
                kept_by_merge=dg.MetadataValue.md(kept),
                by_domain=dg.MetadataValue.md(beside),
                **({} if novel is None else {"novelty": dg.MetadataValue.md(f"{novel.summary}.\n\n{novel.table}")}),
            ),
        )

    return evaluations


@stage_asset(
    table="checkpoints",
    group_name=GROUP,
    deps=["evaluations", "merged_policy"],
    kinds={"deltalake"},
    description="The merged policy if it does not lose to the previous release on the eval split, else the previous release.",
)
def released_policy(context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource) -> dg.MaterializeResult[None]:
    settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
    read = {table: warehouse.version(table) for table in ("checkpoints", "episodes")}
    candidate = registry.made_by(warehouse, iteration, "merged_policy")
    chosen, note, figures = _choose(warehouse, settings, iteration, candidate)
    version = registry.pass_on(warehouse, chosen, iteration=iteration, stage="released_policy", note=note)
    context.log.info(note)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(chosen.checkpoint_id),
        metadata=describe(
            config=settings.evaluation,
            read=read,
            wrote={"checkpoints": version},
            figures=figures,
            released=chosen.checkpoint_id,
            reason=note,
        ),
    )


def _choose(
    warehouse: Warehouse, settings: Profile, iteration: str, candidate: registry.Registered
) -> tuple[registry.Registered, str, dict[str, float]]:
    """The policy to release, why, and the figures of the comparison."""
    before = previous_key(iteration)
    if before == SEED_ITERATION:
        return candidate, "first release: there is nothing to lose to", {}
    incumbent = registry.made_by(warehouse, before, "released_policy")
    if incumbent.checkpoint_id == candidate.checkpoint_id:
        return incumbent, "the candidate is the previous release", {}
    now, then = (outcomes_to_choose(warehouse, one.checkpoint_id) for one in (candidate, incumbent))
    if now and then and not now.keys() & then.keys():
        return candidate, "the previous release was evaluated on other instances, under an older rule of splits: nothing to lose to", {}
    comparison = compare_paired(now, then)
    decision = release_gate(
        comparison, significance=settings.evaluation.release_significance, tolerance=settings.evaluation.release_tolerance
    )
    figures = {"gain": comparison.difference.mean, "p_worse": comparison.p_worse}
    return (candidate if decision.released else incumbent), decision.reason, figures
