"""`kill -9` of everything that can be killed, and a disk that fills up, while an iteration runs. Whatever had been acknowledged is there
once; nothing is left behind.

Each trial runs iterations on a copy of a finished home until its kills are done, goes on as a person would (the same command again), and
asks SQL. Moments are random and seeded, as fractions of what each stage took in the finished home and, after a kill that came too late, of
the time that its target really lived.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from assets.gates.invariants import INVARIANTS
from benchmarks.common.acknowledged import acknowledged_episodes, logged_episodes
from pipelines.orchestration.services import prefect_server
from tests.disks import fill, mounted_disk
from tests.iterations.conftest import PROFILE
from warehouse.storage.sql.query import connect

pytestmark = pytest.mark.timeout(3600)

GONE_S = 15.0
"""Nothing may be left behind longer than this."""
MAX_COMMANDS = 8
MAX_ITERATIONS = 6
POLL_S = 0.25

TARGETS = {
    "command": ["command"] * 3,
    "run": ["run"] * 3,
    "supervised": ["worker ct_model", "worker sft_model", "worker sft_model"],
    "rl": ["worker rl_pointing", "worker rl_forms", "worker rl_pointing"],
    "chromium": ["browser rl_pointing", "browser rl_forms", "browser rollouts"],
    "prefect": ["server rollouts"] * 3,
    "everything": ["worker merged_policy", "worker evaluation", "worker rollouts", "worker annotations"],
}
"""What is killed, one after the other: `worker STAGE`, `browser STAGE` and `server STAGE` only while that stage works."""


def acknowledged(workspace: Any) -> set[str]:
    return acknowledged_episodes(workspace.home, (episode for (episode,) in workspace.sql("select episode_id from episodes")))


def assert_nothing_lost(workspace: Any, promised: set[str], *, outdated: str | None = None) -> None:
    """Every promised episode is stored, none twice, and no rule of the flywheel is broken in any iteration; those of the asset that is
    outdated, because what it is made of was made again, are not asked."""
    stored = [episode for (episode,) in workspace.sql("select episode_id from episodes")]
    assert len(stored) == len(set(stored)), "an episode is counted twice"
    assert promised - set(stored) == set(), "an acknowledged episode is lost"
    assert workspace.sql("select episode_id from routes group by all having count(*) > 1") == []
    routed = "select episode_id from episodes where purpose in ('rollout', 'annotation')"
    assert workspace.sql(f"{routed} except select episode_id from routes") == []
    assert workspace.sql(f"select episode_id from routes except {routed}") == []
    for kind in ("ct", "sft"):
        assert workspace.sql(f"select sample_id from {kind}_samples where not withdrawn group by all having count(*) > 1") == []
    assert workspace.sql("select outcome from episodes where outcome = 'crashed' and error not like '%Browser%'") == []
    for (iteration,) in workspace.sql("select distinct iteration from routes"):
        with connect(workspace.warehouse) as con:
            for invariant in (each for each in INVARIANTS if each.asset != outdated):
                assert con.execute(invariant.sql, {"iteration": iteration}).fetchall() == [], f"{invariant.name} of {iteration}"


@dataclass
class Trial:
    """One home on which kills are carried out while `flywheel run` goes on."""

    workspace: Any
    kills: list[str]
    random: random.Random
    seconds: dict[str, float]
    """What each stage took."""
    promised: set[str] = field(default_factory=set)
    log: list[str] = field(default_factory=list)

    def run(self) -> None:
        for num_iterations in range(2, MAX_ITERATIONS + 1):
            self.run_iterations(num_iterations)
            if not self.kills:
                return
        pytest.fail(f"{self.kills} never met their targets:\n" + "\n".join(self.log))

    def run_iterations(self, num_iterations: int) -> None:
        """Give the command again and again, as a person would, until the iteration is complete."""
        for _ in range(MAX_COMMANDS):
            output = self.workspace.base / "command.log"
            with output.open("a") as log:
                command = self.workspace.start("-m", "pipelines.cli", "run", "--iterations", str(num_iterations), stdout=log)
            self.kill_during(command)
            self.note(f"the command ended with {command.returncode}")
            if command.returncode == 0:
                return
            assert self.workspace.left_after(GONE_S) == [], "\n".join(self.log)
        pytest.fail("\n".join([*self.log, output.read_text()[-3000:]]))

    def kill_during(self, command: subprocess.Popen[str]) -> None:
        while command.poll() is None:
            if not self.kills:
                command.wait()
                return
            kind, _, stage = self.kills[0].partition(" ")
            target = self.find(kind, stage, command)
            if target is None:
                time.sleep(POLL_S)
                continue
            wait_s, seen = self.random.random() * self.seconds[stage or "iteration"], time.monotonic()
            if self.is_gone_after(wait_s, target):
                self.seconds[stage or "iteration"] = time.monotonic() - seen
                self.note(f"{self.kills[0]} was gone before {wait_s:.1f} s")
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                target.kill()
            self.promised |= acknowledged(self.workspace)
            self.note(f"{self.kills.pop(0)} killed after {wait_s:.1f} s; {len(self.promised)} episodes acknowledged")
            self.is_gone_after(GONE_S, target)

    def find(self, kind: str, stage: str, command: subprocess.Popen[str]) -> psutil.Process | None:
        if kind == "command":
            return psutil.Process(command.pid)
        if kind == "run":
            return self.process_with("pipelines.orchestration.runs.process")
        worker = self.process_with("pipelines.stages", f"/{stage}")
        if kind == "worker" or worker is None:
            return worker
        if kind == "server":
            return self.process_with(prefect_server.APPLICATION)
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in worker.children():
                if any(part.startswith("--user-data-dir=") for part in child.cmdline()):
                    return child
        return None

    def process_with(self, *marks: str) -> psutil.Process | None:
        for process in self.workspace.processes():
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                if all(re.search(rf"{re.escape(mark)}(\s|$|:)", command) for mark in marks):
                    return process
        return None

    @staticmethod
    def is_gone_after(seconds: float, process: psutil.Process) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    time.sleep(POLL_S)
                    continue
            return True
        return False

    def note(self, text: str) -> None:
        self.log.append(f"{time.strftime('%X')} {text}")


@pytest.fixture
def stage_seconds(finished_home) -> dict[str, float]:
    results = {path.parent.name: json.loads(path.read_text())["duration_s"] for path in finished_home.home.work.glob("0001/*/result.json")}
    return {**results, "iteration": sum(results.values())}


@pytest.mark.long
@pytest.mark.parametrize("target", [pytest.param(name, marks=pytest.mark.ci) if name == "everything" else name for name in TARGETS])
def test_killed_three_times_the_iterations_go_on(target: str, finished_home, copy_of, stage_seconds):
    trial = Trial(copy_of(finished_home), list(TARGETS[target]), random.Random(f"faults {target}"), stage_seconds)
    trial.run()
    print("\n".join(trial.log))
    assert_nothing_lost(trial.workspace, trial.promised)
    assert trial.workspace.left_after(GONE_S) == []


@pytest.mark.slow
def test_killed_once_the_iterations_go_on(finished_home, copy_of, stage_seconds):
    """The one trial of every day: the run that works the stages, killed in the first half of the iteration."""
    halves = {stage: seconds / 2 for stage, seconds in stage_seconds.items()}
    trial = Trial(copy_of(finished_home), ["run"], random.Random("faults once"), halves)
    trial.run()
    print("\n".join(trial.log))
    assert not trial.kills and trial.promised
    assert_nothing_lost(trial.workspace, trial.promised)
    assert trial.workspace.left_after(GONE_S) == []


@pytest.mark.long
@pytest.mark.ci
def test_a_full_disk_ends_the_run_by_name_and_with_room_the_same_command_goes_on(new_workspace):
    workspace = new_workspace()
    command = ("-m", "pipelines.cli", "run", "--iterations", "1", "--profile", PROFILE)
    folder = workspace.home.work / "0000" / "seed_demonstrations"
    filler = workspace.home.root / "filler"
    with mounted_disk(workspace.home.root, "600m"):
        run = workspace.start(*command)
        while run.poll() is None and not (folder / "request.json").exists():
            time.sleep(POLL_S)
        while run.poll() is None:
            fill(filler)
            time.sleep(POLL_S)
        said = run.communicate()[0]
        assert run.returncode == 1 and "Traceback" not in said, said
        assert "StorageFull: no room for" in said and str(workspace.home.root) in said and "MiB" in said, said
        status = workspace.flywheel("status")
        assert "Traceback" not in status.stderr and (status.returncode == 0 or status.stderr.startswith("StorageFull:")), status.stderr
        assert not (folder / "result.json").exists() and workspace.left_after(GONE_S) == []

        filler.unlink()
        again = workspace.start(*command)
        while again.poll() is None and not (folder / "result.json").exists():
            time.sleep(POLL_S)
        assert again.poll() is None, again.communicate()[0]
        again.terminate()
        again.communicate()
        stored = workspace.sql("select count(*), count(distinct episode_id) from episodes where stage = 'seed_demonstrations'")
        assert stored[0][0] == stored[0][1] > 0
        assert workspace.left_after(GONE_S) == []


@pytest.mark.long
@pytest.mark.ci
def test_a_killed_trainer_goes_on_with_the_episodes_it_had(finished_home, copy_of):
    """The worker of one RL stage by itself, killed in the midst of its first round."""
    workspace = copy_of(finished_home)
    folder = workspace.home.work / "0001" / "rl_pointing"
    (folder / "result.json").unlink()
    logs = workspace.home.checkpoints / "0001" / "rl_pointing" / "run"
    shutil.rmtree(logs.parent)
    before = {episode for (episode,) in workspace.sql("select episode_id from episodes where stage <> 'rl_pointing'")}

    with (workspace.base / "worker.log").open("w") as log:
        worker = workspace.start("-m", "pipelines.stages", str(folder), stdout=log)
        while worker.poll() is None and not any(list(logged_episodes(path)) for path in logs.glob("*/episodes/episodes.jsonl")):
            time.sleep(0.02)
        worker.kill()
        worker.wait()
        kept = {episode for path in logs.glob("*/episodes/episodes.jsonl") for episode in logged_episodes(path)}
        assert kept and workspace.left_after(GONE_S) == []

        again = workspace.start("-m", "pipelines.stages", str(folder), stdout=log)
        assert again.wait(900) == 0, (workspace.base / "worker.log").read_text()[-3000:]
    assert_nothing_lost(workspace, before | kept, outdated="merged_policy")
    (path,) = logs.glob("*/episodes/episodes.jsonl")
    logged = list(logged_episodes(path))
    assert len(logged) == len(set(logged)), "what was finished is not run again"
    assert workspace.left_after(GONE_S) == []


@pytest.mark.slow
def test_what_a_killed_stage_would_go_on_from_is_gone_once_it_has_ended(finished_home):
    home = finished_home.home
    assert finished_home.sql("select count(*) > 0 from screenshots") == [(True,)]
    runs = sorted(home.checkpoints.glob("0001/*/run"))
    assert [folder.parent.name for folder in runs] == ["ct_model", "rl_forms", "rl_pointing", "sft_model"]
    assert not list(home.checkpoints.glob("*/*/draft")) and not list(home.work.glob("*/*/episodes"))
    for folder in runs:
        assert not list(folder.rglob("checkpoint-*")) and not list(folder.rglob("state")), folder
        assert list(folder.rglob("metrics.jsonl")), "curves stay"
