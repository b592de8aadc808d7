"""One real iteration, end to end, looked at from every side: SQL, the command line, files, and Dagster's own records."""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pyarrow.parquet as pq
import pytest
from PIL import Image

from agent.episode.episode import EpisodeRequest
from assets.gates.invariants import INVARIANTS
from models.checkpoints.checkpoint import verify
from pipelines import profiles
from pipelines.definitions import build_defs
from pipelines.orchestration.instance import open_instance
from sandbox.tasks.task import Split, Task
from warehouse.lineage import registry
from warehouse.lineage.relations import NODE_KINDS
from warehouse.lineage.walk import trace
from warehouse.quality.data_docs import checked_tables
from warehouse.storage.catalogue import TABLES
from warehouse.storage.sql.query import connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

STAGES = ("seed_policy", "ct_model", "sft_model", "rl_pointing", "rl_forms", "merged_policy", "released_policy")
PICTURES = {
    "ct_model": "curves",
    "sft_model": "curves",
    "rl_model/pointing": "curves",
    "rl_model/forms": "curves",
    "evaluations": "success",
    "rollouts": "screens",
    "annotations": "screens",
    "routes": "flow",
    "iteration_output": "across iterations",
}


WORKED = ("ct_model", "sft_model", "rl_model/pointing", "merged_policy", "evaluations", "rollouts", "annotations", "seed_demonstrations")
"""Assets whose work a subprocess does."""
READERS = (*(name for name in WORKED if not name.startswith("seed")), "released_policy", "verdicts", "routes", "sft_samples")


class Records:
    """What Dagster knows of a finished home."""

    def __init__(self, finished: Any) -> None:
        self.instance = open_instance(finished.home)

    @cached_property
    def specs(self) -> dict[str, dg.AssetSpec]:
        return {spec.key.to_user_string(): spec for spec in build_defs().resolve_all_asset_specs()}

    def materialization(self, name: str, partition: str | None = "0001") -> dg.AssetMaterialization:
        key = dg.AssetKey(name.split("/"))
        wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition] if partition else None)
        found = self.instance.fetch_materializations(wanted, limit=1).records
        assert found, f"{name} of {partition} was not materialized"
        materialization = found[0].asset_materialization
        assert materialization is not None
        return materialization

    def checks(self) -> dict[str, bool]:
        runs = [self.instance.get_runs(dg.RunsFilter(job_name=job), limit=1)[0] for job in ("seed_iteration", "iteration")]
        of_checks = dg.DagsterEventType.ASSET_CHECK_EVALUATION
        evaluations = [entry for run in runs for entry in self.instance.all_logs(run.run_id, of_type=of_checks)]
        results = [entry.get_dagster_event().asset_check_evaluation_data for entry in evaluations]
        return {f"{result.asset_key.to_user_string()}:{result.check_name}": result.passed for result in results}


@pytest.fixture(scope="module")
def records(finished_home, request) -> Records:
    patch = pytest.MonkeyPatch()
    request.addfinalizer(patch.undo)
    for name, value in finished_home.environment.items():
        patch.setenv(name, value)
    return Records(finished_home)


# The tables


def test_every_episode_has_exactly_one_route_and_no_route_is_without_one(finished_home):
    routed = "purpose in ('rollout', 'annotation')"
    assert finished_home.sql(f"select count(*) > 0 from episodes where {routed}") == [(True,)]
    assert finished_home.sql(f"select episode_id from episodes where {routed} except select episode_id from routes") == []
    assert finished_home.sql(f"select episode_id from routes except select episode_id from episodes where {routed}") == []
    assert finished_home.sql("select episode_id from routes group by all having count(*) > 1") == []
    assert {route for (route,) in finished_home.sql("select distinct route from routes")} <= {"sft", "ct", "withheld"}


