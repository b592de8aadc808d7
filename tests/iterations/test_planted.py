"""Faults planted in the tables of a home with a real iteration, past all that writes there: a leak, an unsolved episode in SFT,
rows twice, a screenshot that is gone, a column of another type. Each stops the iteration at a gate, in words that name the rows and how to
fix them; fixed, the iteration goes on from there, and nothing is lost.

A copy of the finished home is opened again where its iteration was just about to close: finished stages are not worked twice, so a run goes
through every gate in seconds.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake

from assets.gates.checks import GATES
from assets.stages.asset_keys import ITERATION_OUTPUT
from pipelines.definitions import build_defs
from pipelines.orchestration.instance import open_instance
from pipelines.orchestration.jobs import first_incomplete
from warehouse.core.stages import SEED_ITERATION
from warehouse.storage.sql.query import connect

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ITERATION = "0001"


@pytest.fixture
def reopened(finished_home: Any, copy_of: Callable[..., Any]) -> Any:
    """A copy of the finished home whose iteration has all its stages but has not closed."""
    workspace = copy_of(finished_home)
    with open_instance(workspace.home) as instance:
        instance.wipe_assets([ITERATION_OUTPUT])
        instance.delete_dynamic_partition("iteration", "0002")
        assert first_incomplete(instance) == ITERATION
    return workspace


class Planter:
    """Writes rows with plain Delta, as a program that is none of ours would; says what the message has to name."""

    def __init__(self, workspace: Any) -> None:
        self.workspace = workspace
        self.versions = workspace.warehouse.versions()

    def rows(self, query: str) -> list[dict[str, Any]]:
        with connect(self.workspace.warehouse) as con:
            found: list[dict[str, Any]] = con.sql(query).to_arrow_table().to_pylist()
        return found

    def append(self, table: str, rows: list[dict[str, Any]], *, iteration: str, stage: str) -> None:
        delta, whole = self.workspace.warehouse.delta(table), [row | {"iteration": iteration, "stage": stage} for row in rows]
        write_deltalake(delta, pa.Table.from_pylist(whole, schema=delta.to_pyarrow_dataset().schema), mode="append")

    def rewrite(self, table: str, data: pa.Table) -> None:
        delta = self.workspace.warehouse.delta(table)
        partitions = delta.metadata().partition_columns or None
        write_deltalake(delta, data, mode="overwrite", schema_mode="overwrite", partition_by=partitions)

    def whole(self, table: str) -> pa.Table:
        return self.workspace.warehouse.delta(table).to_pyarrow_dataset().to_table()

    def leak(self) -> list[str]:
        (sample,) = self.rows("from sft_samples limit 1")
        (episode,) = self.rows("from episodes where purpose = 'evaluation' and split = 'holdout' order by episode_id limit 1")
        planted = sample | {"sample_id": "sample-leaked", "episode_id": episode["episode_id"], "step_index": 0}
        self.append("sft_samples", [planted], iteration="0000", stage="imported")
        return ["sample-leaked", episode["episode_id"], "holdout", "flywheel withdraw"]

    def unsolved(self) -> list[str]:
        (sample,) = self.rows("from sft_samples where stage = 'seed_demonstrations' order by sample_id limit 1")
        (episode,) = self.rows("from episodes where stage = 'rollouts' and reward <= 0 and split = 'train' order by episode_id limit 1")
        assert sample["verdict"] is True  # what it says of itself is not what happened
        planted = sample | {"sample_id": "sample-unsolved", "episode_id": episode["episode_id"], "step_index": 0}
        self.append("sft_samples", [planted], iteration="0000", stage="imported")
        return ["sample-unsolved", episode["episode_id"], episode["outcome"], "flywheel withdraw"]

    def sample_twice(self) -> list[str]:
        (sample,) = self.rows("from sft_samples where stage = 'seed_demonstrations' order by sample_id limit 1")
        self.append("sft_samples", [sample], iteration="0000", stage="imported")
        return [sample["sample_id"], "0000/imported", "0000/seed_demonstrations", "flywheel restore"]

    def episode_twice(self) -> list[str]:
        (episode,) = self.rows("from episodes where stage = 'rollouts' order by episode_id limit 1")
        self.append("episodes", [episode], iteration=ITERATION, stage="rollouts")
        return ["expectations_episodes", "episodes_counted_once", episode["episode_id"], "flywheel restore"]

    def screenshot_gone(self) -> list[str]:
        (step,) = self.rows("from steps where stage = 'rollouts' and screenshot_id is not null order by episode_id limit 1")
        images = self.whole("screenshots")
        self.rewrite("screenshots", images.filter(pc.not_equal(images["screenshot_id"], step["screenshot_id"])))
        return ["screenshots_present", "expectations_steps", step["screenshot_id"], step["episode_id"], "flywheel restore"]

    def wrong_type(self) -> list[str]:
        rows = self.whole("annotations")
        index = rows.schema.get_field_index("step_index")
        texts = ["first", *map(str, rows["step_index"].to_pylist()[1:])]
        self.rewrite("annotations", rows.set_column(index, "step_index", pa.array(texts)))
        broken = rows["annotation_id"][0].as_py()
        return ["expectations_annotations", "stored as string, not as int64", '"first"', broken, "flywheel restore"]

    def fix(self, table: str) -> None:
        ran = self.workspace.flywheel("restore", table, str(self.versions[table]))
        assert ran.returncode == 0, ran.stderr


IN_COLLECTION = {"episode_twice": "episodes", "screenshot_gone": "screenshots", "wrong_type": "annotations"}
IN_DATASETS = {"leak": "sft_samples", "unsolved": "sft_samples", "sample_twice": "sft_samples"}
FOLLOWING = {"collection": ("rollouts", "annotations", "verdicts"), "datasets": ("ct_dataset", "sft_dataset", "ct_model")}
"""Assets whose checks are the gate's, and after them one that must not run."""


