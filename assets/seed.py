"""The seed: what iteration 0001 starts from. The task pool, tutorial-like CT text, a few oracle demonstrations for SFT, and a policy
with random weights.

Unpartitioned; in the warehouse its rows carry iteration 0000.
"""

from typing import Any

import dagster as dg

from assets.iterations.handoff import open_iteration
from assets.iterations.keys import iteration_key
from assets.seed_data.tutorials import tutorials
from assets.stages.metadata import data_version, describe, of_result
from assets.stages.requests import DemonstrateRequest, InitialiseRequest
from assets.stages.resources import ProfileResource, StageRunner, WarehouseResource
from assets.stages.stage_assets import stage_asset
from assets.tasks.instance_rows import evaluated_instances
from sandbox.tasks.licences import task_sources
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import tasks_in
from sandbox.tasks.task import Task
from warehouse.core.stages import SEED_ITERATION
from warehouse.datasets.provenance import add_sources
from warehouse.lineage import registry
from warehouse.routing.samples import tutorial_rows
from warehouse.storage.content import content_digest

GROUP = "seed"


@stage_asset(
    table="tasks",
    is_seed=True,
    group_name=GROUP,
    kinds={"deltalake"},
    description="Every task of the profile, with its domain and whether it is held out; and the generated instances that are evaluated on.",
)
def tasks(tables: WarehouseResource, profile: ProfileResource) -> dg.MaterializeResult[None]:
    settings, warehouse = profile.load(), tables.warehouse
    rows = [_row(task) for task in tasks_in(settings.tasks.lists).values()]
    evaluated = list(evaluated_instances(settings))
    wrote = {
        "tasks": warehouse.replace_partition("tasks", rows, iteration=SEED_ITERATION, stage="tasks"),
        "sources": add_sources(warehouse, task_sources({row["source"] for row in rows}, tables.home), stage="tasks"),
        "task_instances": warehouse.replace_partition("task_instances", evaluated, iteration=SEED_ITERATION, stage="tasks"),
    }
    counts = {"tasks": len(rows), "held out": sum(row["held_out"] for row in rows), "instances evaluated on": len(evaluated)}
    return dg.MaterializeResult(
        data_version=data_version(content_digest(warehouse, wrote, iteration=SEED_ITERATION, stage="tasks")),
        metadata=describe(counts=counts, wrote=wrote),
    )


def _row(task: Task) -> dict[str, Any]:
    is_known = SOURCES[task.source].is_known_by_first_screen
    return {**task.model_dump(mode="json"), "task_id": task.task_id, "is_known_by_first_screen": is_known}


@stage_asset(
    table="ct_samples",
    is_seed=True,
    group_name=GROUP,
    kinds={"deltalake"},
    description="Tutorial-like texts: D_CT before the first iteration.",
)
def seed_tutorials(tables: WarehouseResource, profile: ProfileResource) -> dg.MaterializeResult[None]:
    settings = profile.load()
    rows = tutorial_rows(tutorials(settings.seed_data.tutorials, settings.seed, settings.seed_data.curricula, settings.agent.builder()))
    version = tables.warehouse.replace_partition("ct_samples", rows, iteration=SEED_ITERATION, stage="seed_tutorials")
    return dg.MaterializeResult(
        data_version=data_version(sorted(row["sample_id"] for row in rows)),
        metadata=describe(config=settings.seed_data, counts={"tutorials": len(rows)}, wrote={"ct_samples": version}),
    )


@stage_asset(
    table="sft_samples",
    is_seed=True,
    group_name=GROUP,
    deps=[tasks],
    kinds={"deltalake", "chromium"},
    description="Oracle episodes on live pages: D_SFT before the first iteration.",
)
def seed_demonstrations(
    context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource, runner: StageRunner
) -> dg.MaterializeResult[None]:
    settings = profile.load()
    request = DemonstrateRequest(
        iteration=SEED_ITERATION, stage="seed_demonstrations", seed=settings.seed, acting=settings.acting, seed_data=settings.seed_data
    )
    result = runner.run(context, request)
    content = content_digest(tables.warehouse, ("episodes", "steps", "sft_samples"), iteration=SEED_ITERATION, stage=request.stage)
    return dg.MaterializeResult(data_version=data_version(content), metadata=of_result(result, config=settings.seed_data))


@stage_asset(
    is_seed=True, group_name=GROUP, kinds={"torch"}, description="The policy of the first iteration: random weights, or an existing model."
)
def seed_policy(context: dg.AssetExecutionContext, profile: ProfileResource, runner: StageRunner) -> dg.MaterializeResult[None]:
    settings = profile.load()
    request = InitialiseRequest(
        iteration=SEED_ITERATION,
        stage="seed_policy",
        seed=settings.seed,
        curricula=settings.seed_data.curricula,
        policy=settings.policy,
        max_image_pixels=settings.agent.max_image_pixels,
    )
    result = runner.run(context, request)
    return dg.MaterializeResult(data_version=dg.DataVersion(str(result.checkpoint_id)), metadata=of_result(result, config=settings.policy))


@stage_asset(
    is_seed=True,
    group_name=GROUP,
    deps=[seed_tutorials, seed_demonstrations, seed_policy],
    description="The seed is complete: opens iteration 0001.",
)
def seed(context: dg.AssetExecutionContext, tables: WarehouseResource) -> dg.MaterializeResult[None]:
    policy = registry.made_by(tables.warehouse, SEED_ITERATION, "seed_policy")
    version = open_iteration(context.instance, tables.warehouse, iteration_key(1), policy)
    return dg.MaterializeResult(data_version=dg.DataVersion(version), metadata=describe(read=tables.warehouse.versions()))
