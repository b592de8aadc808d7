"""How the suite is run: the tests of every day come before the slow ones, and what NEVER_AGAIN names is not run again when it failed.

Continuous integration asks for two more. `--strict-skips`: a test that is skipped and not in EXPECTED_SKIPS fails; a machine without a
desktop, a microphone or Postgres would else skip hundreds without a word. `--must-run`: the run fails where fewer tests ran than MUST_RUN
says, because they were skipped as expected on a machine that could run them, or were not collected at all. `--long-within` ends it in time
on a slow machine: long tests come last, and those whose turn comes too late are skipped and named.

Hooks of pytest, loaded by tests/conftest.py.
"""

from __future__ import annotations

import gc
import re
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from fnmatch import fnmatch, translate
from pathlib import Path
from typing import Any

import pytest

EXPECTED_SKIPS = (
    ("tests/annotation/recording/test_recorder_failing.py::*", "pynput is not installed", "on Linux the recorder reads X11 itself"),
    ("tests/sandbox/test_episode_isolation.py::test_what_was_copied_*", "its pages share the clipboard", "pages of that kind do"),
    ("tests/sandbox/test_terminal_isolation.py::*", "no control group for processor time", "a container may have none of its own"),
    ("tests/sandbox/test_desktop.py::*", "may make no control groups", "a container may have none of its own"),
    ("tests/sandbox/test_machine_parts.py::*", "apt-get install qemu-system-x86", "virtual machines are tested by hand"),
    ("tests/sandbox/test_imported_sessions.py::*", "libreoffice-calc", "an office is large: make setup FLYWHEEL_DESKTOP=full brings it"),
    ("tests/sandbox/test_browsing*.py::*", "could not be had", "Debian's archive may be out of reach"),
    ("tests/sandbox/test_agent_desktop.py::*", "pip could not install pyautogui", "the package registry may be out of reach"),
    ("tests/*", "only root mounts a small disk", "a container's root may not be allowed to mount"),
    ("tests/sandbox/test_harbor.py::*", "no Python 3.12", "Harbor wants a newer Python than the project's"),
    ("tests/warehouse/test_power_cut.py::*", "no disk can be logged here", "it takes FUSE and loop devices"),
    ("tests/annotation/web/test_page_measured.py::*", "npm cannot fetch", "the package registry may be out of reach"),
    ("tests/sandbox/test_hostile_pages.py::*", "Chromium has no sandbox of its own", "a container may not let it make one"),
    ("tests/deploy/*", "only root gives each service a user of its own", "a container's root may not be allowed to"),
    ("tests/*", "needs root and iproute2", "a container's root may not make networks of its own"),
    ("tests/*", "within which long tests begin", "on a slow machine not all of them fit into the time of continuous integration"),
    ("tests/benchmarks/test_commits.py::*", "clone", "a clone may be shallow"),
    ("tests/models/test_gpu_training.py::*", "torch sees no accelerator", "there is no GPU in continuous integration"),
)
"""Test (a pattern), words of the reason that pytest is given, and why it may be so in continuous integration."""


NEVER_AGAIN = (
    "tests/iterations/*",
    "tests/benchmarks/test_kills*",
    "tests/benchmarks/test_resume*",
    "tests/benchmarks/test_damage*",
    "tests/benchmarks/test_power_cut*",
    "*isolation*",
    "*hostile*",
    "*attack*",
    "*security*",
    "*cheats*",
    "*leak*",
    "*secret*",
    "*private*",
    "*excluded*",
    "*guard*",
    "*kill*",
    "*power_cut*",
    "*crash*",
    "*died*",
    "*dies*",
    "*fault*",
    "*full_disk*",
    "*resume*",
    "*lost*",
    "*concurrency*",
    "*determinis*",
)
"""Tests (patterns) of what happens by chance: a fault that shows every other time passes when a failed test may try a second time. What is
left over depends on the machine (pages, sound, networks) and may."""

_STARTED_S = time.monotonic()


def _is_root_that_mounts() -> bool:
    """Linux gives it CAP_SYS_ADMIN, which the root of a common container does not have."""
    try:
        held = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return held is not None and bool(int(held[1], 16) >> 21 & 1)


def _has_disks_to_log() -> bool:
    return _is_root_that_mounts() and all(Path(device).exists() for device in ("/dev/fuse", "/dev/loop-control"))


def _always() -> bool:
    return True


