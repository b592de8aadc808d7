"""The gates, run by Dagster on small tables: each rule holds on what is right and names what is not."""

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from assets.gates.checks import GATES, Gate, build_gate, is_checked_by, run_invariant
from assets.gates.invariants import INVARIANTS
from assets.gates.value_gate import VALUE_GATE, build_value_gate
from assets.iterations.partitions import ITERATIONS
from assets.settings.profile import Profile
from assets.stages.failures import ERROR_TYPE, RETRYABLE
from assets.stages.requests import StageRequest, StageResult
from assets.stages.resources import ProfileResource, StageRunner, WarehouseResource
from assets.training import build_rl_asset
from pipelines import profiles
from tests.assets.instances import emptied_instance
from warehouse.core.home import Home
from warehouse.lineage import registry
from warehouse.storage.catalogue import TABLES
from warehouse.storage.repair.restoring import restore
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

MERGE_GATE = next(gate for gate in GATES if gate.name == "merge_gate")
SUITES = tuple(f"expectations_{table}" for tables in MERGE_GATE.suites.values() for table in tables)
RULES = ("merge_weights_on_simplex", "merge_of_one_parent", "critic_steers_after_its_gate")


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """Two specialists of one SFT checkpoint, and their merge."""
    made = Warehouse(Home(tmp_path))
    for domain in ("pointing", "forms"):
        register(made, f"rl_{domain}", parents=["sft"], config={"gate_explained_variance": 0.1})
        metrics(made, f"rl_{domain}", steers=[0, 1, 1], explained=[0.05, 0.2, 0.02])
    register(made, "merged_policy", parents=["rl_pointing", "rl_forms"], config={"weights": {"rl_pointing": 0.25, "rl_forms": 0.75}})
    return made


def register(warehouse: Warehouse, stage: str, **more: Any) -> None:
    registry.register(warehouse, iteration="0001", stage=stage, checkpoint_id=stage, folder=warehouse.home.checkpoints / stage, **more)


def metrics(warehouse: Warehouse, run: str, *, steers: list[float], explained: list[float]) -> None:
    rows = [
        {"run": run, "step": step, "metric": metric, "value": float(value), "checkpoint_id": run}
        for metric, values in (("critic_steers", steers), ("gate_explained_variance", explained))
        for step, value in enumerate(values, start=1)
    ]
    warehouse.replace_partition("training_metrics", rows, iteration="0001", stage=run)


def broken_rules(warehouse: Warehouse) -> list[str]:
    """The rules of the gate before the evaluation that iteration 0001 breaks."""
    with connect(warehouse) as con:
        return [rule.name for rule in MERGE_GATE.invariants if not run_invariant(con, rule, "0001").passed]


def failed_in_the_gate(warehouse: Warehouse) -> list[str]:
    """The same as Dagster runs it, suites included; its blocking checks fail the run where there is anything."""

    @dg.asset(name="merged_policy", partitions_def=ITERATIONS)
    def made() -> None: ...

    with emptied_instance() as instance:
        instance.add_dynamic_partitions(str(ITERATIONS.name), ["0001"])
        run = dg.materialize(
            [made, build_gate(MERGE_GATE)],
            instance=instance,
            partition_key="0001",
            resources={"tables": WarehouseResource(root=str(warehouse.home.root))},
            raise_on_error=False,
        )
        found = {check.check_name: check.passed for check in run.get_asset_check_evaluations()}
    assert set(found) == {*RULES, *SUITES}
    assert run.success == all(found.values()), "they block"
    return [name for name, passed in found.items() if not passed and name in RULES]


def test_a_merge_of_two_specialists_of_one_checkpoint_passes(warehouse: Warehouse) -> None:
    assert failed_in_the_gate(warehouse) == broken_rules(warehouse) == []


def test_specialists_that_learned_nothing_are_their_parent_and_merge(warehouse: Warehouse) -> None:
    registry.register(warehouse, iteration="0001", stage="rl_forms", checkpoint_id="sft", folder=warehouse.home.checkpoints / "x")
    metrics(warehouse, "rl_forms", steers=[], explained=[])
    register(warehouse, "merged_policy", config={"weights": {"rl_pointing": 0.5, "sft": 0.5}})
    assert broken_rules(warehouse) == []


@pytest.mark.parametrize("weights", [{"rl_pointing": 0.5, "rl_forms": 0.6}, {"rl_pointing": -0.5, "rl_forms": 1.5}, {}])
def test_weights_off_the_simplex_are_found(warehouse: Warehouse, weights: dict[str, float]) -> None:
    register(warehouse, "merged_policy", config={"weights": weights})
    assert "merge_weights_on_simplex" in broken_rules(warehouse)


