"""Judgement and routing: every terminal episode of the iteration gets a vector of verdicts, then exactly one route; routed steps and
corrected steps become samples of D_SFT and D_CT. The rules are warehouse/routing/routes.sql; the filters are warehouse/quality/filters.py.
"""

from collections import Counter
from collections.abc import Iterator

import dagster as dg

from agent.judging.samples import without_verifier
from assets.failures import RETRY, retried
from assets.metadata import data_version, data_version_in_parts, describe, picture
from assets.partitions import ITERATIONS
from assets.resources import ProfileResource, WarehouseResource
from warehouse.quality.filters import iteration_verdicts
from warehouse.quality.verdict_counts import VerdictCounter
from warehouse.reporting.charts import routing_flow
from warehouse.reporting.iteration_summaries import summaries
from warehouse.reporting.svg import as_markdown
from warehouse.routing.routed_samples import store_routed_samples
from warehouse.routing.routes import route
from warehouse.storage.content import content_digest
from warehouse.storage.query import connect

GROUP = "routing"
COLLECTED = ("rollouts", "annotations", "human_annotations")
SAMPLED = ("verdicts", "annotations", "human_annotations")


@dg.asset(
    partitions_def=ITERATIONS,
    group_name=GROUP,
    deps=[*COLLECTED],
    kinds={"deltalake"},
    description="V(s) of the environment's verifier and the result of every quality filter, per episode.",
    retry_policy=RETRY,
)
@retried
def verdicts(context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource) -> dg.MaterializeResult[None]:
    settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
    read = {table: warehouse.version(table) for table in ("episodes", "steps")}
    hidden = settings.verdicts.unverified_domains
    counter = VerdictCounter()
    judged = iteration_verdicts(warehouse, iteration, settings.quality, unverified=hidden)
    parts = (without_verifier(warehouse, part, hidden) for part in judged)
    version = warehouse.replace_partition_by_parts("verdicts", counter.counting(parts), iteration=iteration, stage="verdicts")
    return dg.MaterializeResult(
        data_version=data_version(counter.digest),
        metadata=describe(config=settings.quality, counts=counter.counts, read=read, wrote={"verdicts": version}),
    )


@dg.multi_asset(
    specs=[
        dg.AssetSpec(
            "routes", deps=["verdicts", "judgements"], description="One destination an episode: sft, ct or withheld.", kinds={"duckdb"}
        ),
        dg.AssetSpec("ct_samples", deps=[*SAMPLED, "recordings"], description="What joined D_CT in this iteration.", kinds={"deltalake"}),
        dg.AssetSpec("sft_samples", deps=[*SAMPLED], description="What joined D_SFT in this iteration.", kinds={"deltalake"}),
    ],
    partitions_def=ITERATIONS,
    group_name=GROUP,
    retry_policy=RETRY,
)
@retried
def routing(context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource) -> Iterator[dg.MaterializeResult[None]]:
    settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
    rules = settings.routing
    read = {table: warehouse.version(table) for table in ("episodes", "steps", "annotations", "verdicts")}
    with connect(warehouse) as con:
        routes = route(con, rules, iteration=iteration)
    version = warehouse.replace_partition("routes", routes, iteration=iteration, stage="routing")
    destinations = routes["route"].to_pylist()
    counts = {"episodes": len(destinations), **Counter(destinations)}
    summary = summaries(warehouse).get(iteration)  # none where nothing came in
    flow = picture(as_markdown(routing_flow(iteration, summary.flows if summary is not None else ())))
    yield dg.MaterializeResult(
        asset_key="routes",
        data_version=data_version(content_digest(warehouse, ["routes"], iteration=iteration, stage="routing")),
        metadata=describe(config=rules, counts=counts, read=read, wrote={"routes": version}, flow=flow),
    )
    left_out: Counter[str] = Counter({"trimmed steps": 0})
    for table, stored in store_routed_samples(warehouse, iteration, settings.salvage, left_out=left_out).items():
        of_table = left_out if table == "ct_samples" else {}
        by_origin = {f"samples/{origin}": num for origin, num in stored.by_origin.items()}
        yield dg.MaterializeResult(
            asset_key=table,
            data_version=data_version_in_parts(chunk.to_pylist() for chunk in stored.sample_ids.chunks),
            metadata=describe(
                counts={"samples": len(stored.sample_ids), **of_table, **by_origin}, read=read, wrote={table: stored.version}
            ),
        )
