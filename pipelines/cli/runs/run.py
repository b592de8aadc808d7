"""`flywheel run`: runs iterations until a number of them is complete, with one live display. The runs are Dagster's
(pipelines/orchestration/runs/process.py); here they are started one after another, watched, and their processes ended when we end.

A run whose process is gone is launched again a few times: finished stages are not worked twice, so that costs little. A stage that failed
is Dagster's to restart, within the run (docs/failures.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from assets.settings.profile import Profile
from pipelines import profiles
from pipelines.cli.runs.live import Display
from pipelines.orchestration.instance import check_disk_space, open_instance
from pipelines.orchestration.jobs import completed, first_incomplete
from pipelines.orchestration.runs import kept_profile
from pipelines.orchestration.runs.failures import MAX_RELAUNCHES, RunFailure, failure_of
from pipelines.orchestration.runs.iteration_lock import IterationLock, driver_path, lock_path
from pipelines.orchestration.runs.living_runs import living_runs
from pipelines.orchestration.runs.process import LAST_WORDS
from pipelines.orchestration.services import prefect_server
from pipelines.orchestration.work.finished_work import iterations_to_repeat, mark_repeated
from sandbox.browser.chromium import find_chromium
from sandbox.pool.kinds import FACTORIES
from sandbox.tasks.sources import kind_of, tasks_in
from sandbox.terminal.bubblewrap import find_bubblewrap
from warehouse.core.errors import IterationLocked, StageFailed
from warehouse.core.home import Home
from warehouse.core.locks import LOOKED_AT_S, holder_of
from warehouse.core.machine import check_can_train
from warehouse.core.processes import end_group
from warehouse.core.stages import SEED_ITERATION

POLL_S = 1.0
MAX_WORDS_BYTES = 1 << 16
OTHER_PROFILE = (
    "Home {home} was created with profile {before}; continuing with {now}. "
    "To keep their data apart, give {now} a home of its own (FLYWHEEL_HOME or --home)."
)


def run_until(num_iterations: int, home: Home, profile_name: str, overrides: Mapping[str, object], console: Console) -> Profile:
    """Complete iterations until there are `num_iterations` in this home; returns the profile.

    Raises ConfigError for a bad profile, StorageFull when there is hardly any room, BrowserMissing, BubblewrapMissing, IterationLocked when
    an iteration is running already, StageFailed with the failing step's words.
    """
    profile = profiles.export(profile_name, overrides)
    check_disk_space(home)
    instance = open_instance(home)
    driver, runner = IterationLock(home, driver_path(home)), holder_of(lock_path(home))
    if runner is not None or not driver.acquire(timeout_s=LOOKED_AT_S):
        raise IterationLocked(
            f"process {runner or driver.holder()} is running an iteration in {_place(home)}; wait for it or end it, then run again"
        )
    with instance:
        before = kept_profile.other(home, profile_name) if first_incomplete(instance) is not None else None
        if before is not None:
            console.print(f"[yellow]{escape(OTHER_PROFILE.format(home=home.root, before=before, now=profile_name))}[/]", soft_wrap=True)
        kept_profile.keep(home, profile_name, overrides)
        server = _prepare(home, profile) if len(completed(instance)) < num_iterations or iterations_to_repeat(home) else None
        try:
            _run_iterations(num_iterations, home, instance, console)
        finally:
            if server is not None:
                prefect_server.end(server)
            driver.release()
    return profile


def _place(home: Home) -> str:
    return str(home.root) if home.store is None else home.store.url


def _prepare(home: Home, profile: Profile) -> subprocess.Popen[bytes] | None:
    """What every stage that acts will need. Raises ConfigError, BrowserMissing or BubblewrapMissing before anything is worked."""
    check_can_train()
    if not profile.sandbox.servers:  # else sessions run elsewhere
        find_chromium()
        if any(FACTORIES[kind_of(task)].needs_jail for task in tasks_in(profile.tasks.lists).values()):
            find_bubblewrap()
    return None if profile.runner.kind == "ray" else prefect_server.start(home)  # a stage that is a job starts one where it runs


def _run_iterations(num_iterations: int, home: Home, instance: dg.DagsterInstance, console: Console) -> None:
    done = completed(instance)
    if done:
        console.print(f"{len(done)} of {num_iterations} iterations are complete in {home.root}")
    for lost in iterations_to_repeat(home):
        title = f"{lost} again, whose rows a repair could not bring back"
        job, partition = ("seed_iteration", None) if lost == SEED_ITERATION else ("iteration", lost)
        _launch_until_done(job, partition, title, home, instance, console)
        mark_repeated(home, lost)
    while len(completed(instance)) < num_iterations:
        key = first_incomplete(instance)
        title = "seed" if key is None else f"iteration {key} ({len(completed(instance)) + 1} of {num_iterations})"
        started = time.monotonic()
        _launch_until_done("seed_iteration" if key is None else "iteration", key, title, home, instance, console)
        console.print(f"[green]done[/] {title} in {time.monotonic() - started:.0f} s")


def _launch_until_done(job: str, key: str | None, title: str, home: Home, instance: dg.DagsterInstance, console: Console) -> None:
    for launch in range(1, MAX_RELAUNCHES + 2):
        run, words = _launch(job, key, title, home, instance, console)
        if run is not None and run.is_success:
            return
        failure = words or failure_of(instance, run)
        console.print(f"[red]failed[/] {title}, launch {launch}: {escape(failure.words)}")
        if not failure.is_to_relaunch:
            break
    raise StageFailed(f"{title} failed: {failure.words}. Run again once that is fixed: finished stages are kept.")


def _launch(
    job: str, key: str | None, title: str, home: Home, instance: dg.DagsterInstance, console: Console
) -> tuple[dg.DagsterRun | None, RunFailure | None]:
    """Start a run in a process group of its own, show it until it ends, and return its record and what ended its process by name."""
    tag = uuid.uuid4().hex
    words, saying = os.pipe()
    with os.fdopen(words, "rb", buffering=0) as hearing:
        with os.fdopen(saying, "wb"):
            process = _start(job, key, home, tag, saying)
        display = Display(home, key or SEED_ITERATION, title, instance, tag)
        try:
            _show(display, process, title, console)
        except KeyboardInterrupt:
            console.print("[yellow]stopping[/]; what is finished is kept, and the same command goes on from there")
            raise
        finally:
            end_group(process.pid)
            living_runs(instance, home)  # a run that was killed is recorded as failed
        os.set_blocking(words, False)
        said = hearing.read(MAX_WORDS_BYTES)
    left = json.loads(said) if said else None
    named = RunFailure(words=f"{left['type']}: {left['message']}", is_retryable=left["is_retryable"]) if left is not None else None
    return display.run(), named


def _start(job: str, key: str | None, home: Home, tag: str, saying: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "FLYWHEEL_PARENT_PID": str(os.getpid()), "FLYWHEEL_LAUNCH": tag, LAST_WORDS: str(saying)}
    with (home.work / f"{key or SEED_ITERATION}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pipelines.orchestration.runs.process", job, *([key] if key else [])],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=Path.cwd(),
            pass_fds=[saying],
        )


def _show(display: Display, process: subprocess.Popen[bytes], title: str, console: Console) -> None:
    """Until the process ends."""
    if console.is_terminal:
        with Live(display.render(*console.size), console=console, auto_refresh=False, transient=True) as live:
            while process.poll() is None:
                time.sleep(POLL_S)
                live.update(display.render(*console.size), refresh=True)
        return
    console.print(title, highlight=False)
    while process.poll() is None:
        time.sleep(POLL_S)
        _print_news(display, console)
    _print_news(display, console)


def _print_news(display: Display, console: Console) -> None:
    """Lines for a log that is read later."""
    for line in display.news():
        console.print(line, highlight=False, soft_wrap=True)