def test_sft_takes_successes_and_annotated_steps_only(finished_home):
    query = """select s.sample_id from sft_samples s left join episodes e using (episode_id)
               where s.annotation_id is null and e.outcome <> 'success'"""
    assert finished_home.sql(query) == []
    assert finished_home.sql("select count(*) > 0 from sft_samples where iteration = '0001'") == [(True,)]
    assert finished_home.sql("select distinct origin from annotations") == [("scripted",)]


def test_nothing_of_eval_or_holdout_is_learned_from(finished_home):
    for kind in ("ct", "sft"):
        query = f"select e.split from {kind}_samples join episodes e using (episode_id) where e.split <> 'train'"
        assert finished_home.sql(query) == []
    assert finished_home.sql("select distinct split from episodes where purpose in ('seed', 'rollout', 'annotation', 'rl')") == [("train",)]
    splits = finished_home.sql("select distinct split from episodes where purpose = 'evaluation' order by 1")
    assert splits == [("eval",), ("holdout",)]


def test_no_instance_is_used_by_two_stages_that_learn(finished_home):
    query = "select task_id, seed from episodes where split = 'train' group by all having count(distinct purpose) > 1"
    assert finished_home.sql(query) == []


def test_nothing_is_stored_twice_and_every_key_is_one(finished_home):
    for table in TABLES.values():
        of_an_iteration = table.name in ("datasets", "evaluations", "merge_candidates", "training_metrics")
        keys = ", ".join((*(("iteration",) if of_an_iteration else ()), *table.key))
        assert finished_home.sql(f"select {keys} from {table.name} group by {keys} having count(*) > 1") == [], table.name


def test_every_screenshot_is_there_and_is_what_its_id_says(finished_home):
    missing = "select screenshot_id from steps where screenshot_id is not null except select screenshot_id from screenshots"
    assert finished_home.sql(missing) == []
    without = "select count(*) from steps join episodes e using (episode_id) where e.purpose = 'rollout' and screenshot_id is null"
    assert finished_home.sql(without) == [(0,)]
    assert finished_home.sql("select count(*) > 20 from screenshots where width_px > 100") == [(True,)]


def test_no_rule_of_the_asset_checks_is_broken(finished_home):
    with connect(finished_home.warehouse) as con:
        for invariant in INVARIANTS:
            assert con.execute(invariant.sql, {"iteration": "0001"}).fetchall() == [], invariant.name


def test_episode_ids_are_their_contents(finished_home):
    columns = "episode_id, purpose, policy_id, seed, attempt, t.* exclude (iteration, stage, task_id)"
    with connect(finished_home.warehouse) as con:
        rows = con.sql(f"select {columns} from episodes join tasks t using (task_id)").to_arrow_table().to_pylist()
    assert rows
    for row in rows:
        task = Task(**{name: row[name] for name in Task.model_fields})
        episode = EpisodeRequest(
            purpose=row["purpose"], task=task, seed=row["seed"], attempt=row["attempt"], policy_id=row["policy_id"], temperature=0
        )
        assert episode.episode_id == row["episode_id"]
        assert task.split(row["seed"]) in Split


def test_every_stage_left_a_whole_checkpoint(finished_home):
    for stage in STAGES:
        found = registry.made_by(finished_home.warehouse, "0000" if stage == "seed_policy" else "0001", stage)
        assert verify(found.folder).checkpoint_id == found.checkpoint_id


def test_lineage_leads_from_the_merge_to_a_task_and_a_screenshot(finished_home):
    with connect(finished_home.warehouse, lineage=True) as con:
        graph = trace(con, "0001/merged_policy", direction="up")
        kinds = {node.kind for node in graph.nodes}
        assert {"checkpoint", "dataset", "ct_sample", "sft_sample", "episode", "step", "task", "screenshot"} <= kinds
        seed = registry.made_by(finished_home.warehouse, "0000", "seed_policy").checkpoint_id
        assert ("checkpoint", seed) in graph.nodes
        assert "<svg" in graph.to_svg() and "flowchart" in graph.to_mermaid()
        task = next(node for node in graph.nodes if node.kind == "task")
        released = registry.made_by(finished_home.warehouse, "0001", "released_policy").checkpoint_id
        query = "select count(*) from descendants(?) where kind = 'checkpoint' and id = ?"
        assert con.execute(query, [task.id, released]).fetchall()[0][0] > 0, "and forward again"


