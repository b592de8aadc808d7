"""Which iteration comes next, and the one click that launches it."""

from __future__ import annotations

import json

import dagster as dg
import pytest
from dagster._core.instance.config import PoolGranularity

from assets.stages.stage_assets import CONCURRENCY_POOL, is_asked_for
from pipelines.definitions import build_defs
from pipelines.orchestration.jobs import CLICK_TAG, DAGSTER_URL_VARIABLE, STAGE_JOBS, completed, first_incomplete
from pipelines.orchestration.runs.iteration_lock import lock_path
from pipelines.profiles import OVERRIDES_VARIABLE
from tests.pipelines import merged_project
from warehouse.core.locks import FileLock
from warehouse.lineage import releases
from warehouse.lineage.release_ledger import read_ledger

LINEAGE = {
    "tasks": [],
    "seed_tutorials": [],
    "seed_demonstrations": ["tasks"],
    "seed_policy": [],
    "seed": ["seed_demonstrations", "seed_policy", "seed_tutorials"],
    "iteration_input": [],
    "ct_dataset": ["iteration_input", "withdrawals"],
    "sft_dataset": ["iteration_input", "withdrawals"],
    "ct_model": ["ct_dataset", "iteration_input"],
    "sft_model": ["ct_model", "sft_dataset"],
    "rl_model/forms": ["sft_model"],
    "rl_model/pointing": ["sft_model"],
    "merged_policy": ["rl_model/forms", "rl_model/pointing"],
    "evaluations": ["ct_model", "merged_policy", "rl_model/forms", "rl_model/pointing", "sft_model"],
    "released_policy": ["evaluations", "merged_policy"],
    "task_pool": ["iteration_input", "tasks"],
    "rollouts": ["released_policy", "task_pool", "tasks"],
    "annotations": ["released_policy", "tasks"],
    "human_annotations": ["released_policy", "tasks"],
    "gateway_episodes": ["released_policy", "tasks"],
    "recordings": ["tasks"],
    "withdrawals": ["iteration_input"],
    "orm_samples": ["merged_policy"],
    "orm_dataset": ["orm_samples"],
    "orm_model": ["orm_dataset"],
    "judgements": ["annotations", "evaluations", "gateway_episodes", "human_annotations", "orm_model", "rollouts"],
    "judge_reports": ["judgements"],
    "verdicts": ["annotations", "gateway_episodes", "human_annotations", "rollouts"],
    "routes": ["annotations", "gateway_episodes", "human_annotations", "judgements", "rollouts", "verdicts"],
    "ct_samples": ["annotations", "gateway_episodes", "human_annotations", "recordings", "rollouts", "routes", "verdicts"],
    "sft_samples": ["annotations", "gateway_episodes", "human_annotations", "rollouts", "routes", "verdicts"],
    "iteration_output": ["ct_samples", "evaluations", "released_policy", "routes", "sft_samples"],
}


def test_before_the_seed_there_is_no_iteration(place):
    assert first_incomplete(place.instance) is None
    assert completed(place.instance) == []


def test_the_first_open_iteration_that_has_not_closed_comes_next(place):
    place.open("0001")
    assert first_incomplete(place.instance) == "0001"
    place.close("0001")
    place.open("0002")
    assert (first_incomplete(place.instance), completed(place.instance)) == ("0002", ["0001"])
    place.open("0003")
    assert first_incomplete(place.instance) == "0002", "one that was left out comes first"


def test_every_job_resolves_and_covers_what_it_says(place):
    definitions = build_defs()
    assets = {spec.key.to_user_string(): spec for spec in definitions.resolve_all_asset_specs()}
    computed = {
        job.name: {key.to_user_string() for key in job.asset_layer.executable_asset_keys}
        for job in (definitions.resolve_job_def(name) for name in ("seed_iteration", "iteration", *(stage.name for stage in STAGE_JOBS)))
    }
    assert computed["seed_iteration"] == {name for name, spec in assets.items() if spec.group_name == "seed"}
    assert computed["iteration"] == set(assets) - computed["seed_iteration"] - {"iteration_input"}
    assert computed["collect"] == {
        "task_pool",
        "rollouts",
        "annotations",
        "human_annotations",
        "gateway_episodes",
        "recordings",
        "judgements",
        "judge_reports",
        "verdicts",
        "routes",
        "ct_samples",
        "sft_samples",
    }
    assert computed["evaluate"] == {"evaluations", "released_policy"}
    assert computed["merge"] == {"merged_policy"} and computed["release"] == {"released_policy"}
    assert computed["rl"] == {"rl_model/pointing", "rl_model/forms"}
    assert computed["route"] == {"judgements", "judge_reports", "verdicts", "routes", "ct_samples", "sft_samples"}
    assert (computed["ct"], computed["sft"]) == ({"ct_dataset", "ct_model"}, {"sft_dataset", "sft_model"})
    assert computed["iteration"] - {"withdrawals", "iteration_output"} == set().union(*(computed[stage.name] for stage in STAGE_JOBS))


