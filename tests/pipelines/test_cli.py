"""The command line with wrong input: exit status 1 and a sentence, never a traceback; and help that names the choices."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipelines.cli import app as cli
from pipelines.cli.data import tables as table_commands
from pipelines.orchestration.instance import prepare
from pipelines.orchestration.runs.iteration_lock import lock_path
from sandbox.browser.chromium import find_chromium
from sandbox.terminal.bubblewrap import find_bubblewrap
from tests.disks import fill
from warehouse.core.errors import UnknownTable
from warehouse.core.home import Home
from warehouse.core.locks import FileLock
from warehouse.datasets.mixing import MixtureConfig, SamplePool, mixed
from warehouse.datasets.withdrawal import withdrawn_ids
from warehouse.lineage import registry
from warehouse.routing.samples import sample_row
from warehouse.storage.sql.query import connect
from warehouse.storage.tables import Warehouse

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("run", "ui", "status", "eval", "blame", "sql", "lineage", "export", "withdraw", "merge", "report", "doctor")
Say = Callable[..., str]


@pytest.fixture
def fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run the command in this process, on an empty home; what it says as it fails."""
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    for name in ("FLYWHEEL_PROFILE", "FLYWHEEL_PROFILE_OVERRIDES"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["flywheel", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert ended.value.code == 1, f"{said.out}\n{said.err}"
        assert "Traceback" not in said.err and "Traceback" not in said.out
        return " ".join(said.err.split())

    return run


@pytest.mark.parametrize("command", ["run", "eval 0001/merged_policy", "ui"])
def test_an_unknown_profile_is_named_with_those_there_are(fails: Say, command: str):
    said = fails(*command.split(), "--profile", "nightly")
    assert said.startswith("ConfigError: there is no profile `nightly`") and "quickstart, sandbox, smoke" in said


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("rl.round=3", ["the profile smoke with rl.round", "unknown key", "did you mean rounds?"]),
        ("rounds=3", ["unknown key"]),
        ("seed=many", ["seed", "'many'"]),
        ("rl.rounds", ["not KEY=VALUE", "--set rl.rounds=4"]),
        ("rl.rounds={", ["not YAML"]),
        ("tasks.lists=[miniwob:nothing]", ["tasks.lists", "quickstart"]),
        ("seed.deep=1", ["`seed` is not a group"]),
    ],
)
def test_a_wrong_setting_is_named(fails: Say, setting: str, words: list[str]):
    said = fails("run", "--profile", "smoke", "--set", setting)
    assert said.startswith("ConfigError:") and all(word in said for word in words), said


def test_queries_that_are_wrong_are_answered_in_a_sentence(fails: Say):
    assert "selct" in fails("sql", "selct 1")
    assert "no_such_table" in fails("sql", "from no_such_table")
    assert "two" in fails("sql", "from episodes", "--as-of", "two")
    assert "Error:" in fails("sql", "copy (select 1) to '/tmp/never.csv'")
    assert not Path("/tmp/never.csv").exists()


@pytest.mark.parametrize("command", ["status", "sql select", "lineage x", "export out", "withdraw x", "report", "eval x", "merge x -o y"])
def test_a_home_that_is_not_there_is_not_taken_for_an_empty_one(fails: Say, command: str, tmp_path: Path):
    said = fails(*command.split(), "--home", str(tmp_path / "hoem"))
    assert said.startswith("ConfigError: there is no home") and "hoem" in said and not (tmp_path / "hoem").exists()


def test_an_iteration_to_come_has_no_past(fails: Say, tmp_path: Path):
    warehouse = Warehouse(Home(tmp_path / "home"))
    registry.register(warehouse, iteration="0002", stage="sft_model", checkpoint_id="checkpoint-1", folder=warehouse.home.root / "c")
    for arguments in (("sql", "from episodes"), ("export", str(tmp_path / "out"))):
        assert "the newest iteration" in fails(*arguments, "--as-of", "0003") and not (tmp_path / "out").exists()
    assert CliRunner().invoke(cli.app, ["sql", "from episodes", "--as-of", "0002"]).exit_code == 0


