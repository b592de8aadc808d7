"""Dagster's own commands, as its documentation gives them, in the folder of a checkout and with nothing exported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DAGSTER = Path(sys.executable).parent / "dagster"
DG = DAGSTER.with_name("dg")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the files of the checkout that Dagster reads; what a command writes stays in it."""
    for name in ("pyproject.toml", "dagster.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def dagster(checkout: Path, *arguments: str, program: Path = DAGSTER) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER", "FLYWHEEL"))}
    return subprocess.run(
        [str(program), *arguments],
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


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not DG.exists(), reason="dagster-dg-cli is not installed: make setup")
def test_dg_lists_what_there_is(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = checkout / "of-mine" / "dg.toml"  # a person's own settings: without them dg sends usage statistics
    mine.parent.mkdir()
    mine.write_text("[cli.telemetry]\nenabled = false\n")
    monkeypatch.setenv("DG_CLI_CONFIG", str(mine))
    listed = dagster(checkout, "list", "defs", "--json", program=DG)
    assert listed.returncode == 0, listed.stderr[-2000:]
    found = json.loads(listed.stdout)
    assert {"released_policy", "rl_model/forms", "seed_demonstrations"} <= {asset["asset_key"] for asset in found["assets"]}
    names = {kind: {one["name"] for one in found[kind]} for kind in ("jobs", "schedules", "sensors")}
    assert {"next_iteration", "iteration", "release_rollback"} <= names["jobs"]
    assert names["schedules"] == {"recurring_retraining"} and "regression" in names["sensors"]