def run_assets(
    workspace: Any, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, iteration: str = ITERATION
) -> tuple[bool, str, bool]:
    """Whether Dagster's run of these assets and their checks went well, what its failure says, and whether the last one was run."""
    for name, value in workspace.environment.items():
        monkeypatch.setenv(name, value)
    with open_instance(workspace.home) as instance:
        ran = (
            build_defs()
            .resolve_job_def("iteration")
            .execute_in_process(
                partition_key=iteration, instance=instance, asset_selection=[dg.AssetKey(name) for name in names], raise_on_error=False
            )
        )
        failures = [event.step_failure_data for event in ran.all_events if event.is_step_failure]
        reported = [failure.user_failure_data for failure in failures if failure is not None]
        text = "\n".join(str(of.description) for of in reported if of is not None)
        text += "\n".join(str(failure.error.to_string()) for failure in failures if failure is not None and failure.error is not None)
        made = {event.asset_key.to_user_string() for event in ran.all_events if event.is_step_materialization and event.asset_key}
    return ran.success, text, names[-1] in made


@pytest.mark.parametrize("fault", [*IN_DATASETS, *IN_COLLECTION])
def test_a_fault_blocks_what_follows_and_names_the_rows(reopened: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planter = Planter(reopened)
    table = {**IN_COLLECTION, **IN_DATASETS}[fault]
    names = FOLLOWING["datasets" if fault in IN_DATASETS else "collection"]
    reported = getattr(planter, fault)()
    went_well, text, went_on = run_assets(reopened, names, monkeypatch)
    assert not went_well and not went_on
    assert [part for part in reported if part not in text] == [], text
    planter.fix(table)
    assert run_assets(reopened, names, monkeypatch) == (True, "", True)


def run_iteration(workspace: Any) -> subprocess.CompletedProcess[str]:
    ran: subprocess.CompletedProcess[str] = workspace.flywheel("run", "--iterations", "1", "--profile", "smoke", timeout_s=900)
    return ran


CONTENT = (
    "select episode_id, purpose, outcome, reward from episodes order by all",
    "select episode_id, step_index, action from steps order by all",
    "select screenshot_id, width_px, md5(data) from screenshots order by all",
    "select annotation_id, step_index, decision from annotations order by all",
    "select iteration, stage, checkpoint_id from checkpoints order by all",
    "select iteration, stage, dataset_id, sample_id, weight from datasets order by all",
    "select episode_id, route, reason from routes order by all",
    "select sample_id, origin, verdict from sft_samples where stage <> 'imported' order by all",
    "select sample_id, origin, verdict from ct_samples order by all",
)


def test_a_run_stops_at_each_gate_and_goes_on_where_it_is_mended(reopened: Any) -> None:
    before = [reopened.sql(query) for query in CONTENT]
    planter = Planter(reopened)

    leaked, unsolved = planter.leak(), planter.unsolved()
    stopped = run_iteration(reopened)
    assert stopped.returncode == 1 and "StageFailed" in stopped.stderr and "ContaminatedDataset" in stopped.stderr
    assert all(part in stopped.stderr for part in leaked), stopped.stderr
    assert "launch 1:" in stopped.stdout and "launch 2:" not in stopped.stdout, "launching again would be of no use"
    assert reopened.flywheel("withdraw", "sample-leaked").returncode == 0

    stopped = run_iteration(reopened)
    assert stopped.returncode == 1 and "dataset_gate of iteration 0001" in stopped.stderr
    assert all(part in stopped.stderr for part in unsolved) and "sample-leaked" not in stopped.stderr
    assert reopened.flywheel("withdraw", "sample-unsolved").returncode == 0

    reported = [part for fault in IN_COLLECTION for part in getattr(planter, fault)()]
    stopped = run_iteration(reopened)
    assert stopped.returncode == 1 and "collection_gate of iteration 0001" in stopped.stderr
    assert [part for part in reported if part not in stopped.stderr] == [], stopped.stderr
    page = (reopened.home.reports / "data_docs" / ITERATION / "annotations.annotations.html").read_text()
    assert "first failing rows" in page and "first" in page
    for table in IN_COLLECTION.values():
        planter.fix(table)

    went_on = run_iteration(reopened)
    assert went_on.returncode == 0, went_on.stderr
    assert [reopened.sql(query) for query in CONTENT] == before, "nothing is lost, and nothing came in"
    assert reopened.sql("select count(*) from datasets where sample_id in ('sample-leaked', 'sample-unsolved')") == [(0,)]
    report = (reopened.home.reports / "index.html").read_text()
    linked = set(re.findall(r'href="(data_docs/[^"]+)"', report))
    suites = [(gate.is_seed, asset, table) for gate in GATES for asset, tables in gate.suites.items() for table in tables]
    names = {f"{SEED_ITERATION}/{table}" if is_seed else f"{ITERATION}/{table}.{asset}" for is_seed, asset, table in suites}
    assert {f"data_docs/{name}.html" for name in names} <= linked
    assert all((Path(reopened.home.reports) / address).exists() for address in linked)
    assert reopened.left_after(15) == []