def test_rows_wider_than_the_terminal_are_printed_upright(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path))
    monkeypatch.setattr(table_commands, "console", Console(width=80))
    ids = ", ".join(f"'checkpoint-{number:016d}' as column_{number}" for number in range(6))
    lines = CliRunner().invoke(cli.app, ["sql", f"select {ids}"]).output.splitlines()
    assert [line.split() for line in lines[1:]] == [[f"column_{number}", f"checkpoint-{number:016d}"] for number in range(6)]
    (narrow,) = (line for line in CliRunner().invoke(cli.app, ["sql", "select 'a' as x, 'b' as y"]).output.splitlines() if "a" in line)
    assert narrow.split() == ["│", "a", "│", "b", "│"]


def test_lineage_says_how_to_see_what_it_leaves_out(tmp_path: Path):
    warehouse = Warehouse(Home(tmp_path / "home"))
    members = [{"dataset_id": "dataset-1", "kind": "ct", "sample_id": f"sample-{i}", "component": "x", "weight": 1.0} for i in range(9)]
    warehouse.replace_partition("datasets", members, iteration="0001", stage="ct_dataset")
    command = ["lineage", "dataset-1", "--home", str(tmp_path / "home")]
    said = " ".join(CliRunner().invoke(cli.app, command).output.split())
    assert "… 6 more ct_samples" in said and "--all shows all" in said and "\"from ancestors('dataset-1')\"" in said
    whole = CliRunner().invoke(cli.app, [*command, "--all"]).output
    assert whole.count("sample-") == 9 and "more" not in whole and "--all" not in whole
    reported = json.loads(CliRunner().invoke(cli.app, [*command, "--all", "--json"]).stdout)
    assert len(reported["nodes"]) == 10 and len(reported["edges"]) == 9 and reported["start"] == ["dataset", "dataset-1"]


