"""Collection: the live release acts on the task pool, and an annotator corrects it. What becomes of the episodes is
assets/routing.py.
"""

import dagster as dg

from assets.stages.metadata import data_version, describe, of_result, picture
from assets.stages.requests import AnnotateRequest, CollectRequest
from assets.stages.resources import ProfileResource, StageRunner, WarehouseResource
from assets.stages.stage_assets import stage_asset
from assets.tasks.instances import first_instance
from assets.tasks.pool import task_pool_of
from warehouse.lineage import registry
from warehouse.reporting.screens import sample_screens
from warehouse.reporting.svg import as_markdown
from warehouse.storage.content import content_digest
from warehouse.storage.sql.query import connect

GROUP = "collection"
SCREENS = "screens"
"""Metadata of a materialization: pictures of its episodes."""


@stage_asset(
    table="episodes",
    group_name=GROUP,
    deps=["released_policy", "tasks", "task_pool"],
    kinds={"prefect", "chromium"},
    description="Episodes of the released policy on training instances; each is one Prefect task.",
)
def rollouts(
    context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource, runner: StageRunner
) -> dg.MaterializeResult[None]:
    settings, iteration = profile.load(), context.partition_key
    request = CollectRequest(
        iteration=iteration,
        stage="rollouts",
        seed=settings.seed,
        checkpoint_id=registry.acting(tables.warehouse, iteration).checkpoint_id,
        first_instance=first_instance("rollout", iteration),
        task_pool=task_pool_of(tables.warehouse, iteration),
        acting=settings.acting,
        collection=settings.collection,
    )
    result = runner.run(context, request)
    content = content_digest(tables.warehouse, ("episodes", "steps"), iteration=iteration, stage=request.stage)
    return dg.MaterializeResult(
        data_version=data_version(request.checkpoint_id, content),
        metadata=of_result(result, config=settings.collection, **_screens(tables, iteration, "rollouts")),
    )


def _screens(tables: WarehouseResource, iteration: str, stage: str) -> dict[str, dg.MarkdownMetadataValue]:
    """The picture of a stage's episodes, where they have screenshots."""
    with connect(tables.warehouse, tables=("episodes", "steps", "screenshots"), iterations=[iteration]) as con:
        drawing = sample_screens(con, iteration, stage)
    return {} if drawing is None else {SCREENS: picture(as_markdown(drawing))}


@stage_asset(
    table="annotations",
    group_name=GROUP,
    deps=["released_policy", "tasks"],
    kinds={"chromium"},
    description="Interactive annotation by the scripted annotator: the released policy acts, the task's oracle approves and corrects.",
)
def annotations(
    context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource, runner: StageRunner
) -> dg.MaterializeResult[None]:
    settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
    if not settings.annotation.enabled:
        runner.forget(iteration, "annotations")
        wrote = {
            table: warehouse.replace_partition(table, [], iteration=iteration, stage="annotations")
            for table in ("annotations", "episodes", "steps")
        }
        return dg.MaterializeResult(
            data_version=data_version("off"), metadata=describe(wrote=wrote, note="annotation is switched off in this profile")
        )
    request = AnnotateRequest(
        iteration=iteration,
        stage="annotations",
        seed=settings.seed,
        checkpoint_id=registry.acting(warehouse, iteration).checkpoint_id,
        first_instance=first_instance("annotation", iteration),
        instances_per_task=settings.annotation.instances_per_task,
        acting=settings.acting,
        annotator=settings.annotation.annotator,
    )
    result = runner.run(context, request)
    content = content_digest(warehouse, ("episodes", "steps", "annotations"), iteration=iteration, stage=request.stage)
    return dg.MaterializeResult(
        data_version=data_version(request.checkpoint_id, content),
        metadata=of_result(result, config=settings.annotation, **_screens(tables, iteration, "annotations")),
    )
