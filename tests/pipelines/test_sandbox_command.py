"""`flywheel sandbox serve` as a process: what it prints, that SIGTERM releases everything, that SIGKILL leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from sandbox.server.client_sync import SyncSandbox
from sandbox.server.tokens import TOKEN_VARIABLE, TOKENS_FILE_VARIABLE, client_token, token_path
from sandbox.tasks.miniwob.source import load_tasks
from sandbox.tasks.task import Task
from tests.sandbox.own_source import ROOT, write_own_source
from warehouse.core.errors import SandboxBusy, ServerUnreachable
from warehouse.core.home import Home

TASK = load_tasks()["click-button"]


@contextmanager
def served(home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    environment = {name: value for name, value in os.environ.items() if name not in (TOKEN_VARIABLE, TOKENS_FILE_VARIABLE)}
    command = [sys.executable, "-m", "pipelines.cli", "sandbox", "serve", "--port", "0", "--home", str(home), "--size", "2", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("sandbox server: http://127.0.0.1:"), line
        assert str(token_path(Home(home))) in process.stdout.readline()
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate()


def family(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def wait_until_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow
def test_asked_to_end_it_releases_everything(tmp_path: Path) -> None:
    with served(tmp_path) as (process, url):
        assert token_path(Home(tmp_path)).stat().st_mode & 0o777 == 0o600
        token = client_token(Home(tmp_path), {})
        assert token not in " ".join(psutil.Process(process.pid).cmdline())
        listed = [sys.executable, "-m", "pipelines.cli", "sandbox", "sessions", "--url", url, "--home", str(tmp_path)]
        with SyncSandbox(url, token) as sandbox, sandbox.lease(TASK) as session:
            session.reset(TASK, 1)
            reported = subprocess.run(listed, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "150"})
            assert session.session_id in reported.stdout and "click-button" in reported.stdout, reported.stdout + reported.stderr
            drained = subprocess.run([*listed[:4], "drain", *listed[5:]], capture_output=True, text=True, timeout=60)
            assert f"{url} is draining; 1 sessions are on lease" in drained.stdout, drained.stdout + drained.stderr
            with pytest.raises(SandboxBusy, match="draining"), SyncSandbox(url, token, wait_s=0) as late, late.lease(TASK):
                pass
            assert session.reset(TASK, 2).instruction, "what is on lease goes on"
            processes = family(process.pid)
            assert len(processes) >= 2
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
            wait_until_gone(processes)
            assert process.stdout is not None and "every session is released" in process.stdout.read()


@pytest.mark.slow
def test_killed_it_leaves_no_process_behind(tmp_path: Path) -> None:
    with (
        served(tmp_path) as (process, url),
        SyncSandbox(url, client_token(Home(tmp_path), {}), retry_s=0.1) as sandbox,
        pytest.raises(ServerUnreachable),
        sandbox.lease(TASK) as session,
    ):
        session.reset(TASK, 1)
        processes = family(process.pid)
        assert any("chrom" in child.name() or "headless" in child.name() for child in processes)
        process.kill()
        process.wait()
        wait_until_gone(processes)
        session.observe()


@pytest.mark.slow
@pytest.mark.parametrize("option", [["--source", "press.py:SOURCE"], ["--profile", "mine.yaml"]])
def test_it_lends_sessions_for_a_source_of_one_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]) -> None:
    folder = write_own_source(tmp_path)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.chdir(folder)
    task = Task(source="press", name="press-letter", domain="pointing", max_steps=3)  # the client needs no file of the source's
    home = tmp_path / "home"
    with served(home, "--oracles", *option) as (_, url), SyncSandbox(url, client_token(Home(home), {})) as lent, lent.lease(task) as own:
        assert own.reset(task, 1).instruction == "Press B."
        action = own.oracle_action()
        assert action is not None and own.step(action).reward == 1.0
