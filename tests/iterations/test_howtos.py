"""The pages of docs/howto that run whole iterations; the others: tests/pipelines/test_howtos.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.iterations.conftest import Workspace
from tests.pipelines.howto import run_page
from tests.pipelines.test_howtos import LONG

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
TIMEOUT_S = 3000


@pytest.fixture
def folder(new_workspace) -> Path:
    """An empty folder, removed after the test with every process that is left of it."""
    workspace: Workspace = new_workspace()
    made = workspace.base / "work"
    made.mkdir(mode=0o755)
    return made


@pytest.mark.parametrize("page", LONG)
def test_a_page_that_runs_an_iteration_does_what_it_says(page: str, folder: Path) -> None:
    run_page(page, folder, timeout_s=TIMEOUT_S)