# The command line


def test_the_run_says_what_it_did(finished_home):
    assert "done seed" in finished_home.output and "done iteration 0001" in finished_home.output
    assert all(role in finished_home.output for role in ("sft_model", "rl_pointing", "rl_forms", "merged_policy"))
    assert re.search(r"report: \S+index\.html", finished_home.output)
    assert f"flywheel status --home {finished_home.home.root}   what each stage made" in finished_home.output


@pytest.mark.slow
def test_status_says_where_the_iteration_stands(finished_home):
    ran = finished_home.flywheel("status", "--json")
    assert ran.returncode == 0, ran.stderr
    status = json.loads(ran.stdout)
    seed, first = status["iterations"]
    assert (seed["iteration"], first["iteration"], first["complete"]) == ("0000", "0001", True)
    critics = {"critic_pointing", "critic_forms"}
    assert {item["stage"] for item in first["checkpoints"]} == set(STAGES[1:]) | critics
    assert set(first["datasets"]) == {"ct_dataset", "sft_dataset"}
    assert sum(first["routes"].values()) == finished_home.sql("select count(*) from routes")[0][0]
    reported = {(item["role"], item["split"]) for item in first["success"]}
    assert reported == {*((role, "holdout") for role in STAGES[1:6]), ("merged_policy", "eval")}
    for item in first["success"]:
        assert 0 <= item["low"] <= item["mean"] <= item["high"] <= 1
        assert item["num_episodes"] == item["num_tasks"] * profiles.load("smoke").evaluation.holdout_per_task


def test_a_second_run_has_nothing_to_do_and_says_so(finished_home, copy_of):
    workspace = copy_of(finished_home)
    before = workspace.warehouse.versions()
    ran = workspace.flywheel("run", "--iterations", "1", "--profile", "smoke", timeout_s=600)
    assert ran.returncode == 0, ran.stderr
    assert "1 of 1 iterations are complete" in ran.stdout
    assert "done iteration" not in ran.stdout
    assert workspace.warehouse.versions() == before
    assert workspace.left_after(10) == []


@pytest.mark.slow
def test_sql_sees_the_tables_as_they_were(finished_home):
    def count(*options: str) -> int:
        ran = finished_home.flywheel("sql", "select count(*) as num from episodes", "--json", *options)
        assert ran.returncode == 0, ran.stderr
        return int(json.loads(ran.stdout)["num"])

    (seeded,) = finished_home.sql("select count(*) from episodes where iteration = '0000'")[0]
    assert count("--as-of", "0000") == seeded
    assert count("--as-of", "0001") == count() > seeded


@pytest.mark.slow
def test_lineage_is_printed_and_drawn(finished_home, tmp_path: Path):
    svg, mermaid = tmp_path / "lineage.svg", tmp_path / "lineage.mmd"
    ran = finished_home.flywheel("lineage", "0001/merged_policy", "--depth", "3", "--svg", str(svg), "--mermaid", str(mermaid))
    assert ran.returncode == 0, ran.stderr
    assert "0001/sft_model" in ran.stdout and "learned from" in ran.stdout
    assert svg.read_text().lstrip().startswith("<svg") and "flowchart" in mermaid.read_text()


