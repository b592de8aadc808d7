"""The built package works where there is no checkout: it brings every file that it reads, everything is `flywheel.<room>`, and folders of a
user's own that are called like a room stand beside it undisturbed. In a checkout the same names give the same modules.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from benchmarks.common.venv import python_of
from pipelines.orchestration.shipped import shipped
from tests.pipelines.test_report import fill
from warehouse.core.errors import ConfigError
from warehouse.core.home import Home
from warehouse.storage.tables import Warehouse

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    built = tmp_path_factory.mktemp("built")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(built), str(ROOT)], check=True)
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has the wheel, what it depends on, and no checkout."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    packages = next(environment.glob("lib/python*/site-packages"))
    # A folder named in a .pth file is searched, but its own .pth files, that of an editable checkout among them, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    into = ["--python", str(environment / "bin" / "python"), "install", "--no-deps", "--ignore-installed", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *into], check=True, stdout=subprocess.DEVNULL)
    return environment / "bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a user, with folders of their own that are called like rooms."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text(f"raise SystemExit('the user has a {room} of their own')")
    return tmp_path


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**inherited, "FLYWHEEL_HOME": str(folder / "home"), "COLUMNS": "200"}
    return subprocess.run([*map(str, command)], cwd=folder, env=environment, text=True, capture_output=True)


def test_nothing_but_flywheel_is_installed(installed: Path) -> None:
    packages = next(installed.parent.glob("lib/python*/site-packages"))
    assert {path.parent.name for path in packages.glob("*/*.py")} == {"flywheel"}
    assert {path.parent.name for path in packages.glob("flywheel/*/*.py")} == set(ROOMS)


def test_an_instance_opens_and_its_definitions_load(installed: Path, folder: Path) -> None:
    look = (
        "import sys; from pathlib import Path; from flywheel.warehouse.core.home import Home;"
        "from flywheel.pipelines.orchestration.instance import open_instance; from flywheel.pipelines.orchestration.shipped import shipped;"
        "instance = open_instance(Home(Path('home').absolute())); from flywheel.pipelines.definitions import defs;"
        "import flywheel as fw; fw.open('home').table('episodes');"
        "from flywheel.agent.grammars.registry import GRAMMARS; GRAMMARS['uitars2'];"
        f"print(len(defs.resolve_job_def('iteration').graph.nodes) > 10, shipped('dagster.yaml'), sorted(set({ROOMS}) & set(sys.modules)))"
    )
    said = run(folder, installed / "python", "-c", look)
    words = said.stdout.split()
    assert words[-3:-2] == ["True"] and words[-1] == "[]", said.stdout + said.stderr[-2000:]
    assert Path(words[-2]).is_relative_to(installed.parent)


def test_the_command_plans_a_run_and_reads_the_lock(installed: Path, folder: Path) -> None:
    planned = run(folder, installed / "flywheel", "run", "--dry-run", "--profile", "smoke")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    look = "from flywheel.pipelines.cli.doctor import check_packages; print(check_packages().status)"
    checked = run(folder, installed / "python", "-c", look)
    assert checked.stdout.strip() in ("ok", "warn") and "no lock" not in checked.stdout, checked.stderr


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_an_iteration_runs_beside_folders_that_are_called_like_rooms(installed: Path, folder: Path) -> None:
    shutil.copy2(ROOT / "benchmarks" / "profiles" / "tiny.yaml", folder / "tiny.yaml")
    ran = run(folder, installed / "flywheel", "run", "--iterations", "1", "--profile", "tiny.yaml")
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    status = run(folder, installed / "flywheel", "status", "--json")
    assert status.returncode == 0 and '"0001"' in status.stdout, status.stdout + status.stderr


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_without_what_trains_a_home_is_read(wheel: Path, folder: Path, version: str) -> None:
    """In an empty environment of its own, from a package index; the lock, which is of 3.11, holds for the others' versions as well."""
    try:
        place = python_of(folder / "venv", ["-c", str(ROOT / "constraints.txt"), str(wheel)], of=version).parent
    except FileNotFoundError as error:
        pytest.skip(str(error))
    warehouse = Warehouse(Home(folder / "home"))
    fill(warehouse, "0001", 40)
    assert run(folder, place / "python", "-c", "import torch").returncode == 1
    said = run(folder, place / "flywheel", "sql", "select count(*) as found from episodes", "--json")
    assert said.returncode == 0 and str(warehouse.read("episodes").num_rows) in said.stdout, said.stdout + said.stderr
    for command in (["status"], ["report", "-o", "page/index.html"], ["export", "exported", "--format", "parquet", "--dataset", "all"]):
        said = run(folder, place / "flywheel", *command)
        assert said.returncode == 0, said.stdout + said.stderr
    said = run(folder, place / "python", "-c", "import flywheel as fw; print(len(fw.open('home').table('episodes')))")
    assert said.stdout.strip() == str(warehouse.read("episodes").num_rows), said.stderr
    refused = run(folder, place / "flywheel", "run", "--profile", "smoke")
    assert refused.returncode != 0 and "flywheel[train]" in refused.stdout + refused.stderr


def test_a_checkout_has_one_module_of_each_name() -> None:
    look = (
        "import flywheel.sandbox.session, sandbox.session, models.rl.updates.losses; from flywheel.models.rl.updates import losses;"
        "from importlib.resources import files; from flywheel.sandbox.tasks.miniwob import source;"
        "print(flywheel.sandbox.session is sandbox.session, losses is models.rl.updates.losses, losses.__name__, losses.__spec__.name,"
        "(files(flywheel.sandbox.tasks.miniwob) / 'tasks.yaml').is_file())"
    )
    said = subprocess.run([sys.executable, "-c", look], cwd=ROOT, text=True, capture_output=True)
    assert said.stdout.split() == ["True", "True", "models.rl.updates.losses", "models.rl.updates.losses", "True"], said.stderr


def test_a_checkout_runs_modules_by_either_name(tmp_path: Path) -> None:
    for name in ("pipelines.cli", "flywheel.pipelines.cli"):
        said = subprocess.run([sys.executable, "-m", name, "--help"], cwd=ROOT, text=True, capture_output=True)
        assert said.returncode == 0 and "lineage" in said.stdout, said.stderr


def test_a_module_that_is_not_there_is_said() -> None:
    said = subprocess.run([sys.executable, "-c", "import flywheel.sandbox.nothing"], cwd=ROOT, text=True, capture_output=True)
    assert "ModuleNotFoundError: No module named 'flywheel.sandbox.nothing'" in said.stderr
    said = subprocess.run([sys.executable, "-c", "import flywheel.nothing"], cwd=ROOT, text=True, capture_output=True)
    assert "ModuleNotFoundError: No module named 'flywheel.nothing'" in said.stderr


def test_a_file_that_nobody_ships_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml is not in"):
        shipped("nothing.yaml")
