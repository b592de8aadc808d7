"""The suite's own order and its refusal of skips that nobody expects, on small suites of a folder of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from tests import running
from tests.running import EXPECTED_SKIPS, MUST_RUN, NEVER_AGAIN, is_expected, missing, pieces

ROOT = Path(__file__).resolve().parents[2]
SUITE = {
    "test_first.py": "@pytest.mark.slow\ndef test_slow(): pass\n\ndef test_daily(): pass\n",
    "test_second.py": "@pytest.mark.long\ndef test_long(): pass\n\ndef test_daily(): pass\n\n@pytest.mark.slow\ndef test_slow(): pass\n",
    "test_third.py": "@pytest.mark.long\n@pytest.mark.ci\ndef test_iteration(): pass\n\n@pytest.mark.long\ndef test_long(): pass\n",
    "test_skipped.py": "def test_absent(): pytest.skip('there is no such program')\n\n"
    "@pytest.mark.skipif(True, reason='none')\ndef test_no(): pass\n\n@pytest.mark.xfail(reason='known')\ndef test_known(): assert False\n",
    "test_chance.py": "import os\n\ndef fails_once(name):\n    first = not os.path.exists(name)\n    open(name, 'w').close()\n"
    "    assert not first\n\ndef test_a_page(): fails_once('page')\n\ndef test_a_killed_writer(): fails_once('killed')\n",
    "test_whole.py": "pytest.skip('nothing of this here', allow_module_level=True)\n",
}


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    for name, text in SUITE.items():
        (folder / name).write_text(f"import pytest\n\n{text}")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: s\n    long: l\n    ci: c\n    gpu: g\n")
    plugins = [word for name in ("tests.running", "xdist.plugin", "pytest_rerunfailures", "no:cacheprovider") for word in ("-p", name)]
    # Importing every plugin that is installed would take longer than the suites do, and so would deleting what earlier runs have left.
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_DEBUG_TEMPROOT": str(folder)}
    command = [sys.executable, "-m", "pytest", *plugins, "-v", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_tests_of_every_day_come_first(tmp_path: Path) -> None:
    status, said = run(tmp_path, "-n", "0", "test_first.py", "test_second.py")
    assert status == 0
    assert re.findall(r"::(\w+) PASSED", said) == ["test_daily", "test_daily", "test_slow", "test_slow", "test_long"]


def test_continuous_integration_runs_what_is_marked_for_it_with_the_slow_ones(tmp_path: Path) -> None:
    """By the expression of `make test-ci`; the tests that it is for are there."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (chosen,) = re.findall(r"^test-ci:.*\n\t\$\(PYTEST\) -m \"(.+?)\"", makefile, flags=re.MULTILINE)
    status, said = run(tmp_path, "-n", "0", "-m", chosen, "test_third.py", "test_second.py")
    assert status == 0
    assert re.findall(r"::(\w+) PASSED", said) == ["test_daily", "test_slow", "test_iteration"]
    marked = [
        file.name for file in (ROOT / "tests" / "iterations").glob("test_*.py") if "pytest.mark.ci" in file.read_text(encoding="utf-8")
    ]
    assert sorted(marked) == [
        "test_cluster.py",
        "test_faults.py",
        "test_pixels.py",
        "test_sandbox_profile.py",
        "test_self_challenge.py",
        "test_ui.py",
        "test_unattended.py",
    ]


def test_long_tests_whose_turn_comes_too_late_are_skipped_and_named(tmp_path: Path) -> None:
    status, said = run(tmp_path, "-n", "0", "--long-within", "0", "-rs", "test_second.py")
    assert status == 0 and re.findall(r"::(\w+) PASSED", said) == ["test_daily", "test_slow"]
    ((reason, nodeid),) = re.findall(r"(0 minutes are over, within which long tests begin): (\S+)", said)
    assert nodeid.endswith("test_second.py::test_long")
    assert is_expected("tests/iterations/test_ui.py::test_any", reason)
    status, said = run(tmp_path, "-n", "0", "--long-within", "5", "test_second.py")
    assert status == 0 and "3 passed" in said


def test_the_order_holds_for_several_workers(tmp_path: Path) -> None:
    status, said = run(tmp_path, "-n", "1", "--dist", "loadfile", "test_first.py", "test_second.py")
    assert status == 0
    assert re.findall(r"PASSED \S+::(\w+)", said) == ["test_daily", "test_daily", "test_slow", "test_slow", "test_long"]


