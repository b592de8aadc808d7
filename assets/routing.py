"""Judgement and routing: every terminal episode of the iteration gets a vector of verdicts, then exactly one route; routed steps and
corrected steps become samples of D_SFT and D_CT. The rules are warehouse/routing/routes.sql; the filters are warehouse/quality/filters.py.
"""

from collections import Counter
from collections.abc import Iterator

import dagster as dg

from agent.grammars.compact import read_elements
from agent.judging.samples import without_verifier
from assets.stages.metadata import data_version, data_version_in_parts, describe, picture
from assets.stages.resources import ProfileResource, WarehouseResource
from assets.stages.stage_assets import stage_asset, stage_assets, stage_spec
from warehouse.quality.filters import iteration_verdicts
from warehouse.quality.verdict_counts import VerdictCounter
from warehouse.reporting.charts import routing_flow
from warehouse.reporting.iteration_summaries import summaries
from warehouse.reporting.svg import as_markdown
from warehouse.routing.routed_samples import store_routed_samples
from warehouse.routing.routes import route
from warehouse.storage.content import content_digest
from warehouse.storage.sql.query import connect

GROUP = "routing"
COLLECTED = ("rollouts", "annotations", "human_annotations", "gateway_episodes")
SAMPLED = ("verdicts", "annotations", "human_annotations")
ROUTE_COLUMNS = {
    "episode_id": ["rollouts.episode_id", "verdicts.episode_id", "judgements.episode_id"],
    "route": ["verdicts.score", "verdicts.threshold", "judgements.score", "rollouts.outcome", "rollouts.split"],
    "reason": ["verdicts.reasons", "judgements.reasons"],
    "cause": ["verdicts.passed", "judgements.passed", "rollouts.outcome", "rollouts.split"],
    "withheld_by": ["verdicts.judge", "judgements.judge"],
    "demoted_by": ["verdicts.judge", "judgements.judge"],
    "decided_verdict": ["verdicts.passed", "judgements.passed"],
    "decided_by": ["verdicts.judge", "judgements.judge"],
    "decided_score": ["verdicts.score", "judgements.score"],
}
SAMPLE_COLUMNS = {
    "episode_id": ["routes.episode_id"],
    "verdict": ["routes.decided_verdict"],
    "annotation_id": ["annotations.annotation_id", "human_annotations.annotation_id"],
    "messages": ["annotations.messages", "human_annotations.messages"],
    "domain": ["rollouts.domain"],
}
"""What the columns are made from, for Dagster's page; a row's own way is in the lineage that it names (warehouse/lineage)."""


@stage_asset(
    table="verdicts",
    group_name=GROUP,
    deps=[*COLLECTED],
    kinds={"deltalake"},
    description="V(s) of the environment's verifier and the result of every quality filter, per episode.",
)
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


@stage_assets(
    stage_spec(
        "routes",
        table="routes",
        stage="routing",
        columns=ROUTE_COLUMNS,
        deps=["verdicts", "judgements", *COLLECTED],
        kinds={"duckdb"},
        description="One destination an episode: sft, ct or withheld.",
    ),
    stage_spec(
        "ct_samples",
        table="ct_samples",
        stage="routing",
        columns=SAMPLE_COLUMNS,
        deps=["routes", *SAMPLED, *COLLECTED, "recordings"],
        kinds={"deltalake"},
        description="What joined D_CT in this iteration.",
    ),
    stage_spec(
        "sft_samples",
        table="sft_samples",
        stage="routing",
        columns=SAMPLE_COLUMNS,
        deps=["routes", *SAMPLED, *COLLECTED],
        kinds={"deltalake"},
        description="What joined D_SFT in this iteration.",
    ),
    group_name=GROUP,
)
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
    left_out: Counter[str] = Counter()
    made = store_routed_samples(warehouse, iteration, settings.failure_mining, left_out=left_out, read_elements=read_elements)
    for table, stored in made.items():
        of_table = {f"steps without/{name}": num for name, num in left_out.items()} if table == "ct_samples" else {}
        by_origin = {f"samples/{origin}": num for origin, num in stored.by_origin.items()}
        yield dg.MaterializeResult(
            asset_key=table,
            data_version=data_version_in_parts(chunk.to_pylist() for chunk in stored.sample_ids.chunks),
            metadata=describe(
                counts={"samples": len(stored.sample_ids), **of_table, **by_origin}, read=read, wrote={table: stored.version}
            ),
        )
