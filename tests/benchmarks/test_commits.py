"""Every commit that a file of docs/measured names is in the history, so that what was measured can be checked out again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.provenance import CHANGED

ROOT = Path(__file__).resolve().parents[2]
MEASURED = sorted((ROOT / "docs" / "measured").glob("*.json"))
IN_NO_HISTORY = {("rl-conformance", "ca3093f243"): "ours of 2026-11-23: measured before a rebase, and the old commit was not pushed"}
"""By file and commit, why it is not there; benchmarks/README.md names them too. There are to be no others."""


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout


def commits_in(value: Any) -> Iterator[str]:
    """Commits that say what was measured. What was measured with changes, or at a commit or an earlier one, cannot be checked out."""
    if isinstance(value, dict):
        commit = value.get("commit")
        if isinstance(commit, str) and not commit.endswith((CHANGED, "or earlier")):
            yield commit
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from commits_in(inner)


@pytest.fixture(scope="module")
def history() -> list[str]:
    try:
        is_shallow = git("rev-parse", "--is-shallow-repository").strip() == "true"
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git, or no clone of the repository")
    if is_shallow:
        pytest.skip("a shallow clone lacks the history")
    return git("rev-list", "HEAD").split()


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_commits_of_measured_files_are_in_the_history(path: Path, history: list[str]) -> None:
    named = set(commits_in(json.loads(path.read_text(encoding="utf-8"))))
    absent = {commit for commit in named if not any(known.startswith(commit) for known in history)}
    assert absent <= {commit for stem, commit in IN_NO_HISTORY if stem == path.stem}, f"commits of {path.name} that HEAD does not have"


def test_exceptions_are_in_the_readme() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert all(commit in page for _, commit in IN_NO_HISTORY)
