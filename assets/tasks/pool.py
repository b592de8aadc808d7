"""The task pool of an iteration: which generated instances its collection plays. Families are chosen by what the policy solved of them
before (assets/tasks/choice.py); here are the seeds, which no stage has used, and the table. Off in a profile, a collection plays as many
instances of every family, and nothing is written.

The choice reads earlier iterations only, so an iteration that is taken up again chooses the same.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import dagster as dg
import duckdb

from assets.iterations.handoff import iteration_input
from assets.settings.profile import Profile
from assets.stages.metadata import data_version, describe, picture
from assets.stages.resources import ProfileResource, WarehouseResource
from assets.stages.stage_assets import stage_asset
from assets.tasks.choice import Choice, choose
from assets.tasks.instance_rows import instance_row
from assets.tasks.instances import first_instance, max_instances
from sandbox.tasks.registry import SOURCES
from sandbox.tasks.sources import tasks_in
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import TaskError
from warehouse.evaluation.choosing import connect_to_choose
from warehouse.evaluation.solve_rates import solve_rates
from warehouse.reporting.svg import as_markdown
from warehouse.reporting.task_pool_chart import TaskPoolRow, task_pool_chart
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

STAGE = "task_pool"
DUPLICATE, NO_INSTANCE, NO_SEEDS_LEFT = "content used before", "no instance for the seed", "seeds of the iteration used up"


@stage_asset(
    table="task_instances",
    group_name="collection",
    deps=[iteration_input, "tasks"],
    kinds={"duckdb"},
    description="The instances that the collection plays: families that the policy solves now and then, in seeds that were never used.",
)
def task_pool(context: dg.AssetExecutionContext, tables: WarehouseResource, profile: ProfileResource) -> dg.MaterializeResult[None]:
    settings, iteration, warehouse = profile.load(), context.partition_key, tables.warehouse
    if not settings.tasks.self_challenge.enabled:
        wrote = {"task_instances": warehouse.replace_partition("task_instances", [], iteration=iteration, stage=STAGE)}
        return dg.MaterializeResult(
            data_version=data_version("off"), metadata=describe(wrote=wrote, note="self-challenge is switched off in this profile")
        )
    read = {table: warehouse.version(table) for table in ("evaluations", "episodes", "task_instances")}
    choices, rows, refused = make_task_pool(warehouse, settings, iteration)
    version = warehouse.replace_partition("task_instances", rows, iteration=iteration, stage=STAGE)
    bounds = settings.tasks.self_challenge
    shown = [TaskPoolRow(domain=each.task.domain, family=each.task.name, solved=each.solved, num=each.num) for each in choices]
    counts = {"instances": len(rows), "families": len({row["task_id"] for row in rows})}
    return dg.MaterializeResult(
        data_version=data_version([row["content_id"] for row in rows]),
        metadata=describe(
            config=bounds,
            counts={**counts, **{f"refused/{reason}": num for reason, num in refused.items()}},
            read=read,
            wrote={"task_instances": version},
            pool=picture(as_markdown(task_pool_chart(shown, bounds.low, bounds.high))),
            chosen=dg.MetadataValue.md(_table(choices)),
        ),
    )


def make_task_pool(warehouse: Warehouse, settings: Profile, iteration: str) -> tuple[list[Choice], list[dict[str, Any]], dict[str, int]]:
    """The choice, the rows of `task_instances`, and how many seeds were refused, by reason."""
    tasks = [task for task in tasks_in(settings.tasks.lists).values() if task.domain in settings.tasks.domains and not task.held_out]
    challenge = settings.tasks.self_challenge
    with connect_to_choose(warehouse) as con:
        rates = solve_rates(con, iteration, challenge.memory)
    with connect(warehouse, tables=["task_instances"]) as con:
        used = _used_contents(con, iteration)
    choices = choose(tasks, rates, challenge, settings.collection.instances_per_task, max_instances("rollout"))
    refused: dict[str, int] = {}
    rows = [row for choice in choices for row in _instances(choice, iteration, used, refused)]
    return choices, rows, refused


def task_pool_of(warehouse: Warehouse, iteration: str) -> dict[str, tuple[int, ...]] | None:
    """Task id → seeds that the iteration's collection plays; None where the pool does not choose them."""
    with connect(warehouse, tables=["task_instances"]) as con:
        found = con.execute(
            "select task_id, list(seed order by seed) from task_instances where iteration = ? and stage = ? group by all order by all",
            [iteration, STAGE],
        ).fetchall()
    return {task_id: tuple(seeds) for task_id, seeds in found} or None


def _used_contents(con: duckdb.DuckDBPyConnection, iteration: str) -> set[str]:
    """What was played before, and what is evaluated on."""
    return {found for (found,) in con.execute("select content_id from task_instances where iteration < ?", [iteration]).fetchall()}


def _instances(choice: Choice, iteration: str, used: set[str], refused: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Rows for the first seeds of the iteration's own part whose content was never used; `used` and `refused` are kept up to date."""
    task, left = choice.task, choice.num
    for seed in _own_seeds(task, iteration) if left else ():
        try:
            facts = SOURCES[task.source].facts(task, seed)
        except TaskError:
            refused[NO_INSTANCE] = refused.get(NO_INSTANCE, 0) + 1
            continue
        row = instance_row(task, seed, facts, choice.why)
        if row["content_id"] in used:
            refused[DUPLICATE] = refused.get(DUPLICATE, 0) + 1
            continue
        used.add(row["content_id"])
        yield row
        left -= 1
        if not left:
            return
    if left:
        refused[NO_SEEDS_LEFT] = refused.get(NO_SEEDS_LEFT, 0) + left


def _own_seeds(task: Task, iteration: str) -> Sequence[int]:
    return task.seeds(Split.TRAIN, max_instances("rollout"), skip=first_instance("rollout", iteration))


def _table(choices: Collection[Choice]) -> str:
    """What each family was given and why, as Markdown."""
    rows = [f"| {each.task.domain} | {each.task.name} | {each.num} | {each.why} |" for each in choices]
    return "\n".join(["| domain | family | instances | why |", "|---|---|---|---|", *rows])