def test_a_file_is_one_piece_of_work_as_far_as_its_tests_stand_together() -> None:
    found = pieces(["a::1", "a::2", "b::1", "a::3", "b::2", "b::3"])
    assert [found[name] for name in ("a::1", "a::2", "b::1", "a::3", "b::2", "b::3")] == ["a 1", "a 1", "b 1", "a 2", "b 2", "b 2"]


def test_a_skip_that_nobody_expects_fails_where_that_is_asked_for(tmp_path: Path) -> None:
    status, said = run(tmp_path, "-n", "0", "test_skipped.py", "test_whole.py")
    assert status == 0 and "3 skipped, 1 xfailed" in said
    status, said = run(tmp_path, "-n", "0", "--strict-skips", "--continue-on-collection-errors", "test_skipped.py", "test_whole.py")
    assert status == 1 and re.search(r"= 1 failed, 1 xfailed, 2 errors in", said), said
    assert "test_skipped.py::test_absent was skipped, and EXPECTED_SKIPS in tests/running.py does not say" in said
    assert "there is no such program" in said and "nothing of this here" in said


@pytest.mark.parametrize(("pattern", "words", "why"), EXPECTED_SKIPS)
def test_what_may_be_skipped_is_there_and_says_those_words(pattern: str, words: str, why: str) -> None:
    files = sorted(ROOT.glob(pattern.split("::")[0] if "::" in pattern else pattern.removesuffix("*") + "**/*.py"))
    sources = [*files, ROOT / "sandbox" / "tasks" / "browsing" / "debian.py"]
    assert why and files and any(words in file.read_text(encoding="utf-8") for file in sources)
    test = pattern.replace("*", "any")
    assert is_expected(test, f"{words}, and more") and not is_expected(test, "another reason") and not is_expected("other/any", words)


def test_what_happens_by_chance_is_not_run_again(tmp_path: Path) -> None:
    """Both tests fail once and would pass then; the one whose name says that it kills somebody stays failed."""
    status, said = run(tmp_path, "-n", "0", "--reruns", "1", "test_chance.py")
    assert status == 1 and re.search(r"= 1 failed, 1 passed, 1 rerun in", said), said
    assert re.findall(r"::(\w+) (RERUN|FAILED|PASSED) ", said) == [
        ("test_a_page", "RERUN"),
        ("test_a_page", "PASSED"),
        ("test_a_killed_writer", "FAILED"),
    ]


@pytest.mark.parametrize("pattern", NEVER_AGAIN)
def test_what_is_not_run_again_is_there(pattern: str) -> None:
    assert any(fnmatch(test, pattern) for test in written_tests())


@cache
def written_tests() -> list[str]:
    files = {file.relative_to(ROOT): file.read_text(encoding="utf-8") for file in ROOT.glob("tests/**/test_*.py")}
    return [f"{file}::{name}" for file, text in files.items() for name in re.findall(r"def (test_\w+)", text)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [("-n", "0"), ("-n", "1", "--dist", "loadfile")])
def test_a_run_without_what_must_run_fails(tmp_path: Path, workers: tuple[str, ...]) -> None:
    status, said = run(tmp_path, *workers, "test_first.py")
    assert status == 0 and "MUST_RUN" not in said
    status, said = run(tmp_path, *workers, "--must-run", "test_first.py")
    assert status == 1 and "2 passed" in said
    assert "MUST_RUN tests/sandbox/test_terminal_isolation.py::*: 0 ran, and on this machine at least 25 do" in said


def test_what_must_run_is_counted_where_the_machine_can(monkeypatch: pytest.MonkeyPatch) -> None:
    can = False
    monkeypatch.setattr(running, "MUST_RUN", (("tests/disks/*", 2, lambda: can), ("tests/*", 1, lambda: True)))
    assert missing({"tests/a::b"}) == []
    assert missing(set()) == ["tests/*: 0 ran, and on this machine at least 1 do"]
    can = True
    assert missing({"tests/disks/a::b"}) == ["tests/disks/*: 1 ran, and on this machine at least 2 do"]
    assert missing({"tests/disks/a::b", "tests/disks/a::c[1]"}) == []


@pytest.mark.parametrize(("pattern", "least", "can_run"), MUST_RUN)
def test_what_must_run_is_there(pattern: str, least: int, can_run: Callable[[], bool]) -> None:
    place = pattern.split("::")[0].split("*")[0]
    assert least > 0 and isinstance(can_run(), bool) and (ROOT / place).exists()
