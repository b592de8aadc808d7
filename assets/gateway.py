"""What agents did through the gateway: episodes that have their outcome, each taken in by one iteration, with its verdicts. The log
is agent/gateway's; token ids and pictures are stored as they were served.
"""

from collections import Counter

import dagster as dg

from agent.gateway.episodes import LeftOut, finished
from agent.gateway.log import has_log
from assets.people import GROUP, Row, add_episodes, add_tasks, episodes_taken, keep_others, store_rows
from assets.stages.metadata import data_version, describe
from assets.stages.resources import WarehouseResource
from assets.stages.stage_assets import stage_asset
from warehouse.storage.content import content_digest

STAGE = "gateway_episodes"
TABLES = ("tasks", "steps", "episodes", "verdicts")
"""In the order in which they are written: nothing names what is not there yet."""
CHUNK_EPISODES = 100
"""Episodes whose pictures are in memory at once."""


@stage_asset(
    table="episodes",
    group_name=GROUP,
    deps=["released_policy", "tasks"],
    kinds={"deltalake"},
    description="Episodes of agents that called the gateway: those that got their outcome since the iteration before.",
)
def gateway_episodes(context: dg.AssetExecutionContext, tables: WarehouseResource) -> dg.MaterializeResult[None]:
    warehouse, iteration = tables.warehouse, context.partition_key
    made: dict[str, list[Row]] = {table: [] for table in TABLES}
    left_out = LeftOut()
    if has_log(tables.home):
        chunk = []
        for one in finished(tables.home, but=episodes_taken(warehouse, STAGE, but=iteration), left_out=left_out):
            chunk.append(one.episode)
            made["verdicts"] += [one.verdict] if one.verdict is not None else []
            if len(chunk) == CHUNK_EPISODES:
                add_episodes(warehouse, made, chunk, iteration, STAGE)
                chunk = []
        add_episodes(warehouse, made, chunk, iteration, STAGE)
        add_tasks(warehouse, made, iteration, STAGE)
    counts = {"episodes": len(made["episodes"]), "steps": len(made["steps"]), "withheld for personal data": left_out.num_withheld}
    counts["lost"] = len(left_out.lost)
    for episode, why in left_out.lost.items():
        context.log.warning(f"the gateway's episode {episode} was left out, as it cannot be put together: {why}")
    counts |= Counter(f"outcome/{row['outcome']}" for row in made["episodes"])
    counts["kept as they were"] = keep_others(warehouse, made, iteration, STAGE)
    wrote = store_rows(warehouse, iteration, STAGE, made)
    return dg.MaterializeResult(
        data_version=data_version(content_digest(warehouse, TABLES, iteration=iteration, stage=STAGE)),
        metadata=describe(counts=counts, wrote=wrote),
    )
