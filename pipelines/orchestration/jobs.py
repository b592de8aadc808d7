"""Jobs: the seed, one iteration, each of its stages, and `next_iteration`, the one click that launches the first incomplete iteration under
the profile that it is given."""

import os
from typing import Any

import dagster as dg
from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError

from assets.iterations.handoff import INPUT
from assets.iterations.keys import iteration_key
from assets.iterations.partitions import ITERATIONS
from assets.stages.asset_keys import ITERATION_OUTPUT
from pipelines.orchestration.release_jobs import RELEASE_JOBS
from pipelines.orchestration.runs import profile as run_profile
from pipelines.orchestration.runs.living_runs import living_runs
from warehouse.core.home import Home

DAGSTER_URL_VARIABLE = "FLYWHEEL_DAGSTER_URL"
INTERNAL_URL_VARIABLE = "FLYWHEEL_DAGSTER_INTERNAL_URL"
DEFAULT_DAGSTER_URL = "http://127.0.0.1:3000"

CLICK_TAG = "flywheel/next_iteration"
"""The run queue lets one of these through at a time, so that of two clicks the second sees what the first has submitted."""
SEED = dg.AssetSelection.groups("seed")
ITERATION = dg.AssetSelection.groups("datasets", "training", "release", "collection", "routing") - dg.AssetSelection.assets(INPUT)
ORM = dg.AssetSelection.assets("orm_samples", "orm_dataset", "orm_model")
COLLECTED = dg.AssetSelection.groups("collection")
ROUTED = dg.AssetSelection.groups("routing") - dg.AssetSelection.assets(ITERATION_OUTPUT)

seed_job = dg.define_asset_job("seed_iteration", SEED, description="Make the seed and open iteration 0001; what is finished is kept.")
iteration_job = dg.define_asset_job("iteration", ITERATION, description="Complete one iteration of the flywheel; what is finished is kept.")


def _stage_job(name: str, selection: dg.AssetSelection, description: str) -> Any:
    """Works its assets again, whatever earlier runs have finished of them (pipelines/orchestration/work/stage_runner.py)."""
    return dg.define_asset_job(name, selection, description=description)


evaluate_job = _stage_job(
    "evaluate",
    dg.AssetSelection.assets("evaluations", "released_policy"),
    "Evaluate the iteration's policies on the fixed sets again, and ask the release gate.",
)
ct_job = _stage_job("ct", dg.AssetSelection.assets("ct_dataset", "ct_model"), "Take the snapshot of D_CT and train on it, due or not.")
STAGE_JOBS = [
    _stage_job("datasets", dg.AssetSelection.assets("ct_dataset", "sft_dataset"), "Take the snapshots of D_CT and D_SFT again."),
    ct_job,
    _stage_job("sft", dg.AssetSelection.assets("sft_dataset", "sft_model"), "Take the snapshot of D_SFT and train on it."),
    _stage_job("rl", dg.AssetSelection.key_prefixes("rl_model"), "Train the specialists, and joint policies, again."),
    _stage_job("merge", dg.AssetSelection.assets("merged_policy"), "Search the merge weights of the iteration's specialists again."),
    evaluate_job,
    _stage_job("release", dg.AssetSelection.assets("released_policy"), "Ask the release gate again, on what is evaluated."),
    _stage_job("collect", COLLECTED | ROUTED, "Act with the released policy again and route what comes of it."),
    _stage_job("route", ROUTED, "Judge and route again what is collected."),
    _stage_job("orm", ORM, "Make D_ORM and train the outcome reward model again."),
]
"""One for each stage, launched for any open iteration."""


def dagster_url() -> str:
    """Where the page of this Dagster is."""
    return os.environ.get(DAGSTER_URL_VARIABLE, DEFAULT_DAGSTER_URL)


def internal_url() -> str:
    """Where runs reach that page: in containers another address than the one that people open."""
    return os.environ.get(INTERNAL_URL_VARIABLE) or dagster_url()


def first_incomplete(instance: dg.DagsterInstance) -> str | None:
    """The first iteration that is open but has not closed; None while the seed is not made."""
    opened = sorted(instance.get_dynamic_partitions(str(ITERATIONS.name)))
    closed = instance.get_materialized_partitions(ITERATION_OUTPUT)
    return next((key for key in opened if key not in closed), None)


def completed(instance: dg.DagsterInstance) -> list[str]:
    """The iterations that have closed, in order."""
    return sorted(instance.get_materialized_partitions(ITERATION_OUTPUT))


@dg.op(
    required_resource_keys={"profile"},
    description="Submits the iteration job for the first incomplete iteration, and before it the seed if it is missing.",
)
def submit_next_iteration(context: dg.OpExecutionContext) -> None:
    url, home = dagster_url(), Home.from_env()
    if running := living_runs(context.instance, home):
        raise dg.Failure(f"run {running[0].run_id} is already in progress: {url}/runs/{running[0].run_id}. Wait for it, or end it.")
    key = first_incomplete(context.instance)
    job, tags = ("seed_iteration", {}) if key is None else ("iteration", {"dagster/partition": key})
    config = run_profile.same_profile(context.run.run_config)
    asked = internal_url()
    host, _, port = asked.removeprefix("http://").partition(":")
    try:
        run_id = DagsterGraphQLClient(host, port_number=int(port or 80)).submit_job_execution(job, run_config=config, tags=tags)
    except DagsterGraphQLClientError as error:
        raise dg.Failure(
            f"Dagster at {asked} did not take the run: {error}. Start it with `make ui`, or set {DAGSTER_URL_VARIABLE} to its address."
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


JOBS: list[Any] = [seed_job, iteration_job, *STAGE_JOBS, *RELEASE_JOBS, next_iteration]