@pytest.mark.parametrize("form", ["trl", "llama-factory", "sharegpt", "parquet"])
@pytest.mark.parametrize("dataset", ["sft", "ct"])
def test_samples_are_exported(finished_home, tmp_path: Path, form: str, dataset: str):
    from warehouse.datasets.export import export

    exported = export(finished_home.warehouse, tmp_path / "out", format=form, dataset=dataset)
    (num,) = finished_home.sql(f"select count(*) from {dataset}_samples where not withdrawn")[0]
    assert exported.num_rows + exported.num_left_out == num
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["num_rows"] == exported.num_rows
    if form == "trl":
        rows = [json.loads(line) for line in (tmp_path / "out/train.jsonl").read_text().splitlines()]
        assert len(rows) == exported.num_rows
    if form == "parquet":
        assert pq.read_table(tmp_path / "out/samples.parquet").num_rows == num


@pytest.mark.slow
def test_everything_is_exported_as_one_duckdb_file(finished_home, tmp_path: Path):
    output = tmp_path / "flywheel.duckdb"
    ran = finished_home.flywheel("export", str(output), "--format", "duckdb")
    assert ran.returncode == 0, ran.stderr
    with duckdb.connect(str(output), read_only=True) as con:
        for table in TABLES:
            assert con.execute(f"select count(*) from {table}").fetchall() == finished_home.sql(f"select count(*) from {table}")


@pytest.mark.slow
def test_any_checkpoint_is_evaluated_and_checkpoints_are_merged(finished_home, tmp_path: Path):
    merged = finished_home.flywheel("merge", "0001/rl_pointing", "0001/rl_forms", "--weights", "0.25,0.75", "-o", str(tmp_path / "merged"))
    assert merged.returncode == 0, merged.stderr
    assert verify(tmp_path / "merged").checkpoint_id in merged.stdout
    before = finished_home.warehouse.versions()
    ran = finished_home.flywheel("eval", "0001/released_policy", "--split", "holdout", "--per-task", "1", "--profile", "smoke")
    assert ran.returncode == 0, ran.stderr
    assert "click-button" in ran.stdout and "mean over tasks" in ran.stdout
    assert finished_home.warehouse.versions() == before, "nothing is stored"


def test_the_report_shows_curves_flow_and_screenshots(finished_home):
    page = (finished_home.home.reports / "index.html").read_text()
    for heading in ("Success by iteration and stage", "Routing", "Training", "Sample trajectories", "Lineage"):
        assert f">{heading}<" in page
    assert page.count("<svg") >= 5
    assert page.count("data:image/png;base64,") >= 3, "screenshots"
    assert not re.search(r"""(src|href)=["']https?:""", page), "it needs nothing from outside"


# Dagster


def test_every_asset_is_materialized_and_says_what_made_it(records: Records):
    for name, spec in records.specs.items():
        materialization = records.materialization(name, "0001" if spec.partitions_def else None)
        assert materialization.tags is not None and materialization.tags.get("dagster/data_version"), name
        if name == "iteration_input":  # reported, not computed
            continue
        metadata = materialization.metadata
        assert str(metadata["code"].value).startswith("code-"), name
        assert any(key.startswith(("read/", "wrote/")) for key in metadata) or "enabled is false" in str(metadata["note"].value), name
        assert metadata["lineage"].value == dg.AssetKey("iteration_output"), name
    for name in READERS:
        metadata = records.materialization(name).metadata
        assert any(key.startswith("read/") for key in metadata), name
    for name in WORKED:
        metadata = records.materialization(name, None if name.startswith("seed") else "0001").metadata
        assert float(metadata["duration_s"].value) > 0 and str(metadata["config"].value).startswith("config-"), name


def test_materializations_carry_pictures(records: Records):
    for name, label in PICTURES.items():
        text = str(records.materialization(name).metadata[label].value)
        assert re.search(r"data:image/(png|svg\+xml);base64,[A-Za-z0-9+/=]{400,}", text), name


def test_every_check_ran_and_passed(records: Records):
    results = records.checks()
    defined = {f"{key.asset_key.to_user_string()}:{key.name}" for key in build_defs().resolve_asset_graph().asset_check_keys}
    assert set(results) == defined
    # A critic that saw a dozen episodes need not pass its gate: that warns, and the baseline steers.
    assert [name for name, passed in results.items() if not passed and not name.endswith(":value_pretraining_gate")] == []


