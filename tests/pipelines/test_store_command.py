"""`flywheel store copy` and `flywheel verify` with an object store."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.common.object_store import Server
from pipelines.cli.app import app
from pipelines.cli.data.verify import repair_alone, verify
from pipelines.cli.doctor import check_store
from tests.warehouse.conftest import Make
from warehouse.core.errors import ConfigError, CorruptTable
from warehouse.core.home import Home
from warehouse.core.identity import bytes_id
from warehouse.core.store import Store
from warehouse.lineage import registry
from warehouse.storage.catalogue import TABLES
from warehouse.storage.log.table_log import TableLog
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.slow


@pytest.fixture
def on_disk(tmp_path: Path) -> Warehouse:
    """A home with a few tables of several versions, a picture and a checkpoint."""
    made = Warehouse(Home(tmp_path / "disk", None))
    for name in "abc":
        made.replace_partition("episodes", [Make.episode(name)], iteration="0001", stage="rollouts")
        made.append_partition("verdicts", [Make.verdict(name)], iteration="0001", stage="verdicts")
    data = b"a picture"
    made.add_screenshots([Make.screenshot(bytes_id("screen", data), data)])
    folder = made.home.checkpoints / "0001" / "sft_model" / "checkpoint-1"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 9_000)
    registry.register(made, iteration="0001", stage="sft_model", checkpoint_id="checkpoint-1", folder=folder)
    return made


def _copy(source: object, target: object) -> str:
    ran = CliRunner().invoke(app, ["store", "copy", str(source), str(target)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.output


def _content(warehouse: Warehouse) -> dict[str, object]:
    found: dict[str, object] = {}
    for table in TABLES:
        for version in range(warehouse.version(table) + 1):
            rows = warehouse.read(table, version=version).to_pylist()
            found[f"{table}/{version}"] = sorted(rows, key=str)
    return found


def test_a_home_goes_to_a_store_and_back_with_every_version(tmp_path: Path, on_disk: Warehouse, store: Store) -> None:
    said = _copy(on_disk.home.root, store.url)
    assert "FLYWHEEL_STORE=s3://" in said and "not copied" in said
    far = Warehouse(Home(tmp_path / "far"))
    assert _content(far) == _content(on_disk)
    assert (registry.find(far, "checkpoint-1").folder / "model.safetensors").read_bytes() == bytes(range(256)) * 9_000
    far.append_partition("episodes", [Make.episode("d")], iteration="0002", stage="rollouts")
    _copy(store.url, tmp_path / "back")
    back = Warehouse(Home(tmp_path / "back", None))
    assert _content(back) == _content(far)
    back.append_partition("episodes", [Make.episode("e")], iteration="0002", stage="rollouts")
    assert back.read("episodes").num_rows == 3
    folder = back.home.root / "checkpoints" / "0001" / "sft_model" / "checkpoint-1"
    assert (folder / "model.safetensors").stat().st_size == 256 * 9_000
    assert verify(back, Console(file=io.StringIO()), all_versions=True, as_json=False) == 1, "the checkpoint was made up for this test"


def test_a_copy_that_was_cut_off_goes_on_and_another_history_is_refused(tmp_path: Path, on_disk: Warehouse, store: Store) -> None:
    _copy(on_disk.home.root, store.url)
    names = [each.name for each in store.list("tables/verdicts")]
    store.delete([name for name in names if name.endswith(("2.json", "3.json", ".parquet"))])
    store.write("checkpoints/0001/sft_model/checkpoint-1/model.safetensors", b"another")
    _copy(on_disk.home.root, store.url)
    assert sorted(each.name for each in store.list("tables/verdicts")) == sorted(names)
    assert _content(Warehouse(Home(tmp_path / "far"))) == _content(on_disk)
    other = Warehouse(Home(tmp_path / "other", None))
    other.append_partition("episodes", [Make.episode("x")], iteration="0001", stage="rollouts")
    other.append_partition("annotations", [Make.annotation("note", "x")], iteration="0001", stage="annotations")
    before = [(each.name, each.modified) for each in store.list("")]
    with pytest.raises(ConfigError, match="has another history of table episodes from version 0 on"):
        _copy(other.home.root, store.url)
    with pytest.raises(ConfigError, match="has another history of table episodes from version 0 on"):
        _copy(store.url, other.home.root)
    assert [(each.name, each.modified) for each in store.list("")] == before, "what is refused changes nothing"
    assert len(list(other.home.tables.rglob("*.parquet"))) == 2


def test_a_damaged_home_is_not_copied(on_disk: Warehouse, store: Store) -> None:
    path = on_disk.files("episodes")[0]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptTable, match="was changed"):
        _copy(on_disk.home.root, store.url)


def test_a_repaired_table_is_copied_all_the_same(tmp_path: Path, on_disk: Warehouse, store: Store) -> None:
    log = TableLog(on_disk.home, "verdicts")
    lines = log.file(1).read_bytes()
    log.file(1).write_bytes(lines.replace(b'"operation":"WRITE"', b'"operation":"OTHER"'))
    with log.lock():
        log.begin_again(3)
    _copy(on_disk.home.root, store.url)
    far = Warehouse(Home(tmp_path / "far"))
    assert far.read("verdicts").num_rows == 3
    far.append_partition("verdicts", [Make.verdict("d")], iteration="0002", stage="verdicts")
    assert Warehouse(Home(tmp_path / "third")).read("verdicts").num_rows == 4


def test_verify_reads_what_lies_in_the_store_and_repair_says_that_it_does_not(tmp_path: Path, on_disk: Warehouse, store: Store) -> None:
    shutil.rmtree(on_disk.home.checkpoints)
    on_disk.replace_partition("checkpoints", [], iteration="0001", stage="sft_model")
    _copy(on_disk.home.root, store.url)
    far = Warehouse(Home(tmp_path / "far"))
    said = io.StringIO()
    assert verify(far, Console(file=said), all_versions=True, as_json=False) == 0, said.getvalue()
    (path,) = far.files("episodes")
    name = f"tables/episodes/{path.relative_to(far.folder('episodes')).as_posix()}"
    data = path.read_bytes()
    store.write(name, data[:50] + bytes([data[50] ^ 1]) + data[51:])
    store.delete(["tables/verdicts/_delta_log/00000000000000000001.json"])
    said = io.StringIO()
    assert verify(far, Console(file=said, width=400), all_versions=False, as_json=False) == 1
    assert "checksum is not the one in its name in the object store" in said.getvalue()
    assert "00000000000000000001.json" in said.getvalue() and "is missing in the object store" in said.getvalue()
    with pytest.raises(ConfigError, match="only those on a disk are repaired"):
        repair_alone(far, Console(file=said), lambda question: None)


def test_what_cannot_be_copied_is_said(tmp_path: Path, store: Store) -> None:
    for source, target, reason in (
        (tmp_path, tmp_path, "one of the two is a home's folder"),
        (store.url, tmp_path / "empty", "has no tables"),
        (tmp_path / "nowhere", store.url, "there is no home"),
    ):
        with pytest.raises(ConfigError, match=reason):
            _copy(source, target)


def test_doctor_tries_the_store(object_store: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    found = check_store(store)
    assert found.status == "ok" and "conditional puts work" in found.found
    assert not list(store.list("doctor"))
    found = check_store(Store.of("s3://no-such-bucket/x"))
    assert found.status == "fail" and "there is no bucket" in found.found


def test_a_home_whose_tables_were_not_copied_is_not_an_empty_one(on_disk: Warehouse, store: Store) -> None:
    with pytest.raises(ConfigError, match="`flywheel store copy` puts the tables of this home there"):
        Warehouse(Home(on_disk.home.root)).read("episodes")
    _copy(on_disk.home.root, store.url)
    assert Warehouse(Home(on_disk.home.root)).read("episodes").num_rows == 1
