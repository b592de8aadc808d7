"""Jobs: one iteration, its parts, the seed, and `next_iteration`, the one click that launches the first incomplete iteration."""

import os
from typing import Any

import dagster as dg
from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError

from assets.handoff import INPUT
from assets.iteration_keys import iteration_key
from assets.keys import ITERATION_OUTPUT
from assets.partitions import ITERATIONS
from pipelines.orchestration.executor import ITERATION_TAG, iteration_executor, living_runs
from pipelines.orchestration.stage_runner import FRESH_TAG
from warehouse.core.home import Home

DAGSTER_URL_VARIABLE = "FLYWHEEL_DAGSTER_URL"
DEFAULT_DAGSTER_URL = "http://127.0.0.1:3000"

CLICK_TAG = "flywheel/next_iteration"
"""The run queue lets one of these through at a time, so that of two clicks the second sees what the first has submitted."""
TAGS = {ITERATION_TAG: "true"}
AGAIN = {**TAGS, FRESH_TAG: "true"}
"""Tags of a job that works stages again which an iteration has finished."""
SEED = dg.AssetSelection.groups("seed")
ITERATION = dg.AssetSelection.groups("datasets", "training", "release", "collection", "routing") - dg.AssetSelection.assets(INPUT)

seed_job = dg.define_asset_job(
    "seed_wheel", SEED, tags=TAGS, executor_def=iteration_executor, description="Make the seed and open iteration 0001."
)
iteration_job = dg.define_asset_job(
    "iteration", ITERATION, tags=TAGS, executor_def=iteration_executor, description="One iteration of the flywheel."
)
collect_job = dg.define_asset_job(
    "collect",
    dg.AssetSelection.groups("collection", "routing") - dg.AssetSelection.assets(ITERATION_OUTPUT),
    tags=AGAIN,
    executor_def=iteration_executor,
    description="Act with the released policy again and route what comes of it.",
)
evaluate_job = dg.define_asset_job(
    "evaluate",
    dg.AssetSelection.assets("evaluations", "released_policy"),
    tags=AGAIN,
    executor_def=iteration_executor,
    description="Evaluate the iteration's policies on the fixed sets again.",
)
merge_job = dg.define_asset_job(
    "merge_search",
    dg.AssetSelection.assets("merged_policy"),
    tags=AGAIN,
    executor_def=iteration_executor,
    description="Search the merge weights of the iteration's specialists again.",
)


def first_incomplete(instance: dg.DagsterInstance) -> str | None:
    """The first iteration that is open but has not closed; None while the seed is not made."""
    opened = sorted(instance.get_dynamic_partitions(str(ITERATIONS.name)))
    closed = instance.get_materialized_partitions(ITERATION_OUTPUT)
    return next((key for key in opened if key not in closed), None)


def completed(instance: dg.DagsterInstance) -> list[str]:
    """The iterations that have closed, in order."""
    return sorted(instance.get_materialized_partitions(ITERATION_OUTPUT))


@dg.op(description="Submits the iteration job for the first incomplete iteration, and the seed first where there is none.")
def submit_next_iteration(context: dg.OpExecutionContext) -> None:
    url, home = os.environ.get(DAGSTER_URL_VARIABLE, DEFAULT_DAGSTER_URL), Home.from_env()
    if running := living_runs(context.instance, home):
        raise dg.Failure(f"run {running[0].run_id} is already in progress: {url}/runs/{running[0].run_id}. Wait for it, or end it.")
    key = first_incomplete(context.instance)
    job, tags = ("seed_wheel", TAGS) if key is None else ("iteration", {**TAGS, "dagster/partition": key})
    host, _, port = url.removeprefix("http://").partition(":")
    try:
        run_id = DagsterGraphQLClient(host, port_number=int(port or 80)).submit_job_execution(job, tags=tags)
    except DagsterGraphQLClientError as error:
        raise dg.Failure(
            f"Dagster at {url} did not take the run: {error}. Start it with `make ui`, or set {DAGSTER_URL_VARIABLE} to its address."
        ) from error
    context.add_output_metadata({"run": dg.MetadataValue.url(f"{url}/runs/{run_id}"), "iteration": key or iteration_key(0)})
    context.log.info(f"launched job {job}, iteration {key or iteration_key(0)}: {url}/runs/{run_id}")


@dg.job(
    description="Click Launch: the next iteration starts (or, in an empty home, the seed).",
    executor_def=dg.in_process_executor,
    tags={CLICK_TAG: "true"},
)
def next_iteration() -> None:
    submit_next_iteration()


JOBS: list[Any] = [seed_job, iteration_job, collect_job, evaluate_job, merge_job, next_iteration]
