"""Dagster's own commands, as its documentation gives them, in the folder of a checkout and with nothing exported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DAGSTER = Path(sys.executable).parent / "dagster"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the files of the checkout that Dagster reads; what a command writes stays in it."""
    for name in ("pyproject.toml", "dagster.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def dagster(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER", "FLYWHEEL"))}
    return subprocess.run(
        [str(DAGSTER), *arguments],
        cwd=checkout,
        env={**kept, "PYTHONPATH": str(ROOT), "FLYWHEEL_PROFILE": "smoke"},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_definitions_are_valid_and_an_asset_is_materialized_into_the_default_home(checkout: Path) -> None:
    valid = dagster(checkout, "definitions", "validate")
    assert valid.returncode == 0 and "All code locations passed validation" in valid.stdout + valid.stderr
    made = dagster(checkout, "asset", "materialize", "-m", "pipelines.definitions", "--select", "seed_tutorials")
    assert made.returncode == 0, made.stderr[-2000:]
    assert (checkout / ".flywheel" / "tables" / "ct_samples").is_dir()
    assert (checkout / ".flywheel" / "dagster" / "history").is_dir(), "Dagster's own records lie there too"
    closed = dagster(checkout, "asset", "materialize", "-m", "pipelines.definitions", "--select", "ct_dataset", "--partition", "0002")
    assert closed.returncode != 0 and "0002" in closed.stdout + closed.stderr, "an iteration that is not open has no partition"