def test_a_merge_over_two_ancestors_is_found(warehouse: Warehouse) -> None:
    register(warehouse, "rl_forms", parents=["another"], config={"gate_explained_variance": 0.1})
    assert failed_in_the_gate(warehouse) == broken_rules(warehouse) == ["merge_of_one_parent"]


def test_a_critic_that_steers_before_its_gate_is_found(warehouse: Warehouse) -> None:
    metrics(warehouse, "rl_forms", steers=[1, 1], explained=[0.05, 0.2])
    assert broken_rules(warehouse) == ["critic_steers_after_its_gate"]


def test_a_critic_that_steers_a_round_whose_gate_it_did_not_pass_is_found(warehouse: Warehouse) -> None:
    metrics(warehouse, "rl_forms", steers=[1, 1], explained=[0.2, 0.2])
    assert broken_rules(warehouse) == []
    passed = [{"run": "rl_forms", "step": 2, "metric": "value_gate", "value": 0.0, "checkpoint_id": "rl_forms"}]
    warehouse.append_partition("training_metrics", passed, iteration="0001", stage="rl_forms")
    assert broken_rules(warehouse) == ["critic_steers_after_its_gate"]


def test_an_open_gate_lets_a_critic_steer_before_it_and_the_merge_goes_on(warehouse: Warehouse) -> None:
    register(warehouse, "rl_forms", parents=["sft"], config={"gate_explained_variance": 0.1, "gate_policy": "open"})
    metrics(warehouse, "rl_forms", steers=[1, 1], explained=[0.0, 0.05])
    assert broken_rules(warehouse) == []


def value_gate(warehouse: Warehouse, **config: Any) -> tuple[dg.AssetCheckEvaluation, bool]:
    """What the gate of value pretraining says of the pointing specialist, and whether the run went through."""
    register(warehouse, "rl_pointing", parents=["sft"], config={"algorithm": "ppo", "gate_explained_variance": 0.1, **config})

    @dg.asset(key=["rl_model", "pointing"], partitions_def=ITERATIONS)
    def made() -> None: ...

    with emptied_instance() as instance:
        instance.add_dynamic_partitions(str(ITERATIONS.name), ["0001"])
        run = dg.materialize(
            [made, build_value_gate(("pointing",))],
            instance=instance,
            partition_key="0001",
            resources={"tables": WarehouseResource(root=str(warehouse.home.root))},
            raise_on_error=False,
        )
        (found,) = run.get_asset_check_evaluations()
    return found, run.success


def gate_metrics(warehouse: Warehouse, *, passed: list[float], checkpoint_id: str = "rl_pointing") -> None:
    figures = {"value_gate": passed, "gate_explained_variance": [0.05, 0.06], "value_loss_now": [0.4, 0.3]}
    rows = [
        {"run": "rl_pointing", "step": step, "metric": metric, "value": value, "checkpoint_id": checkpoint_id}
        for metric, values in figures.items()
        for step, value in enumerate(values, start=1)
    ]
    warehouse.replace_partition("training_metrics", rows, iteration="0001", stage="rl_pointing")


@pytest.mark.parametrize("policy", ["block", "fallback"])
def test_a_critic_that_never_passed_its_gate_blocks_or_warns(warehouse: Warehouse, policy: str) -> None:
    gate_metrics(warehouse, passed=[0.0, 0.0])
    found, went_on = value_gate(warehouse, gate_policy=policy)
    assert not found.passed
    assert (found.severity, went_on) == ((dg.AssetCheckSeverity.ERROR, False) if policy == "block" else (dg.AssetCheckSeverity.WARN, True))
    assert found.metadata["explained_variance"].value == pytest.approx(0.06)
    assert found.metadata["value_loss_now"].value == pytest.approx(0.3)


def test_a_critic_that_passed_and_a_specialist_without_one_are_let_through(warehouse: Warehouse) -> None:
    for passed in ([0.0, 1.0], [1.0, 0.0]):  # one that shut again has passed
        gate_metrics(warehouse, passed=passed)
        assert value_gate(warehouse, gate_policy="block")[0].passed
    metrics(warehouse, "rl_pointing", steers=[], explained=[])
    assert value_gate(warehouse, algorithm="grpo", gate_policy="block")[0].passed


