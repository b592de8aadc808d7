"""Each check of `flywheel doctor` against the real thing, working and broken."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from pipelines.cli import doctor
from pipelines.orchestration.shipped import shipped
from sandbox.browser.chromium import EXECUTABLE_VARIABLE, find_chromium
from sandbox.tasks.registry import SOURCES
from sandbox.terminal.bubblewrap import find_bubblewrap
from warehouse.core.home import Home


def test_python_of_the_suite_is_the_locks():
    assert doctor.check_python().status == "ok"


def test_installed_packages_are_the_locks():
    check = doctor.check_packages()
    assert check.status == "ok", f"{check.found}: {check.fix}"


def test_a_package_at_another_version_is_named(tmp_path: Path):
    lock = tmp_path / "constraints.txt"
    lock.write_text("# comment\nPyYAML==0.0.1\nnot-installed-extra==1.0\n")
    check = doctor.check_packages(lock)
    assert check.status == "warn"
    assert "pyyaml" in check.found and "0.0.1" in check.found and "extra" not in check.found


def test_a_checkout_without_its_lock_is_a_warning(tmp_path: Path):
    assert doctor.check_packages(tmp_path / "none.txt").status == "warn"


def test_lock_names_are_normalised_and_local_versions_absent():
    pins = doctor.read_lock(shipped(doctor.LOCK))
    assert pins["pyyaml"] and pins["great-expectations"]
    assert not any("+" in version for version in pins.values())


def test_the_browser_gives_a_frame():
    check = doctor.check_browser()
    assert check.status in ("ok", "warn"), check.found
    assert "one frame of" in check.found


def test_a_browser_without_begin_frame_control_serves_and_says_what_is_lost():
    check = doctor.check_browser(replace(find_chromium(), is_headless_shell=False))
    assert check.status == "warn"
    assert "one frame of" in check.found and "virtual time" in check.found


def test_a_missing_browser_fails_with_the_way_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(EXECUTABLE_VARIABLE, str(tmp_path / "no-chromium"))
    check = doctor.check_browser()
    assert check.status == "fail"
    assert "no-chromium" in check.found and "chromium-headless-shell" in check.fix


def test_missing_tools_are_distinguished_from_broken_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    find_bubblewrap.cache_clear()
    terminal = doctor.check_terminal()
    assert terminal.status == "warn" and ("apt-get install bubblewrap" in terminal.fix or terminal.found == "only Linux has it")
    desktop = doctor.check_desktop()
    assert desktop.status == "warn" and ("apt-get install" in desktop.fix or desktop.found == "only Linux has it")
    assert doctor.check_gpu().status == "ok"
    broken = tmp_path / "nvidia-smi"
    broken.write_text("#!/bin/sh\necho 'couldn'\"'\"'t communicate with the driver' >&2\nexit 9\n")
    broken.chmod(0o755)
    check = doctor.check_gpu()
    assert check.status == "warn" and "communicate with the driver" in check.found


def test_a_home_that_cannot_be_written_fails(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    check = doctor.check_home(Home(tmp_path / "file" / "home"))
    assert check.status == "fail" and "FLYWHEEL_HOME" in check.fix
    assert doctor.check_home(Home(tmp_path / "home")).status == "ok"
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(("needed", "wanted", "status"), [(0, 0, "ok"), (0, 1e9, "warn"), (1e9, 1e9, "fail")])
def test_disk_and_memory_are_graded(tmp_path: Path, needed: float, wanted: float, status: str):
    disk = doctor.check_disk(Home(tmp_path / "not" / "made" / "yet"), needed_gib=needed, wanted_gib=wanted)
    memory = doctor.check_memory(needed_gib=needed, wanted_gib=wanted)
    assert (disk.status, memory.status) == (status, status)
    assert bool(disk.fix) == bool(memory.fix) == (status != "ok")


SOURCES_WITH_CHECKS = """
from sandbox.tasks.miniwob.source import TASK_SOURCE
from sandbox.tasks.task_source import TaskSource
from warehouse.core.checks import Check

def source(name, check):
    return TaskSource(name=name, kind="page", load_tasks=TASK_SOURCE.load_tasks, page=TASK_SOURCE.page, check=check)

READY = source("ready", lambda: Check(name="shop", status="ok", found="it answers"))
BROKEN = source("broken", lambda: 1 / 0)
"""


def test_task_sources_say_what_they_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own.py").write_text(SOURCES_WITH_CHECKS)
    own = tmp_path / "own.py"
    monkeypatch.setattr(SOURCES, "installed", lambda: {})
    monkeypatch.setenv("FLYWHEEL_TASK_SOURCES", f"{{ready: '{own}:READY', broken: '{own}:BROKEN', absent: '{tmp_path}/none.py:SOURCE'}}")
    assert [(check.name, check.status) for check in doctor.check_task_sources()] == [
        ("shop", "ok"),
        ("tasks: broken", "warn"),
        ("tasks: absent", "warn"),
    ]
    monkeypatch.setenv("FLYWHEEL_TASK_SOURCES", "{")
    ((name, status),) = [(check.name, check.status) for check in doctor.check_task_sources()]
    assert (name, status) == ("task sources", "fail")


def test_the_web_applications_are_checked_by_their_source():
    check = SOURCES["web"].check
    assert check is not None and check().name == "web apps"


def test_a_port_in_use_is_named():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        check = doctor.check_ports({"Dagster": port})
    assert check.status == "warn" and str(port) in check.found
    assert doctor.check_ports({"Dagster": port}).status == "ok"


@pytest.mark.slow
def test_the_table_ends_with_a_verdict_and_an_honest_exit_status(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    console = Console(file=io.StringIO(), width=120, record=True)
    assert doctor.run_doctor(console, Home(tmp_path / "file")) == 1
    printed = console.export_text()
    assert "cannot run here yet" in printed and "home" in printed.splitlines()[-1]


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
from pipelines.cli import doctor
print(*(f"{check.status} {check.found}: {check.fix}" for check in (doctor.check_open_files(), doctor.check_terminal())), sep="\\n")
"""


@pytest.mark.parametrize(("limit", "statuses"), [(64, ["fail", "warn"]), (256, ["warn", "ok"]), (512, ["ok", "ok"])])
def test_too_low_a_limit_of_open_files_is_named(limit: int, statuses: list[str]):
    ran = subprocess.run([sys.executable, "-c", LIMITED, str(limit)], capture_output=True, text=True, check=True, timeout=120)
    open_files, terminal = ran.stdout.splitlines()
    assert [open_files.split()[0], terminal.split()[0]] == statuses
    assert f"may open {limit} of them" in open_files and ("ulimit -n" in open_files) is (limit < 512)
    assert ("ulimit -n" in terminal) is (limit == 64)