MUST_RUN: tuple[tuple[str, int, Callable[[], bool]], ...] = (
    ("tests/warehouse/*full_disk*", 3, _is_root_that_mounts),
    ("tests/warehouse/test_power_cut.py::*", 2, _has_disks_to_log),
    ("tests/sandbox/test_terminal_isolation.py::*", 25, _always),
    ("tests/sandbox/test_episode_isolation.py::*", 25, _always),
    ("tests/annotation/recording/test_recorder_x11.py::*", 5, _always),
    ("tests/warehouse/*", 450, _always),
    ("tests/sandbox/*", 1800, _always),
    ("tests/agent/*", 400, _always),
    ("tests/annotation/*", 550, _always),
    ("tests/models/*", 700, _always),
    ("tests/assets/*", 100, _always),
    ("tests/pipelines/*", 350, _always),
    ("tests/iterations/*", 30, _always),
)
"""Tests (a pattern), how many of them run at least in continuous integration, and the machines that can."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--strict-skips", action="store_true", help="fail each test that is skipped and not expected to be (tests/running.py)")
    parser.addoption(
        "--long-within", type=float, metavar="MINUTES", help="skip long tests whose turn comes later than that after the start"
    )
    parser.addoption("--must-run", action="store_true", help="fail where fewer tests ran than MUST_RUN says (tests/running.py)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--must-run") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Counted(), "flywheel-must-run")


class Counted:
    """Which tests ran, whatever came of them; by the end, which of MUST_RUN did not."""

    def __init__(self) -> None:
        self.ran: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            self.ran.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if missing(self.ran) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in missing(self.ran):
            terminalreporter.write_line(f"MUST_RUN {line}", red=True)


def missing(ran: set[str]) -> list[str]:
    """A line for each pattern of MUST_RUN of which too few tests ran."""
    found = []
    for pattern, least, can_run in MUST_RUN:
        number = sum(fnmatch(nodeid, pattern) for nodeid in ran)
        if number < least and can_run():
            found.append(f"{pattern}: {number} ran, and on this machine at least {least} do")
    return found


def pytest_collection_finish() -> None:
    """What was imported stays: the collector, which tests/conftest.py turned off, need not look at it again and again. Nor at what tests
    make as often as Python has it."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order(items)
    never_again = re.compile("|".join(translate(pattern) for pattern in NEVER_AGAIN))
    for item in items:
        if never_again.match(item.nodeid):
            item.add_marker(pytest.mark.flaky(reruns=0), append=False)


def place(item: pytest.Item) -> tuple[int, int]:
    """Unmarked, then slow, then long, so that `--long-within` skips the last. Of the slow ones whole iterations come first: a last file of
    minutes would keep one worker busy while the others have nothing to do. Those of the recorder come last: they wait for what a desktop
    does, and beside a whole iteration it does that too late."""
    rank = 2 if item.get_closest_marker("long") else 1 if item.get_closest_marker("slow") else 0
    within = 0 if item.nodeid.startswith("tests/iterations/") else 2 if item.nodeid.startswith("tests/annotation/recording/") else 1
    return rank, within if rank else 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    limit_min = item.config.getoption("--long-within")
    if limit_min is not None and item.get_closest_marker("long") and time.monotonic() - _STARTED_S > 60 * limit_min:
        pytest.skip(f"{limit_min:g} minutes are over, within which long tests begin: {item.nodeid}")


def order(items: list[pytest.Item]) -> None:
    """By `place`, and in one place the files of the sandbox, which wait more than they compute, spread evenly among those that compute:
    workers that all wait leave the machine idle, and workers that all compute are in each other's way."""
    files: dict[tuple[int, int, bool], dict[str, int]] = defaultdict(dict)

    def group(item: pytest.Item) -> tuple[dict[str, int], str]:
        file = item.nodeid.split("::", 1)[0]
        return files[(*place(item), file.startswith("tests/sandbox/"))], file

    for item in items:
        numbers, file = group(item)
        numbers.setdefault(file, len(numbers))

    def position(item: pytest.Item) -> tuple[tuple[int, int], float, str]:
        numbers, file = group(item)
        return place(item), (numbers[file] + 0.5) / len(numbers), file

    items.sort(key=position)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile`, but in the order of `place`: a file whose tests are of several kinds is as many pieces of work."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class InOrder(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if not hasattr(self, "_pieces"):
                self._pieces = pieces(self.collection or [])
            return self._pieces[nodeid]

    config.option.loadscopereorder = False
    return InOrder(config, log)


def pieces(nodeids: list[str]) -> dict[str, str]:
    """Node id → the piece of work that it is in: those of one file that stand one after the other."""
    found: dict[str, str] = {}
    begun: dict[str, int] = {}
    before = None
    for nodeid in nodeids:
        file = nodeid.split("::", 1)[0]
        if file != before:
            begun[file] = begun.get(file, 0) + 1
        before = file
        found[nodeid] = f"{file} {begun[file]}"
    return found


def is_expected(nodeid: str, reason: str) -> bool:
    return any(fnmatch(nodeid, pattern) and words in reason for pattern, words, _ in EXPECTED_SKIPS)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """As the test gave it."""
    reported = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return re.sub(r"^Skipped: ", "", reported)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        fail_unexpected(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        fail_unexpected(collector.config, report)
    return report


def fail_unexpected(config: pytest.Config, report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = reason_of(report)
    if config.getoption("--strict-skips") and not is_expected(report.nodeid, reason):
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} was skipped, and EXPECTED_SKIPS in tests/running.py does not say that it may be: {reason}. Install what it "
            "needs (scripts/setup.sh), or add it there with the reason"
        )
