"""Where the flywheel stands: an iteration is complete once the next was opened, whatever its rows look like before."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from pipelines.cli.options import command_in
from pipelines.cli.runs.status import NEWEST, print_status, read_status
from pipelines.orchestration.runs.iteration_lock import driver_path
from pipelines.orchestration.work.progress import Progress
from sandbox.tasks.games.source import load_tasks as games
from sandbox.tasks.miniwob.source import load_tasks
from tests.warehouse.conftest import Make
from warehouse.core.errors import CorruptTable
from warehouse.core.locks import FileLock
from warehouse.lineage import registry


def completes(place: Any) -> dict[str, bool]:
    status = read_status(place.warehouse)
    return {iteration.iteration: iteration.complete for iteration in status.iterations}


def test_an_iteration_that_a_check_keeps_open_is_not_complete(place):
    assert completes(place) == {}
    for iteration, stage in (("0000", "seed_policy"), ("0001", "released_policy")):
        folder = place.home.checkpoints / iteration
        registry.register(place.warehouse, iteration=iteration, stage=stage, checkpoint_id="checkpoint-1", folder=folder)
    assert completes(place) == {"0000": False, "0001": False}
    place.open("0001")
    routes = [{"episode_id": "episode-1", "route": "sft", "reason": "V=1"}]
    place.warehouse.replace_partition("routes", routes, iteration="0001", stage="routing")
    assert completes(place) == {"0000": True, "0001": False}, "routed and released, but the gate behind may have failed"
    place.open("0002")
    assert completes(place) == {"0000": True, "0001": True}


def test_a_home_of_before_is_asked_of_dagster_once(place):
    register(place, "0000", "seed_policy", "checkpoint-0")
    place.open("0001")
    kept = (place.home.root / "opened.json").read_bytes()
    for damaged in (None, b"", b'{"0001": tr'):
        (place.home.root / "opened.json").unlink() if damaged is None else (place.home.root / "opened.json").write_bytes(damaged)
        assert completes(place) == {"0000": True} and (place.home.root / "opened.json").read_bytes() == kept


def test_status_needs_no_dagster(place):
    """It, and what it brings along, would be most of the time that the command takes."""
    register(place, "0000", "seed_policy", "checkpoint-0")
    place.open("0001")
    program = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); from pipelines.cli.app import main; main()"
    )
    asked = [sys.executable, "-c", program, "status", "--json", "--home", str(place.home.root)]
    ran = subprocess.run(asked, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and [each["complete"] for each in json.loads(ran.stdout)["iterations"]] == [True], ran.stderr
    assert {"duckdb", "deltalake"} <= set(ran.stderr.split()) and {"dagster", "sqlalchemy", "alembic"}.isdisjoint(ran.stderr.split())


def test_each_dataset_stage_names_its_own_snapshot(place):
    """The snapshot of the SFT stage holds samples of both kinds."""
    for stage, dataset, kinds in (("ct_dataset", "dataset-1", ["ct"]), ("sft_dataset", "dataset-2", ["sft", "ct"])):
        members = [{"dataset_id": dataset, "kind": kind, "sample_id": f"sample-{kind}", "component": "x", "weight": 1.0} for kind in kinds]
        place.warehouse.replace_partition("datasets", members, iteration="0001", stage=stage)
    registry.register(
        place.warehouse, iteration="0001", stage="ct_model", checkpoint_id="checkpoint-1", folder=place.home.checkpoints / "0001"
    )
    (status,) = read_status(place.warehouse).iterations
    assert status.datasets == {"ct_dataset": "dataset-1", "sft_dataset": "dataset-2"}


def test_an_iteration_that_has_its_datasets_and_no_weights_yet_is_shown(place):
    register(place, "0000", "seed_policy", "checkpoint-0")
    members = [{"dataset_id": "dataset-1", "kind": "ct", "sample_id": "sample-1", "component": "x", "weight": 1.0}]
    place.warehouse.replace_partition("datasets", members, iteration="0001", stage="ct_dataset")
    place.open("0001")
    shown = reported(place)
    assert "iteration 0001: not complete; `flywheel run` goes on from here" in shown and "dataset-1" in shown


def register(place: Any, iteration: str, stage: str, checkpoint: str) -> None:
    folder = place.home.checkpoints / iteration / stage
    registry.register(place.warehouse, iteration=iteration, stage=stage, checkpoint_id=checkpoint, folder=folder)


def reported(place: Any, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    print_status(read_status(place.warehouse), console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_of_many_iterations_the_newest_are_shown_unless_all_are_asked_for(place):
    for number in range(NEWEST + 3):
        register(place, f"{number:04d}", "sft_model", f"checkpoint-{number}")
        place.open(f"{number:04d}")
    status, console = read_status(place.warehouse), Console(width=120, file=io.StringIO())
    shown, ended = reported(place, width=120), sum(each.complete for each in status.iterations[:3])
    assert f"`--all` shows 3 more, {ended} of them complete" in shown
    assert "checkpoint-2" not in shown and "checkpoint-3" in shown and f"checkpoint-{NEWEST + 2}" in shown
    print_status(status, console, show_all=True)
    assert all(f"checkpoint-{number}" in console.file.getvalue() for number in range(NEWEST + 3))


def test_who_looks_while_an_iteration_runs_is_not_asked_to_start_it(place):
    assert "`flywheel run` starts the first iteration" in reported(place)
    with FileLock(driver_path(place.home)):
        assert reported(place).startswith(f"process {os.getpid()} is running an iteration") and "`flywheel run`" not in reported(place)
        register(place, "0001", "sft_model", "checkpoint-s")
        place.open("0001")
        said = Progress(place.home.work / "0001" / "rl_forms", iteration="0001", stage="rl_forms", log=lambda _: None)
        (place.home.work / "0001" / "rl_forms").mkdir(parents=True)
        said.update(3, 8, "rounds")
        shown = reported(place, width=200)
        assert "now at rl_forms 3/8 rounds" in shown and "iteration 0001: under way" in shown and "`flywheel run`" not in shown
        assert read_status(place.warehouse).running_process_id == os.getpid()
    assert "iteration 0001: not complete; `flywheel run` goes on from here" in reported(place)


def test_what_kept_its_weights_says_whose_they_are(place):
    for stage, checkpoint in (("sft_model", "checkpoint-s"), ("rl_forms", "checkpoint-s"), ("merged_policy", "checkpoint-m")):
        register(place, "0001", stage, checkpoint)
    source = registry.made_by(place.warehouse, "0001", "merged_policy")
    registry.pass_on(place.warehouse, source, iteration="0001", stage="released_policy", note="there is nothing to lose to " * 4)
    register(place, "0002", "ct_model", "checkpoint-m")
    first, second = read_status(place.warehouse).iterations
    assert {item.stage: item.same_as for item in (*first.checkpoints, *second.checkpoints) if item.same_as} == {
        "rl_forms": "0001/sft_model",
        "released_policy": "0001/merged_policy",
        "ct_model": "0001/merged_policy",
    }
    said = reported(place)
    home = f"--home {place.home.root}"
    assert f"Live: 0001/merged_policy (flywheel release list {home})" in said
    assert "the weights of sft_model" in said and "the weights of 0001/merged_policy" in said
    assert f"flywheel lineage 0001/released_policy {home}   what" in said and f"flywheel report {home}   the same" in said
    assert all(f"  {stage}" in said for stage in ("rl_forms", "released_policy")) and "checkpoint-s" in said and "…" not in said
    assert "iteration 0001: not complete; `flywheel run` goes on from here" in said


def test_a_command_that_is_suggested_names_the_home_unless_it_is_the_default(tmp_path, monkeypatch):
    """`make run FLYWHEEL_HOME=…` leaves no variable for the next command, so that one set here does not count."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / ".trial"))
    assert command_in(tmp_path / ".flywheel", "flywheel status") == "flywheel status"
    assert command_in(tmp_path / ".trial", "flywheel status") == "flywheel status --home .trial"
    assert command_in(tmp_path.parent / "two words", "flywheel status") == f"flywheel status --home '{tmp_path.parent}/two words'"