def test_each_gate_checks_the_rows_that_its_stages_wrote_and_each_row_once(finished_home):
    checked: dict[tuple[str, str], int] = {}
    for page in checked_tables(finished_home.home):
        checked[page.iteration, page.table] = checked.get((page.iteration, page.table), 0) + page.num_rows
    for table in set(TABLES) - {"screenshots", "tasks"}:
        written = dict(finished_home.sql(f"select iteration, count(*) from {table} group by all"))
        assert {key: checked.get((key, table), 0) for key in written} == written, table
    shown = "select count(distinct screenshot_id) from steps where iteration = '0001'"
    assert [(checked["0001", "screenshots"],)] == finished_home.sql(shown)


def test_great_expectations_is_imported_by_the_process_that_gates_are_forked_from_alone(finished_home):
    """Once a run, of the seed and of the iteration: not by the command, the run's own process, a stage or a sandbox."""
    importers = (finished_home.base / "importers").read_text().splitlines()
    assert len(importers) == 2 and all("multiprocessing.forkserver" in command for command in importers), importers


def test_the_next_iteration_is_open_with_what_enters_it(records: Records, finished_home):
    assert records.instance.get_dynamic_partitions("iteration") == ["0001", "0002"]
    opened = records.materialization("iteration_input", "0002")
    closed = records.materialization("iteration_output", "0001")
    assert opened.tags["dagster/data_version"] == closed.tags["dagster/data_version"]
    released = registry.made_by(finished_home.warehouse, "0001", "released_policy")
    assert opened.metadata["policy"].value == released.checkpoint_id
    assert opened.metadata["sft_samples"].value == finished_home.warehouse.version("sft_samples")


@pytest.mark.long
def test_a_finished_stage_is_worked_again_only_where_that_is_asked_for(finished_home, copy_of, monkeypatch: pytest.MonkeyPatch):
    workspace = copy_of(finished_home)
    for name, value in workspace.environment.items():
        monkeypatch.setenv(name, value)
    results = {path: path.stat().st_mtime_ns for path in sorted(workspace.home.work.glob("0001/*/result.json"))}
    rows = workspace.sql("select count(*), count(distinct episode_id) from episodes")
    definitions = build_defs()
    with open_instance(workspace.home) as instance:
        again = definitions.resolve_job_def("iteration").execute_in_process(
            partition_key="0001", instance=instance, asset_selection=[dg.AssetKey("evaluations")]
        )
        said = [entry.user_message for entry in instance.all_logs(again.run_id)]
        assert again.success
        assert any("evaluation of iteration 0001 was finished before; its result is reused" in message for message in said)
        assert {path: path.stat().st_mtime_ns for path in results} == results
        assert definitions.resolve_job_def("evaluate").execute_in_process(partition_key="0001", instance=instance).success
    worked = {path.parent.name for path, then in results.items() if path.stat().st_mtime_ns != then}
    assert worked == {"evaluation"}, "the job that evaluates again does"
    assert workspace.sql("select count(*), count(distinct episode_id) from episodes") == rows


def test_the_sample_screenshots_are_pictures(finished_home, tmp_path: Path):
    for number, (data,) in enumerate(finished_home.sql("select data from screenshots limit 5")):
        path = tmp_path / f"{number}.png"
        path.write_bytes(data)
        with Image.open(path) as image:
            assert image.size == (160, 210)
            assert len(image.convert("RGB").getcolors(160 * 210) or []) > 3


def test_kinds_of_lineage_are_the_catalogues(finished_home):
    kinds = {kind for (kind,) in finished_home.sql("select distinct kind from lineage_nodes")}
    assert kinds <= {kind.name for kind in NODE_KINDS}
