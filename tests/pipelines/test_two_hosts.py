"""Two hosts that launch: each has a home of its own, Dagster's history is in one Postgres, tables are in one object store. What one host
runs, the other neither starts as well nor takes for dead. And two that reach both over a network, of which one is cut off for a while."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.dagster_run import RunOpConcurrency
from rich.console import Console

from assets.stages.stage_assets import CONCURRENCY_POOL
from benchmarks.common import postgres
from benchmarks.common.hosts import Host, Hosts, can_make_hosts
from benchmarks.common.object_store import BUCKET, an_object_store
from pipelines.cli.runs.run import run_until
from pipelines.orchestration.instance import POSTGRES_VARIABLE, open_instance
from pipelines.orchestration.runs.iteration_lock import IterationLock, driver_path, lock_path
from pipelines.orchestration.runs.living_runs import living_runs
from warehouse.core import leases
from warehouse.core.errors import IterationLocked
from warehouse.core.home import HOME_VARIABLE, Home
from warehouse.core.processes import end_group
from warehouse.core.store import STORE_VARIABLE
from warehouse.storage.tables import Warehouse

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ("DAGSTER_HOME", HOME_VARIABLE, "DAGSTER_DISABLE_TELEMETRY", "FLYWHEEL_PROFILE", "FLYWHEEL_PROFILE_OVERRIDES")
CUT_S = 8.0
MORE = 5
"""Appends that a host makes before its link is cut, while the other's is, and after it is restored."""
PAUSE_S = 0.5
"""After each: a host that does nothing but append can commit first every time, until another's attempts are used up."""

APPENDING = """
import sys
import time
from itertools import count
from pathlib import Path
import dagster as dg
from pipelines.orchestration.instance import open_instance
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

home, stop = Home(Path(sys.argv[1])), Path(sys.argv[2])
warehouse, name = Warehouse(home), home.root.name
row = {"judge": name, "judge_version": "1", "kind": "verdict", "origin": "verifier", "score": 1.0, "threshold": 0.5, "passed": True}
with open_instance(home) as instance:
    for number in count():
        if stop.exists():
            break
        episode = f"{name}-{number}"
        rows = [row | {"reasons": [], "episode_id": episode}]
        version = warehouse.append_partition("verdicts", rows, iteration="0001", stage="verdicts")
        about = {"episode": episode, "version": version}
        instance.report_runless_asset_event(dg.AssetMaterialization("verdicts", partition="0001", metadata=about))
        print(version, flush=True)
        time.sleep(float(sys.argv[3]))
"""


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Home, Home]]:
    """Of two hosts, on one Postgres and one store."""
    if postgres.programs() is None:
        pytest.skip(postgres.MISSING)
    for name in SETTINGS:
        monkeypatch.setenv(name, "")  # set by what is called here
    with an_object_store(tmp_path / "store.log") as server, postgres.a_postgres(is_durable=False) as folder:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv(STORE_VARIABLE, f"s3://{BUCKET}/two-hosts")
        monkeypatch.setenv(POSTGRES_VARIABLE, f"postgresql://{postgres.USER}@/postgres?host={folder}")
        yield Home(tmp_path / "host-a"), Home(tmp_path / "host-b")


def _begun_steps(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int:
    return len(instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_START).records)


@pytest.mark.slow
def test_what_one_host_runs_another_refuses_and_does_not_take_for_dead(homes: tuple[Home, Home], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.5)
    one, two = homes
    works = RunOpConcurrency(root_key_counts={CONCURRENCY_POOL: 1}, has_unconstrained_root_nodes=False, all_pools={CONCURRENCY_POOL})
    driver, lock = IterationLock(one, driver_path(one)), IterationLock(one, lock_path(one))
    assert driver.acquire() and lock.acquire()
    with pytest.raises(IterationLocked, match=f"process {os.getpid()} on host .* is running an iteration in s3://"):
        run_until(1, two, "smoke", {}, Console(quiet=True))
    with open_instance(two) as instance:
        run = instance.add_run(dg.DagsterRun(job_name="iteration", status=dg.DagsterRunStatus.STARTED, run_op_concurrency=works))
        assert [each.run_id for each in living_runs(instance, two)] == [run.run_id]
        lock.release()
        driver.release()
        assert living_runs(instance, two) == [], "nobody has the lock any more"
    after = IterationLock(two, lock_path(two))
    assert after.acquire()
    after.release()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_of_two_hosts_that_start_at_once_one_works_and_the_other_starts_no_step(homes: tuple[Home, Home]) -> None:
    with open_instance(homes[0]):
        pass  # Dagster's first two processes on an empty Postgres may both want to make its tables, and one fails
    logs = [home.root.with_suffix(".log") for home in homes]
    processes = []
    for home, log in zip(homes, logs, strict=True):
        environment = {name: value for name, value in os.environ.items() if value} | {
            HOME_VARIABLE: str(home.root),
            "FLYWHEEL_PROFILE": "smoke",
        }
        with log.open("wb") as said:
            command = [sys.executable, "-m", "pipelines.orchestration.runs.process", "seed_iteration"]
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said, start_new_session=True))
    try:
        while all(process.poll() is None for process in processes):
            time.sleep(0.2)
        (refused,) = (index for index, process in enumerate(processes) if process.poll() is not None)
        said = logs[refused].read_text()
        assert processes[refused].returncode == 1 and "IterationLocked" in said and "on host" in said, said[-3000:]
        with open_instance(homes[0]) as instance:
            runs = instance.get_runs()
            while not (begun := [run for run in runs if _begun_steps(instance, run)]):
                assert processes[1 - refused].poll() is None, logs[1 - refused].read_text()[-3000:]
                time.sleep(0.2)
            assert len(runs) == 2 and len(begun) == 1
            assert [run.status for run in runs if run.run_id != begun[0].run_id] == [dg.DagsterRunStatus.FAILURE]
    finally:
        for process in processes:
            end_group(process.pid)
            process.wait()