@pytest.mark.slow
def test_the_click_says_how_to_fix_a_dagster_that_does_not_answer(place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(DAGSTER_URL_VARIABLE, "http://127.0.0.1:9")
    result = build_defs().resolve_job_def("next_iteration").execute_in_process(instance=place.instance, raise_on_error=False)
    assert not result.success
    (failure,) = [event for event in result.all_events if event.event_type == dg.DagsterEventType.STEP_FAILURE]
    assert failure.step_failure_data.user_failure_data is not None
    assert DAGSTER_URL_VARIABLE in str(failure.step_failure_data.user_failure_data.description)


def test_a_second_click_while_an_iteration_runs_submits_nothing(place):
    place.open("0001")
    run = place.add_run(dg.DagsterRunStatus.STARTING)
    result = build_defs().resolve_job_def("next_iteration").execute_in_process(instance=place.instance, raise_on_error=False)
    (failure,) = [event for event in result.all_events if event.event_type == dg.DagsterEventType.STEP_FAILURE]
    assert failure.step_failure_data.user_failure_data is not None
    assert f"run {run.run_id} is already in progress" in str(failure.step_failure_data.user_failure_data.description)
    assert [other.run_id for other in place.instance.get_runs() if other.run_id != result.run_id] == [run.run_id]


def test_the_run_queue_lets_one_run_of_a_home_and_one_click_through_at_a_time(place):
    """Two clicks in the same moment: the second is run once the first has submitted its iteration, which it then sees (the test above)."""
    concurrency = place.instance.get_concurrency_config()
    assert concurrency.pool_config.pool_granularity == PoolGranularity.RUN and concurrency.pool_config.default_pool_limit == 1
    queue = concurrency.run_queue_config
    assert queue is not None and [(limit["key"], limit["limit"]) for limit in queue.tag_concurrency_limits] == [(CLICK_TAG, 1)]
    definitions = build_defs()
    assert definitions.resolve_job_def("next_iteration").tags[CLICK_TAG] == "true"
    for name in definitions.get_repository_def().job_names:
        pools = {node.pool for node in definitions.resolve_job_def(name).all_node_defs if not isinstance(node, dg.GraphDefinition)}
        assert pools - {None} == (set() if name == "next_iteration" or name.startswith("release_") else {CONCURRENCY_POOL}), name


def test_the_definitions_load_beside_a_projects_own(place):
    """As a code location of its own, and merged; a run without a step of ours is Dagster's plain one, which asks for no home's lock."""

    dg.Definitions.validate_loadable(build_defs())
    dg.Definitions.validate_loadable(merged_project.defs)
    with FileLock(lock_path(place.home)), dg.execute_job(dg.reconstructable(merged_project.their_job), instance=place.instance) as ran:
        assert ran.success


@pytest.mark.slow
def test_a_person_decides_on_a_release_from_the_page(place, monkeypatch: pytest.MonkeyPatch):
    """As `flywheel release` does, whose refusals are the run's failure."""
    row = {"checkpoint_id": "checkpoint-a", "path": "p", "parents": [], "datasets": [], "config": "{}", "metrics": "{}", "note": ""}
    place.warehouse.replace_partition("checkpoints", [row], iteration="0001", stage="merged_policy")
    monkeypatch.setattr(releases, "_finished", lambda tables, ref: releases.registry.named(tables, ref))  # its weights are not the matter

    def decide(name: str, **config: str) -> dg.ExecuteInProcessResult:
        job = build_defs().resolve_job_def(f"release_{name}")
        given = {"ops": {f"{name}_release": {"config": {"by": "Ada", "reason": "looked at it", **config}}}}
        return job.execute_in_process(run_config=given, instance=place.instance, raise_on_error=False)

    assert decide("hold", policy="0001/merged_policy").success
    assert decide("promote", policy="checkpoint-a").success
    assert read_ledger(place.warehouse).live_id == "checkpoint-a"
    refused = decide("rollback")
    assert not refused.success
    (failure,) = [event for event in refused.all_events if event.event_type == dg.DagsterEventType.STEP_FAILURE]
    assert "ReleaseRefused" in str(failure.step_failure_data.user_failure_data.description), "nothing was live before"
    assert read_ledger(place.warehouse).live_id == "checkpoint-a"


def test_only_what_completes_an_iteration_goes_on_from_earlier_runs(place):
    names = set(build_defs().get_repository_def().job_names) - {"next_iteration"}
    going_on = {name for name in names if not is_asked_for(dg.DagsterRun(job_name=name))}
    assert going_on == {"iteration", "seed_iteration"}
    assert any(name.startswith("__ASSET_JOB") for name in names - going_on), "assets that are materialized by themselves are worked again"


def test_a_joint_group_is_trained_and_evaluated_beside_the_specialists(place, monkeypatch: pytest.MonkeyPatch):
    for include in (False, True):
        overrides = {"tasks.joint": [["pointing", "forms"]], "merge.include_joint": include}
        monkeypatch.setenv(OVERRIDES_VARIABLE, json.dumps(overrides))
        specs = {spec.key.to_user_string(): spec for spec in build_defs().resolve_all_asset_specs()}
        deps = {name: {dependency.asset_key.to_user_string() for dependency in spec.deps} for name, spec in specs.items()}
        assert deps["rl_model/joint_pointing_forms"] == {"sft_model"}
        assert "rl_model/joint_pointing_forms" in deps["evaluations"]
        assert ("rl_model/joint_pointing_forms" in deps["merged_policy"]) == include


def test_the_lineage_graph_is_the_one_people_link_to(place):
    """A renamed asset loses its history in Dagster: change this list only together with a line in CHANGELOG.md."""
    specs = build_defs().resolve_all_asset_specs()
    graph = {
        spec.key.to_user_string(): sorted({dependency.asset_key.to_user_string() for dependency in spec.deps} - {spec.key.to_user_string()})
        for spec in specs
    }
    assert graph == LINEAGE