@pytest.mark.slow
def test_a_run_without_a_browser_says_so_before_anything_is_worked(fails: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLYWHEEL_CHROMIUM", str(tmp_path / "nowhere"))
    assert fails("run", "--profile", "smoke").startswith("BrowserMissing: FLYWHEEL_CHROMIUM")
    assert not list((tmp_path / "home").rglob("request.json"))


@pytest.mark.slow
def test_a_run_of_terminals_without_bubblewrap_says_so_before_anything_is_worked(
    fails: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FLYWHEEL_CHROMIUM", str(find_chromium().path))
    monkeypatch.setenv("PATH", str(tmp_path))
    find_bubblewrap.cache_clear()
    said = fails("run", "--profile", "smoke", "--set", "tasks.lists=['terminal']", "--set", "tasks.domains=['terminal']")
    assert said.startswith("BubblewrapMissing: bwrap is not installed") and "apt-get install bubblewrap" in said
    assert not list((tmp_path / "home").rglob("request.json"))


@pytest.mark.parametrize("command", ["eval checkpoint-unknown", "eval /no/such", "eval 0009/merged_policy", "lineage episode-unknown"])
def test_what_nobody_knows_is_named(fails: Say, command: str):
    said = fails(*command.split())
    assert command.split()[1].split("/")[0] in said


def test_other_wrong_words_are_named_with_what_is_allowed(fails: Say, tmp_path: Path):
    assert "holdout" in fails("eval", "0001/merged_policy", "--split", "train")
    assert "--step-budgets" in fails("eval", "0001/merged_policy", "--svg", str(tmp_path / "curve.svg"))
    assert "trl" in fails("export", str(tmp_path / "out"), "--format", "csv")
    assert "dataset-unknown" in fails("export", str(tmp_path / "out"), "--dataset", "dataset-unknown")
    assert "up" in fails("lineage", "episode-unknown", "--direction", "sideways")
    assert "weights" in fails("merge", "a", "b", "-o", str(tmp_path / "m"), "--weights", "half,half")


def test_a_home_that_cannot_be_made_is_named(fails: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "file"))
    said = fails("run", "--profile", "smoke")
    assert said.startswith("ConfigError:") and "FLYWHEEL_HOME" in said


def test_a_second_run_names_the_process_of_the_first(fails: Say, tmp_path: Path):
    with FileLock(lock_path(Home(tmp_path / "home"))):
        said = fails("run", "--profile", "smoke")
    assert said.startswith(f"IterationLocked: process {os.getpid()} is running an iteration")


def test_a_port_in_use_is_named(fails: Say):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = fails("ui", "--profile", "smoke", "--port", str(taken.getsockname()[1]))
    assert said.startswith("ConfigError: port") and "--port" in said


def test_a_disk_without_room_is_named_before_anything_starts(fails: Say, small_disk: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLYWHEEL_HOME", str(small_disk / "home"))
    said = fails("run", "--profile", "smoke")
    assert said.startswith("StorageFull: no room for an iteration") and str(small_disk / "home") in said and "MiB are wanted" in said
    fill(small_disk / "filler")
    assert fails("run", "--profile", "smoke").startswith("StorageFull:")


def test_postgres_without_its_package_is_named(fails: Say, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLYWHEEL_POSTGRES_URL", "postgresql://nobody@127.0.0.1/nothing")
    monkeypatch.setattr("pipelines.orchestration.instance.find_spec", lambda name: None)
    said = fails("run")
    assert said.startswith("ConfigError:") and "'dagster-postgres'" in said and "flywheel[postgres]" in said


def test_another_database_than_postgres_is_refused(fails: Say, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLYWHEEL_POSTGRES_URL", "mysql://nobody:secret@127.0.0.1/nothing")
    said = fails("run")
    assert said.startswith("ConfigError:") and "'mysql'" in said and "postgresql://" in said and "secret" not in said


def test_an_empty_home_has_a_status_and_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in prepare(Home(tmp_path / "home")).items():
        monkeypatch.setenv(name, value)
    runner = CliRunner()
    assert "nothing has run" in runner.invoke(cli.app, ["status"]).output
    assert '"iterations": []' in runner.invoke(cli.app, ["status", "--json"]).output
    assert runner.invoke(cli.app, ["sql", "select count(*) from episodes"]).exit_code == 0


@pytest.mark.slow
def test_what_is_withdrawn_joins_no_dataset_and_is_erased_on_demand(fails: Say, tmp_path: Path):
    warehouse = Warehouse(Home(tmp_path / "home"))
    rows = [
        sample_row("sft", origin="demonstration", domain="pointing", messages=[{"role": "user", "content": name}], response="Action wait")
        for name in ("kept", "a phone number", "a name")
    ]
    kept, *taken_back = (row["sample_id"] for row in rows)
    written = warehouse.replace_partition("sft_samples", rows, iteration="0000", stage="seed_demonstrations")

    def say(*arguments: str, **given: str) -> str:
        ran = CliRunner().invoke(cli.app, ["withdraw", *arguments], **given)
        assert ran.exit_code == (1 if given else 0), ran.output
        return ran.output

    assert "nothing to withdraw" in fails("withdraw")
    assert "sample-unknown" in fails("withdraw", taken_back[0], "sample-unknown")
    assert "2 of sft_samples withdrawn from iteration 0000 on" in say(taken_back[0], taken_back[1][:-4])
    assert f"{taken_back[0]} was withdrawn already" in say(taken_back[0])
    with connect(warehouse) as con:
        assert [row["sample_id"] for row in mixed(con, "sft", "0001", MixtureConfig(demonstration=SamplePool())).rows.to_pylist()] == [kept]
    with FileLock(lock_path(warehouse.home)):
        assert fails("withdraw", "--purge", "--yes").startswith("IterationLocked:")
        assert "nothing was withdrawn" in fails("withdraw", kept, "--purge", "--yes")
    assert kept not in withdrawn_ids(warehouse, "sft_samples"), "what refuses does nothing before"
    assert "to erase for good: 2" in say("--purge", input="n\n")
    assert warehouse.read("sft_samples", version=written).num_rows == 3
    assert "2 rows of sft_samples erased" in say("--purge", "--yes")
    with pytest.raises(UnknownTable, match="a purge erased"):
        warehouse.read("sft_samples", version=written)
    assert "nothing to erase" in say("--purge", "--yes")


def test_what_is_no_sample_cannot_be_withdrawn(fails: Say, tmp_path: Path):
    warehouse = Warehouse(Home(tmp_path / "home"))
    registry.register(warehouse, iteration="0000", stage="seed_policy", checkpoint_id="checkpoint-1", folder=warehouse.home.root / "c")
    assert "checkpoint-1 is of the kind checkpoint: only annotations" in fails("withdraw", "0000/seed_policy")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str):
    ran = CliRunner().invoke(cli.app, [command, "--help"])
    assert ran.exit_code == 0 and "Usage" in ran.output and len(ran.output.splitlines()) > 8


def test_the_command_lists_its_commands_and_the_module_is_the_command():
    ran = subprocess.run([sys.executable, "-m", "pipelines.cli", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and ran.stderr == ""
    assert all(f" {command} " in ran.stdout for command in COMMANDS)
    wrong = subprocess.run([sys.executable, "-m", "pipelines.cli", "turn"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 2 and "No such command" in wrong.stderr
