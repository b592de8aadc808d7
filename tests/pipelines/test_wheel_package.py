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

from pipelines.orchestration.shipped import shipped
from warehouse.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has the wheel of this checkout, what it depends on, and no checkout."""
    built, environment = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    packages = next(environment.glob("lib/python*/site-packages"))
    # A folder named in a .pth file is searched, but its own .pth files, that of an editable checkout among them, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(built), str(ROOT)], check=True)
    into = ["--python", str(environment / "bin" / "python"), "install", "--no-deps", "--ignore-installed"]
    subprocess.run([*pip[:3], *into, *map(str, built.glob("*.whl"))], check=True, stdout=subprocess.DEVNULL)
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


def test_a_checkout_has_one_module_of_each_name() -> None:
    look = (
        "import flywheel.sandbox.session, sandbox.session, models.rl.losses; from flywheel.models.rl import losses;"
        "from importlib.resources import files; from flywheel.sandbox.tasks.miniwob import source;"
        "print(flywheel.sandbox.session is sandbox.session, losses is models.rl.losses, losses.__name__, losses.__spec__.name,"
        "(files(flywheel.sandbox.tasks.miniwob) / 'tasks.yaml').is_file())"
    )
    said = subprocess.run([sys.executable, "-c", look], cwd=ROOT, text=True, capture_output=True)
    assert said.stdout.split() == ["True", "True", "models.rl.losses", "models.rl.losses", "True"], said.stderr


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
