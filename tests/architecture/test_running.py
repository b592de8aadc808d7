"""The suite's own order and its refusal of skips that nobody expects, on small suites of a folder of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import EXPECTED_SKIPS, is_expected, pieces

ROOT = Path(__file__).resolve().parents[2]
SUITE = {
    "test_first.py": "@pytest.mark.slow\ndef test_slow(): pass\n\ndef test_daily(): pass\n",
    "test_second.py": "@pytest.mark.long\ndef test_long(): pass\n\ndef test_daily(): pass\n\n@pytest.mark.slow\ndef test_slow(): pass\n",
    "test_skipped.py": "def test_absent(): pytest.skip('there is no such program')\n\n"
    "@pytest.mark.skipif(True, reason='none')\ndef test_no(): pass\n\n@pytest.mark.xfail(reason='known')\ndef test_known(): assert False\n",
    "test_whole.py": "pytest.skip('nothing of this here', allow_module_level=True)\n",
}  # fmt: skip


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    for name, text in SUITE.items():
        (folder / name).write_text(f"import pytest\n\n{text}")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: s\n    long: l\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.running", "-p", "no:cacheprovider", "-v", *arguments]
    done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_tests_of_every_day_come_first(tmp_path: Path) -> None:
    status, said = run(tmp_path, "-n", "0", "test_first.py", "test_second.py")
    assert status == 0
    assert re.findall(r"::(\w+) PASSED", said) == ["test_daily", "test_daily", "test_slow", "test_slow", "test_long"]


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
