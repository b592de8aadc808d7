"""Commands, stages and runs on a machine that refuses: too little memory, a full or read-only disk, a damaged database. Each ends with the
error's name and once, in processes of their own.
"""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from rich.console import Console

from assets.stages.failures import RETRY, retried
from assets.stages.requests import InitialiseRequest
from pipelines.cli.runs.run import _launch_until_done
from pipelines.orchestration.instance import open_instance
from pipelines.orchestration.runs.failures import failure_of
from pipelines.orchestration.runs.process import LAST_WORDS
from pipelines.orchestration.work.folder import ERROR, work_folder
from pipelines.orchestration.work.stage_runner import PipesStageRunner
from tests.disks import fill, mounted_disk
from warehouse.core.errors import StageFailed
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

ROOT = Path(__file__).resolve().parents[2]
LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
module = sys.argv[2]
del sys.argv[1:3]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def ran(home: Home, *command: str, saying: int | None = None) -> subprocess.CompletedProcess[str]:
    """`saying`: a descriptor for its last words."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLYWHEEL_", "DAGSTER_"))}
    ours = {"FLYWHEEL_HOME": str(home.root), "COLUMNS": "300"}
    words = {} if saying is None else {LAST_WORDS: str(saying)}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment | ours | words,
        pass_fds=() if saying is None else (saying,),
        capture_output=True,
        text=True,
        timeout=300,
    )


def named(done: subprocess.CompletedProcess[str]) -> str:
    """What a command that failed by name says."""
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize("mib", [150, 1024, 2048])
def test_a_command_with_too_little_address_space_names_the_limit(tmp_path: Path, mib: int) -> None:
    said = named(ran(Home(tmp_path), "-c", LIMITED, str(mib << 20), "pipelines.cli", "status"))
    assert said.startswith(f"MachineLimit: this process may address {mib << 20:,} bytes (`ulimit -v`)"), said


def test_a_stage_with_too_little_address_space_names_the_limit(tmp_path: Path) -> None:
    home = Home(tmp_path)
    folder = work_folder(home, "0000", "seed_policy")
    PipesStageRunner._prepare(folder, InitialiseRequest(iteration="0000", stage="seed_policy", seed=0, curricula=("web",)))
    said = named(ran(home, "-c", LIMITED, str(2 << 30), "pipelines.stages", str(folder)))
    left = json.loads((folder / ERROR).read_text())
    assert left["type"] == "MachineLimit" and "ulimit -v" in left["message"] and said.endswith(f"MachineLimit: {left['message']}\n")


@pytest.mark.slow
def test_a_run_whose_process_meets_a_full_disk_says_so(tmp_path: Path) -> None:
    """Its log cannot be written then, nor its record; who started it hears of it all the same."""
    with mounted_disk(tmp_path / "home", "4m"):
        home = Home(tmp_path / "home")
        assert ran(home, "-m", "pipelines.cli", "status").returncode == 0
        fill(home.root / "filler")
        words, saying = os.pipe()
        with os.fdopen(words, "rb") as hearing:
            with os.fdopen(saying, "wb"):
                said = named(ran(home, "-m", "pipelines.orchestration.runs.process", "seed_iteration", saying=saying))
            left = json.loads(hearing.read())
    assert left["type"] == "StorageFull" and left["message"].startswith(f"no room for {home.root}"), left
    assert said.endswith(f"StorageFull: {left['message']}\n"), said


@pytest.mark.slow
def test_a_run_whose_process_has_too_little_memory_is_launched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited, home, said = tmp_path / "python", Home(tmp_path / "home"), io.StringIO()
    limited.write_text(f'#!/bin/sh\nulimit -v 2000000\nexec {sys.executable} "$@"\n')
    limited.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(limited))
    monkeypatch.setenv("FLYWHEEL_HOME", str(home.root))
    with open_instance(home) as instance, pytest.raises(StageFailed) as failed:
        _launch_until_done("seed_iteration", None, "seed", home, instance, Console(file=said, width=400))
    assert said.getvalue().count("launch ") == 1, said.getvalue()
    assert str(failed.value).startswith("seed failed: MachineLimit: this process may address 2,048,000,000 bytes"), failed.value


REFUSALS = {
    "full": (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "StorageFull: no room for"),
    "memory": (MemoryError(), "MachineLimit: no more memory"),
    "files": (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "MachineLimit: this process may not open more"),
}


@pytest.mark.parametrize("where", ["step", "resource"])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_the_machine_refuses_a_step_is_started_once(place: Any, refusal: str, where: str) -> None:
    error, words = REFUSALS[refusal]
    starts = []

    @dg.resource
    def scarce(context: dg.InitResourceContext) -> int:
        if where == "resource":
            starts.append(where)
            raise error
        return 1

    @dg.asset(required_resource_keys={"scarce"}, retry_policy=RETRY)
    @retried
    def thing() -> None:
        starts.append(where)
        raise error

    result = dg.materialize([thing], instance=place.instance, resources={"scarce": scarce}, raise_on_error=False)
    failure = failure_of(place.instance, place.instance.get_run_by_id(result.run_id))
    assert words in failure.words and not failure.is_to_relaunch and len(starts) == 1, failure


@pytest.mark.slow
def test_commands_on_a_read_only_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only looks goes on; what has to write names the home. Nothing is launched."""
    with mounted_disk(tmp_path / "home", "600m"):
        home = Home(tmp_path / "home")
        monkeypatch.setenv("FLYWHEEL_HOME", str(home.root))
        open_instance(home).dispose()
        rows = [{"episode_id": "ep-1", "route": "ct", "reason": "V=0"}]
        Warehouse(home).replace_partition("routes", rows, iteration="0001", stage="routing")
        query = ("-m", "pipelines.cli", "sql", "select episode_id from routes")
        assert ran(home, *query).returncode == 0
        subprocess.run(["mount", "-o", "remount,ro", str(home.root)], check=True)
        said = named(ran(home, "-m", "pipelines.cli", "run", "--profile", "smoke", "--iterations", "1"))
        assert said.startswith("ConfigError:") and str(home.root) in said and "--home" in said, said
        read = ran(home, *query)
        assert read.returncode == 0 and "ep-1" in read.stdout, read.stderr
        for command in ("verify", "status", "doctor"):
            done = ran(home, "-m", "pipelines.cli", command)
            assert "Traceback" not in done.stdout + done.stderr, done.stderr
            assert done.returncode == 0 or str(home.root) in done.stdout + done.stderr, (command, done.stdout, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("command", [("run", "--profile", "smoke", "--iterations", "1"), ("status",)])
def test_commands_on_a_home_whose_runs_are_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    home = Home(tmp_path / "home")
    monkeypatch.setenv("FLYWHEEL_HOME", str(home.root))
    open_instance(home).dispose()
    (damaged,) = home.dagster.rglob("runs.db")
    for beside in damaged.parent.glob("runs.db-*"):
        beside.unlink()
    damaged.write_bytes(b"not a database at all" * 1000)
    said = named(ran(home, "-m", "pipelines.cli", *command))
    assert said.startswith("CorruptDatabase:") and f"{damaged} is damaged" in said and "Restore it from a backup" in said, said
    assert damaged.read_bytes().startswith(b"not a database"), "it is left as it was found"