class SmokeProfile(ProfileResource):
    def load(self) -> Profile:
        return profiles.load("smoke")


class FailingRunner(StageRunner):
    """A worker that trained, left its curves and ended with an error."""

    error: str

    def run(self, context: dg.AssetExecutionContext, request: StageRequest) -> StageResult:
        raise dg.Failure("the critic explains 0.060", metadata={ERROR_TYPE: self.error}, allow_retries=False)

    def forget(self, iteration: str, stage: str) -> None: ...


def trained(warehouse: Warehouse, instance: dg.DagsterInstance, error: str) -> dg.ExecuteInProcessResult:
    """A run of reinforcement learning and the check behind it, whose worker ended with this error."""
    instance.add_dynamic_partitions(str(ITERATIONS.name), ["0001"])
    register(warehouse, "sft_model")
    for kind in ("sft", "ct"):
        member = {"dataset_id": f"data-{kind}", "kind": kind, "sample_id": "s", "component": "general", "weight": 1.0}
        warehouse.replace_partition("datasets", [member], iteration="0001", stage=f"{kind}_dataset")
    return dg.materialize(
        [build_rl_asset("pointing"), build_value_gate(("pointing",))],
        instance=instance,
        partition_key="0001",
        resources={
            "tables": WarehouseResource(root=str(warehouse.home.root)),
            "profile": SmokeProfile(),
            "runner": FailingRunner(error=error),
        },
        raise_on_error=False,
    )


@pytest.mark.parametrize("error", ["ValueGateNotPassed", "NothingToLearn"])
def test_a_run_that_its_gate_ended_has_a_failed_check_that_says_how_far_the_critic_got(tmp_path: Path, error: str) -> None:
    warehouse, check = Warehouse(Home(tmp_path)), dg.AssetCheckKey(dg.AssetKey(["rl_model", "pointing"]), VALUE_GATE)
    gate_metrics(warehouse, passed=[0.0, 0.0])
    with dg.DagsterInstance.ephemeral() as instance:
        run = trained(warehouse, instance, error)
        assert not run.success and run.get_asset_check_evaluations() == [], "the op of the check is skipped"
        reported = [
            record.event.dagster_event.asset_check_evaluation_data
            for record in instance.event_log_storage.get_asset_check_execution_history(check, limit=5)
            if record.event is not None and record.event.dagster_event is not None and record.status.value == "FAILED"
        ]
    if error == "NothingToLearn":
        assert reported == [], "the gate has nothing to do with it"
        return
    (found,) = reported
    assert (found.passed, found.severity, found.partition) == (False, dg.AssetCheckSeverity.ERROR, "0001")
    assert found.metadata["explained_variance"].value == pytest.approx(0.06)
    assert found.description == "explained variance 0.060: the run failed and left no policy. the critic explains 0.060"


def test_the_check_of_a_run_without_a_policy_can_be_run_again(warehouse: Warehouse) -> None:
    """Curves of a failed run stand under the checkpoint that it began with, also where an earlier run of the stage made one."""
    gate_metrics(warehouse, passed=[0.0, 0.0], checkpoint_id="sft")
    found, went_on = value_gate(warehouse, gate_policy="fallback")
    assert not found.passed and not went_on and found.severity is dg.AssetCheckSeverity.ERROR
    assert found.metadata["explained_variance"].value == pytest.approx(0.06) and "left no policy" in str(found.description)


def test_every_table_has_a_suite_in_some_gate_and_the_seed_has_its_own() -> None:
    of_iterations = {table for gate in GATES if not gate.is_seed for tables in gate.suites.values() for table in tables}
    of_seed = {table for gate in GATES if gate.is_seed for tables in gate.suites.values() for table in tables}
    own = {"tasks", "task_instances", "sources", "ct_samples", "sft_samples", "episodes", "steps", "screenshots", "checkpoints"}
    assert of_seed == own
    assert of_iterations == set(TABLES) - {"tasks"}, "the pool of tasks is the seed's"


def test_every_invariant_is_asked_by_one_gate() -> None:
    asked = [invariant.name for gate in GATES for invariant in gate.invariants]
    assert sorted(asked) == sorted(invariant.name for invariant in INVARIANTS)


def test_the_rows_of_each_stage_are_checked_by_one_gate() -> None:
    stages = [
        "ct_dataset",
        "rl_forms",
        "rl_joint_forms_games",
        "evaluation",
        "released_policy",
        "rollouts",
        "orm_model",
        "human",
        "another",
    ]
    for table in set(TABLES) - {"tasks", "screenshots"}:
        for stage in stages:
            assert sum(is_checked_by(gate, table, stage) for gate in GATES if any(table in of for of in gate.suites.values())) == 1