def _appended(log: Path) -> list[int]:
    """Versions that a host has made and reported so far. Its warnings of a table that others write stand in the same log."""
    return [int(line) for line in log.read_text().splitlines() if line.isdigit()]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not can_make_hosts(), reason="needs root and iproute2")
def test_a_host_that_is_cut_off_for_a_while_goes_on_and_nothing_is_lost_or_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if postgres.programs() is None:
        pytest.skip(postgres.MISSING)
    for name in SETTINGS:
        monkeypatch.setenv(name, "")
    stop = tmp_path / "stop"
    with (
        Hosts(3) as (head, one, two),
        head.entered(),
        an_object_store(tmp_path / "store.log", head.address) as server,
        postgres.a_postgres(is_durable=False, listen=head.address) as socket,
    ):
        dagster = postgres.new_database(socket, "dagster", listen=head.address).replace("postgresql+psycopg", "postgresql", 1)
        places = {STORE_VARIABLE: f"s3://{BUCKET}/network", POSTGRES_VARIABLE: dagster, "PYTHONPATH": str(ROOT)}
        for name, value in {**server.environment, **places}.items():
            monkeypatch.setenv(name, value)
        with open_instance(Home(tmp_path / "head")):
            pass  # makes Dagster's tables, which two at once cannot
        logs, processes = {host: tmp_path / f"{host.address}.log" for host in (one, two)}, []
        environment = {name: value for name, value in os.environ.items() if value and name not in SETTINGS}
        for host, log in logs.items():
            with log.open("wb") as file:
                command = [sys.executable, "-c", APPENDING, tmp_path / host.address, stop, str(PAUSE_S)]
                processes.append(host.start(command, env=environment, cwd=ROOT, output=file))

        def wait_for(host: Host, num: int) -> None:
            while len(_appended(logs[host])) < num:
                assert all(process.poll() is None for process in processes), [log.read_text()[-3000:] for log in logs.values()]
                time.sleep(0.1)

        for host in (one, two):
            wait_for(host, MORE)
        two.cut()
        time.sleep(CUT_S / 2)
        before = len(_appended(logs[one])), len(_appended(logs[two]))
        time.sleep(CUT_S / 2)
        wait_for(one, before[0] + MORE)
        assert len(_appended(logs[two])) == before[1], "nothing gets out of it"
        two.restore()
        wait_for(two, before[1] + MORE)
        stop.touch()
        assert [process.wait() for process in processes] == [0, 0], [log.read_text()[-3000:] for log in logs.values()]

        versions = {host: _appended(log) for host, log in logs.items()}
        wanted = {f"{host.address}-{number}": version for host, found in versions.items() for number, version in enumerate(found)}
        third = Warehouse(Home(tmp_path / "head"))
        assert sorted(third.read("verdicts", columns=["episode_id"]).column(0).to_pylist()) == sorted(wanted), "each once"
        assert all(found == sorted(found) for found in versions.values())
        assert sorted(wanted.values()) == [commit.version for commit in reversed(third.history("verdicts")) if commit.stage == "verdicts"]
        with open_instance(third.home) as instance:
            records = instance.fetch_materializations(dg.AssetKey("verdicts"), limit=10 * len(wanted)).records
        metadata = [record.asset_materialization.metadata for record in records if record.asset_materialization is not None]
        assert len(metadata) == len(wanted)
        assert {str(each["episode"].value): each["version"].value for each in metadata} == wanted
