"""`flywheel import tasks` and `sets`, as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.importing.tasks import import_task_files
from sandbox.tasks.sources import tasks_of
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.storage.catalogue import SPLITS

TASKS = """
tasks:
- {name: good, kind: terminal, instruction: Make x., goals: [{kind: file, path: x}], oracle: [{command: touch x}]}
- {name: solved, kind: terminal, instruction: Make y., files: {y: ''}, goals: [{kind: file, path: y}]}
- {name: broken, kind: terminal, instruction: Make z., setup: [{command: 'exit 3'}], goals: [{kind: file, path: z}]}
- {name: site, kind: web, instruction: Look it up., website: example.org}
- {name: typo, kind: terminal, instrution: x}
"""


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "My Tasks.yaml"
    path.write_text(TASKS)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def flywheel(*words: str | Path) -> str:
    result = CliRunner().invoke(app, ["import", *map(str, words)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_tasks_are_imported_counted_and_listed(task_file: Path, home: Path) -> None:
    said = flywheel("tasks", "plain", task_file)
    assert "5 records: 4 tasks, 3 of them run here, 1 not; 0 duplicates, 1 malformed." in " ".join(said.split())
    assert "wants a live site" in said and "did you mean `instruction`?" in said and "imported:my-tasks" in said
    assert "nothing changed" in flywheel("tasks", "plain", task_file)
    assert [task.name for task in tasks_of("imported:my-tasks")] == ["my-tasks:good", "my-tasks:solved", "my-tasks:broken"]
    (row,) = json.loads(flywheel("sets", "--json"))
    assert (row["name"], row["tasks"], row["runnable"]) == ("my-tasks", 4, 3)
    rows = {row["name"]: row["runs"] for row in json.loads(flywheel("sets", "my-tasks", "--json"))}
    assert rows["good"] == "yes" and "live site" in rows["site"]


def test_it_is_said_which_split_each_task_is_in_and_why(task_file: Path, home: Path, tmp_path: Path) -> None:
    said = flywheel("tasks", "plain", task_file)
    lines = {line.split()[0]: line for line in said.splitlines() if line.split()[1:2] in [[split] for split in SPLITS]}
    rows = {row["name"]: row["split"] for row in json.loads(flywheel("sets", "my-tasks", "--json"))}
    assert rows == {"good": rows["good"], "solved": "train", "broken": "train", "site": ""} and rows["good"] in SPLITS[1:]
    assert {name: line.split()[1] for name, line in lines.items()} == {name: split for name, split in rows.items() if split}
    assert "its hash is among the 20 %" in lines["good"] and "never" not in lines["solved"] and "Nothing of this set" not in said
    listed = {task.name: task for task in tasks_of("imported:my-tasks")}
    assert {name: task.split(0) for name, task in listed.items()} == {f"my-tasks:{name}": split for name, split in rows.items() if split}

    alone = tmp_path / "alone.yaml"
    alone.write_text("tasks:\n" + TASKS.strip().splitlines()[1])
    said = flywheel("tasks", "plain", alone)
    assert "1 record: 1 task, 1 of them run" in said
    assert "Nothing of this set is trained on" in said and "about 80 % are for training" in " ".join(said.split())
    said = flywheel("tasks", "plain", task_file, "--name", "bench", "--held-out")
    assert said.count("never trained on: --held-out") == 3 and "about 80 %" not in said


def test_a_check_sets_every_task_up_and_finds_those_that_cannot_be_used(task_file: Path, home: Path) -> None:
    said = flywheel("tasks", "plain", task_file, "--name", "checked", "--check", "--verbose")
    assert "is solved before it begins" in said and "its setup fails" in said
    assert [task.name for task in tasks_of("imported:checked")] == ["checked:good"]
    assert "nothing changed" in flywheel("tasks", "plain", task_file, "--name", "checked", "--check")


def test_a_dry_run_writes_nothing(task_file: Path, home: Path) -> None:
    assert "would be written" in flywheel("tasks", "plain", task_file, "--dry-run")
    assert not (home / "task_sets").exists()


def test_a_benchmark_is_reported_wherever_it_is_imported_again(task_file: Path, home: Path) -> None:
    """Two of the four tasks are held out by their own content anyway."""
    flywheel("tasks", "plain", task_file, "--name", "bench", "--held-out")
    assert "held out here too, because the set bench holds them out: 2 tasks" in flywheel("tasks", "plain", task_file, "--name", "ours")
    assert len(tasks_of("imported:ours")) == 3 and all(task.held_out for task in tasks_of("imported:ours"))
    assert sorted(row["held_out"] for row in json.loads(flywheel("sets", "ours", "--json"))) == ["by bench", "by bench", "yes", "yes"]
    assert [row["held_out"] for row in json.loads(flywheel("sets", "--json"))] == [4, 4]
    assert "held out until now, and trained on from here on: 2 tasks" in flywheel("tasks", "plain", task_file, "--name", "bench")
    assert not all(task.held_out for task in tasks_of("imported:ours"))
    again = flywheel("tasks", "plain", task_file, "--name", "bench", "--held-out")
    assert "of the set ours held out too, because this one holds them out: 2 tasks" in again


def test_wrong_requests_are_refused(task_file: Path, home: Path, tmp_path: Path) -> None:
    def attempt(format: str, path: Path, name: str | None = None) -> None:
        import_task_files(
            Home(home), format, [path], Console(quiet=True), name=name, assets=[], held_out=False, check=False, dry_run=False, verbose=False
        )

    with pytest.raises(ConfigError, match="the formats are plain, osworld"):
        attempt("excel", task_file)
    with pytest.raises(ConfigError, match="cannot name a task set"):
        attempt("plain", task_file, "No Name")
    with pytest.raises(ConfigError, match="no file or folder"):
        attempt("plain", tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"none of 1 records is a task of the format osworld: My Tasks.yaml:2 `id` is missing"):
        attempt("osworld", task_file)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        attempt("plain", tmp_path / "bad.json")


def test_help_tells_what_each_command_takes() -> None:
    for command in ("tasks", "demonstrations", "sets", "general"):
        assert "Usage" in flywheel(command, "--help")
    assert "OSWorld" in flywheel("tasks", "--help") and "novice" in flywheel("demonstrations", "--help")
