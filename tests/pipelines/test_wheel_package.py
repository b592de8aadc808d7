"""The built package works where there is no checkout: it brings every file that it reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.orchestration.shipped import shipped
from warehouse.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, unpacked as an installer would."""
    built, target = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(built), str(ROOT)], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), *map(str, built.glob("*.whl"))], check=True)
    return target


def python(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder`, with the unpacked package before the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "FLYWHEEL_HOME": str(folder / "home"), "COLUMNS": "200"}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, text=True, capture_output=True)


def test_the_package_is_read_from_where_it_is_installed(installed: Path, tmp_path: Path) -> None:
    said = python(installed, tmp_path, "-c", "import pipelines.orchestration.shipped as s; print(s.__file__, s.shipped('dagster.yaml'))")
    assert [Path(word).is_relative_to(installed) for word in said.stdout.split()] == [True, True], said.stderr


def test_an_instance_opens_and_its_definitions_load(installed: Path, tmp_path: Path) -> None:
    look = (
        "from pathlib import Path; from warehouse.home import Home; from pipelines.orchestration.instance import open_instance;"
        "instance = open_instance(Home(Path('home').absolute())); from pipelines.definitions import defs;"
        "print(len(defs.resolve_job_def('iteration').graph.nodes) > 10)"
    )
    said = python(installed, tmp_path, "-c", look)
    assert said.stdout.splitlines()[-1:] == ["True"], said.stderr[-2000:]


def test_the_command_plans_a_run_and_reads_the_lock(installed: Path, tmp_path: Path) -> None:
    planned = python(installed, tmp_path, "-m", "pipelines.cli", "run", "--dry-run", "--profile", "smoke")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    checked = python(installed, tmp_path, "-c", "from pipelines.cli.doctor import check_packages; print(check_packages().status)")
    assert checked.stdout.strip() in ("ok", "warn") and "no lock" not in checked.stdout, checked.stderr


def test_a_file_that_nobody_ships_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml is in neither"):
        shipped("nothing.yaml")
