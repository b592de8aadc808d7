"""The lock that keeps two iterations apart, and how runs whose process is gone are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.launcher.base import WorkerStatus

from pipelines.orchestration.runs import living_runs as runs_module
from pipelines.orchestration.runs.iteration_lock import lock_path
from pipelines.orchestration.runs.launcher import HomeRunLauncher
from pipelines.orchestration.runs.living_runs import UNFINISHED, living_runs
from warehouse.core.locks import FileLock

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING])
def test_a_run_that_goes_on_while_nobody_holds_the_lock_is_dead(place, status):
    run = place.add_run(status)
    assert living_runs(place.instance, place.home) == []
    assert place.instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.FAILURE


def test_dagsters_run_monitoring_knows_which_run_is_dead(place):
    launcher = place.instance.run_launcher
    assert isinstance(launcher, HomeRunLauncher) and launcher.supports_check_run_worker_health
    assert place.instance.run_monitoring_enabled
    run = place.add_run(dg.DagsterRunStatus.STARTED)
    other = place.instance.add_run(dg.DagsterRun(job_name="other", status=dg.DagsterRunStatus.STARTED))
    assert launcher.check_run_worker_health(run).status == WorkerStatus.FAILED
    assert launcher.check_run_worker_health(other).status == WorkerStatus.RUNNING
    with FileLock(lock_path(place.home)):
        assert launcher.check_run_worker_health(run).status == WorkerStatus.RUNNING


def test_a_run_that_is_starting_has_time_to_take_the_lock(place, monkeypatch):
    run = place.add_run(dg.DagsterRunStatus.STARTING)
    assert [each.run_id for each in living_runs(place.instance, place.home)] == [run.run_id]
    monkeypatch.setattr(runs_module, "START_GRACE_S", -1.0)
    assert living_runs(place.instance, place.home) == []
    assert place.instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.FAILURE


def test_the_living_the_waiting_and_the_finished_are_left_alone(place):
    statuses = [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
    runs = [place.add_run(status) for status in statuses]
    assert [run.run_id for run in living_runs(place.instance, place.home)] == [runs[0].run_id]
    assert [place.instance.get_run_by_id(run.run_id).status for run in runs] == statuses
    running = place.add_run(dg.DagsterRunStatus.STARTED)
    with FileLock(lock_path(place.home)):
        assert [run.run_id for run in living_runs(place.instance, place.home)] == [running.run_id, runs[0].run_id]
    assert place.instance.get_run_by_id(running.run_id).status == dg.DagsterRunStatus.STARTED


def test_a_run_of_something_else_is_none_of_our_business(place):
    other = place.instance.add_run(dg.DagsterRun(job_name="other", status=dg.DagsterRunStatus.STARTED))
    assert living_runs(place.instance, place.home) == []
    assert place.instance.get_run_by_id(other.run_id).status == dg.DagsterRunStatus.STARTED


@pytest.mark.slow
def test_a_second_run_on_the_same_home_is_refused_with_the_holders_pid(place):
    with FileLock(lock_path(place.home)):
        ran = subprocess.run(
            [sys.executable, "-m", "pipelines.orchestration.runs.process", "seed_iteration"],
            cwd=ROOT,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            timeout=150,
        )
    assert ran.returncode != 0
    assert f"IterationLocked: process {os.getpid()} is running an iteration" in ran.stderr
    assert not any(run.status in UNFINISHED for run in place.instance.get_runs()), "the refused run holds no place"