SMALL_GATE = Gate(
    name="small_gate",
    guards=("rollouts",),
    suites={"evaluations": ("evaluations",), "rollouts": ("episodes",)},
    stages=("evaluation", "rollouts"),
)


def small_gate(warehouse: Warehouse) -> tuple[bool, str, dict[str, dg.AssetCheckEvaluation], bool]:
    """Whether a run of two assets and a gate behind them went well, what it says, what each check found, and whether verdicts followed."""
    followed: list[str] = []

    def asset(name: str, **more: Any) -> dg.AssetsDefinition:
        @dg.asset(name=name, partitions_def=ITERATIONS, **more)
        def made() -> None:
            followed.append(name)

        return made

    with emptied_instance() as instance:
        instance.add_dynamic_partitions(str(ITERATIONS.name), ["0001"])
        run = dg.materialize(
            [asset("evaluations"), asset("rollouts"), asset("verdicts", deps=["rollouts"]), build_gate(SMALL_GATE)],
            instance=instance,
            partition_key="0001",
            resources={"tables": WarehouseResource(root=str(warehouse.home.root))},
            raise_on_error=False,
        )
        failures = [event.step_failure_data.user_failure_data for event in run.all_events if event.is_step_failure]
        text = "".join(str(failure.description) for failure in failures if failure is not None)
        final = all(failure is not None and failure.metadata[RETRYABLE].value is False for failure in failures)
        checks = {check.check_name: check for check in run.get_asset_check_evaluations()}
    assert final, "launching it again would only fail again"
    return run.success, text, checks, "verdicts" in followed


@pytest.mark.slow
def test_a_suite_that_is_shown_further_up_blocks_all_the_same_and_tells_its_rows(tmp_path: Path) -> None:
    """`evaluations` is not a guard of this gate: its check is shown there, and nothing follows where it fails."""
    warehouse = Warehouse(Home(tmp_path))
    went_well, text, checks, followed = small_gate(warehouse)
    assert went_well and followed and not text and checks["expectations_evaluations"].passed
    row = {
        "checkpoint_id": "sft",
        "checkpoint_role": "sft_model",
        "task_id": "task-x",
        "task_name": "x",
        "domain": "forms",
        "split": "eval",
        "num_episodes": 1,
        "num_success": 1,
        "num_crashed": 0,
    }
    warehouse.replace_partition("evaluations", [row], iteration="0001", stage="evaluation")
    went_well, text, checks, followed = small_gate(warehouse)
    assert not went_well and not followed and not checks["expectations_evaluations"].passed
    assert all(part in text for part in ("small_gate of iteration 0001", "task-x", "sft_model", "To fix:", "version 1"))
    assert checks["expectations_episodes"].passed


def test_a_table_that_cannot_be_read_fails_its_checks_and_does_not_end_the_gate_without_a_word(tmp_path: Path) -> None:
    warehouse = Warehouse(Home(tmp_path))
    episode = {
        "episode_id": "ep",
        "purpose": "rollout",
        "task_id": "t",
        "task_name": "t",
        "domain": "forms",
        "seed": 1,
        "split": "train",
        "attempt": 0,
        "policy_id": "oracle",
        "temperature": 1.0,
        "instruction": None,
        "outcome": "success",
        "reward": 1.0,
        "num_steps": 0,
        "num_retries": 0,
        "error": None,
        "duration_ms": 1.0,
        "environment": "e",
    }
    warehouse.replace_partition("episodes", [episode], iteration="0001", stage="rollouts")
    delta = warehouse.delta("episodes")
    assert delta is not None
    rows = delta.to_pyarrow_dataset().to_table()
    wrong = rows.set_column(rows.schema.get_field_index("seed"), "seed", pa.array(["seven"]))
    write_deltalake(delta, wrong, mode="overwrite", schema_mode="overwrite", partition_by=["iteration", "stage"])
    went_well, text, checks, followed = small_gate(warehouse)
    assert not went_well and not followed
    assert "stored as string, not as int64" in text and '"seven"' in text and "ep" in text
    assert not checks["instances_of_one_split"].passed and "cannot check" in str(checks["instances_of_one_split"].description)
    assert restore(warehouse, "episodes", 1) == 3
    assert warehouse.read("episodes").column("seed").to_pylist() == [1]
