"""Two hosts that launch: each has a home of its own, Dagster's history is in one Postgres, tables are in one object store. What one host
runs, the other neither starts as well nor takes for dead."""

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

from assets.stage_assets import POOL
from benchmarks.common import postgres
from benchmarks.common.object_store import BUCKET, an_object_store
from pipelines.cli.run import run_until
from pipelines.orchestration.instance import POSTGRES_VARIABLE, open_instance
from pipelines.orchestration.iteration_lock import IterationLock, driver_path, lock_path
from pipelines.orchestration.living_runs import living_runs
from warehouse.core import leases
from warehouse.core.errors import IterationLocked
from warehouse.core.home import HOME_VARIABLE, Home
from warehouse.core.processes import end_group
from warehouse.core.store import STORE_VARIABLE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Home, Home]]:
    """Of two hosts, on one Postgres and one store."""
    if postgres.programs() is None:
        pytest.skip(postgres.MISSING)
    for name in ("DAGSTER_HOME", HOME_VARIABLE, "DAGSTER_DISABLE_TELEMETRY", "FLYWHEEL_PROFILE", "FLYWHEEL_PROFILE_OVERRIDES"):
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
    works = RunOpConcurrency(root_key_counts={POOL: 1}, has_unconstrained_root_nodes=False, all_pools={POOL})
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
            command = [sys.executable, "-m", "pipelines.orchestration.run_process", "seed_iteration"]
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
