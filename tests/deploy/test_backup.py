"""The commands of docs/backup.md as they stand there: a home and its databases are backed up, and restored elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from annotation.storage import accounts
from annotation.storage.migrating import open_database
from assets.people import DATABASE_VARIABLE as ANNOTATION_VARIABLE
from assets.stages.requests import InitialiseRequest
from benchmarks.common import postgres
from pipelines.orchestration.instance import POSTGRES_VARIABLE, open_instance, open_known
from pipelines.orchestration.work.folder import work_folder
from pipelines.stages import initialise
from pipelines.stages.context import WorkerContext
from tests.pipelines.test_schedules_and_sensors import sample
from warehouse.core.errors import CorruptTable
from warehouse.core.home import Home
from warehouse.core.store import Store
from warehouse.storage.tables import Warehouse

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```bash ([\w ]+)\n(.*?)^```$", re.M | re.S)
pytestmark = pytest.mark.slow


@pytest.fixture
def socket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if postgres.programs() is None:
        pytest.skip(postgres.MISSING)
    for name in ("DAGSTER_HOME", "FLYWHEEL_HOME", "DAGSTER_DISABLE_TELEMETRY"):  # set by an instance that is opened
        monkeypatch.setenv(name, "")
    with postgres.a_postgres(is_durable=False) as folder:
        yield folder


def use(monkeypatch: pytest.MonkeyPatch, socket: Path, home: Path, suffix: str) -> dict[str, str]:
    """The home and two databases of its own are those of the environment from now on; the variables that say so."""
    dagster, annotation = (postgres.new_database(socket, f"{name}_{suffix}") for name in ("dagster", "annotation"))
    variables = {POSTGRES_VARIABLE: dagster.replace("+psycopg", ""), ANNOTATION_VARIABLE: annotation, "FLYWHEEL_HOME": str(home)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def run(kind: str, folder: Path, programs: Path, variables: dict[str, str]) -> str:
    """The page's commands of one kind, in order."""
    page = (ROOT / "docs" / "backup.md").read_text(encoding="utf-8")
    commands = "".join(text for of_kind, text in _BLOCK.findall(page) if of_kind == kind)
    script = f'set -euo pipefail\nflywheel() {{ "{sys.executable}" -m pipelines.cli "$@"; }}\n{commands}'
    paths = {"TO": str(folder), "FROM": str(folder), "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **paths, **variables}
    ran = subprocess.run(["bash", "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_what_is_backed_up_is_there_again_elsewhere(tmp_path: Path, socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs, backup = postgres.programs(), tmp_path / "backup"
    assert programs is not None
    backup.mkdir()
    variables = use(monkeypatch, socket, tmp_path / "home", "before")
    home = Home(tmp_path / "home")
    with open_instance(home) as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization("rollouts", partition="0001"))
    context = WorkerContext(folder=work_folder(home, "0000", "seed_policy"), home=home, iteration="0000", stage="seed_policy", log=print)
    context.folder.mkdir(parents=True)
    initialise.run(InitialiseRequest(iteration="0000", stage="seed_policy", seed=0, curricula=("web",)), context)
    Warehouse(home).replace_partition("sft_samples", [sample(1), sample(2)], iteration="0001", stage="routing")
    database = open_database(os.environ[ANNOTATION_VARIABLE])
    with database.write() as session:
        accounts.add_user(session, "anna", "annotator", None, now_s=0.0)
    database.close()
    run("backup", backup, programs, variables)
    stored = {name: Warehouse(home).read(name).to_pylist() for name in ("sft_samples", "checkpoints")}
    (tmp_path / "home").rename(tmp_path / "gone")

    variables = use(monkeypatch, socket, tmp_path / "elsewhere" / "home", "after")
    again = Home(tmp_path / "elsewhere" / "home")
    assert "everything that was committed is there" in run("restore", backup, programs, variables)
    assert {name: Warehouse(again).read(name).to_pylist() for name in stored} == stored
    with open_known(again) as instance:
        assert len(instance.fetch_materializations(dg.AssetKey("rollouts"), limit=5).records) == 1
    database = open_database(os.environ[ANNOTATION_VARIABLE])
    try:
        with database.read() as session:
            assert [user.name for user in accounts.users(session)] == ["anna"]
    finally:
        database.close()


def test_an_object_store_is_backed_up_and_restored_elsewhere_and_where_it_was(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = Home(tmp_path / "home"), f"{store.url}-new"
    variables = {"FLYWHEEL_HOME": str(home.root), "NEW_STORE": elsewhere}
    Warehouse(home).append_partition("sft_samples", [sample(1)], iteration="0001", stage="routing")
    before = Warehouse(home).read("sft_samples").to_pylist()
    run("store backup", tmp_path / "backup", tmp_path, variables)
    Warehouse(home).append_partition("sft_samples", [sample(2)], iteration="0001", stage="routing")
    run("store restore", tmp_path / "backup", tmp_path, variables)
    assert Warehouse(Home(home.root, Store.of(elsewhere))).read("sft_samples").to_pylist() == before
    store.delete([each.name for each in store.list("")])
    run("store restore", tmp_path / "backup", tmp_path, variables | {"NEW_STORE": store.url})
    with pytest.raises(CorruptTable, match=r"delete .*cache/store"):
        Warehouse(home).read("sft_samples")
    run("store copies", tmp_path / "backup", tmp_path, variables)
    assert Warehouse(home).read("sft_samples").to_pylist() == before