def test_success_of_a_few_episodes_is_reported_with_its_interval(place):
    """One of one is not certainty, and an error of ±0 would say so."""
    register(place, "0001", "sft_model", "checkpoint-s")
    row = {
        "checkpoint_role": "sft_model",
        "checkpoint_id": "checkpoint-s",
        "task_id": "task-1",
        "task_name": "click",
        "domain": "pointing",
        "split": "holdout",
        "num_episodes": 1,
        "num_success": 1,
        "num_crashed": 0,
    }
    place.warehouse.replace_partition("evaluations", [row], iteration="0001", stage="evaluations")
    said = reported(place)
    assert "0.207 – 1.000" in said and "1 of 1" in said and "±" not in said


def test_scores_at_games_are_said_with_what_they_are_normalised_by(place):
    register(place, "0001", "merged_policy", "checkpoint-m")
    task = games("scored")["pairs-16"]
    of = {"task_id": task.task_id, "task_name": task.name, "domain": "games", "mean_points": 40.0, "points_deviation": 5.0}
    row = Make.evaluation("checkpoint-m", "merged_policy", **of)
    place.warehouse.replace_partition("evaluations", [row], iteration="0001", stage="evaluations")
    (found,) = read_status(place.warehouse).iterations[0].games
    assert (found.group, found.normalised, found.num_games, found.scores) == ("scored", "oracle-normalised", 1, {"pairs": 40.0})
    assert found.mean == pytest.approx(25.0) and found.low < 25 < found.high, "of the oracle's 160"
    shown = " ".join(reported(place, width=120).split())
    assert "Scores at games on the holdout split" in shown and "25.0 oracle-normalised" in shown


def test_it_is_said_how_much_of_what_is_reported_is_novel(place):
    """One of two reported instances has the first screen of one that was learned from; a task with one prompt is not reported."""
    now = load_tasks()["click-button"]
    rows = [{"task_id": task.task_id, **task.model_dump()} for task in (now, load_tasks()["click-test-2"])]
    place.warehouse.replace_partition("tasks", rows, iteration="0000", stage="tasks")
    register(place, "0001", "merged_policy", "checkpoint-1")
    of_task = {"task_id": now.task_id, "task_name": now.name}
    played = {"purpose": "evaluation", "split": "holdout", "policy_id": "checkpoint-1", **of_task}
    episodes = [
        Make.episode("e-0", content_id="content-a", instruction="Click a", **of_task),
        Make.episode("e-1", content_id="content-a", instruction="Click a", **played | {"seed": 11}),
        Make.episode("e-2", content_id="content-b", instruction="Click b", outcome="failure", reward=0.0, **played | {"seed": 12}),
    ]
    place.warehouse.replace_partition("episodes", episodes, iteration="0001", stage="evaluation")
    figures = {"checkpoint_id": "checkpoint-1", "checkpoint_role": "merged_policy", "domain": "pointing", "split": "holdout", **of_task}
    row = figures | {"num_episodes": 2, "num_success": 1, "num_crashed": 0}
    place.warehouse.replace_partition("evaluations", [row], iteration="0001", stage="evaluation")
    status = read_status(place.warehouse)
    assert status.novelty is not None and (status.novelty.num_novel, status.novelty.num_instances) == (1, 2)
    assert status.novel_success == {"merged_policy": 0.0} and status.not_reported == ["click-test-2"] and not status.is_of_older_splits
    shown = " ".join(reported(place).split())
    assert "1 (50%) are novel" in shown and "merged_policy 0.000" in shown and "too few different instances: click-test-2" in shown
    older = [row | {"task_id": f"{row['task_id']}-of-before"} for row in rows]
    place.warehouse.replace_partition("tasks", older, iteration="0000", stage="tasks")
    assert "begun before splits were by content" in " ".join(reported(place).split())


def test_a_lost_file_is_named(place):
    planted = [Make.evaluation("ckpt-merged-1", "merged_policy", split="holdout")]
    place.warehouse.replace_partition("evaluations", planted, iteration="0001", stage="evaluation")
    place.warehouse.replace_partition("checkpoints", [Make.checkpoint("ckpt-merged-1")], iteration="0001", stage="merged_policy")
    (lost,) = place.warehouse.folder("evaluations").glob("*/*/*.parquet")
    lost.unlink()
    with pytest.raises(CorruptTable, match="is missing") as caught:
        read_status(place.warehouse)
    assert str(lost) in str(caught.value)
