"""Checkpoints in an object store: sent by the host that made them, copied by those that use them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warehouse.core.errors import CheckpointError
from warehouse.core.home import Home
from warehouse.core.store import Store
from warehouse.lineage import registry
from warehouse.storage.remote import checkpoints as remote_checkpoints
from warehouse.storage.remote import copies
from warehouse.storage.remote.checkpoints import MANIFEST, damage, prune, put
from warehouse.storage.remote.copying import to_store
from warehouse.storage.tables import Warehouse

pytestmark = pytest.mark.slow
PATH = "checkpoints/0001/sft_model/checkpoint-1"
FILES = {"card.json": b"{}", "weights/model.safetensors": bytes(range(256)) * 50_000}


def _made(folder: Path) -> Path:
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _register(warehouse: Warehouse) -> None:
    folder = _made(warehouse.home.root / PATH)
    registry.register(warehouse, iteration="0001", stage="sft_model", checkpoint_id="checkpoint-1", folder=folder)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_one_host_registers_another_copies_when_it_uses_it(tmp_path: Path, store: Store) -> None:
    one, two = Warehouse(Home(tmp_path / "one")), Warehouse(Home(tmp_path / "two"))
    _register(one)
    found = registry.find(two, "checkpoint-1")
    assert not (two.home.root / PATH).exists(), "nobody has asked for its files"
    registry.pass_on(two, found, iteration="0002", stage="ct_model", note="passed on")
    assert not (two.home.root / PATH).exists()
    assert _files(found.folder) == FILES and found.folder == two.home.root / PATH
    assert _files(registry.made_by(one, "0002", "ct_model").folder) == FILES
    assert damage(store, PATH) is None


def test_one_that_was_not_sent_whole_is_not_there(tmp_path: Path, store: Store) -> None:
    one, two = Warehouse(Home(tmp_path / "one")), Warehouse(Home(tmp_path / "two"))
    _register(one)
    store.delete([f"{PATH}/{MANIFEST}"])
    with pytest.raises(CheckpointError, match="holds no whole checkpoint: copy it there again"):
        _ = registry.find(two, "checkpoint-1").folder
    assert damage(store, PATH) == "is not in the object store, or not whole"
    put(store, PATH, one.home.root / PATH)
    assert _files(registry.find(two, "checkpoint-1").folder) == FILES


def test_a_damaged_large_file_and_manifest_are_sent_again_from_a_host_that_has_them(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_checkpoints, "_KNOWN_BY_SIZE", 2**20)
    one, two = Warehouse(Home(tmp_path / "one")), Warehouse(Home(tmp_path / "two"))
    _register(one)
    weights = f"{PATH}/weights/model.safetensors"
    for damaged, data in ((weights, FILES["weights/model.safetensors"][::-1]), (f"{PATH}/{MANIFEST}", b"{")):
        store.write(damaged, data)
        assert damage(store, PATH) is not None
        for part in to_store(one.home, store):
            part.copy()
        assert damage(store, PATH) is None
    store.delete([f"{PATH}/{MANIFEST}"])  # as a host leaves it that is killed, here with a file that did not arrive as it was
    store.write(weights, FILES["weights/model.safetensors"][::-1])
    for part in to_store(one.home, store):
        part.copy()
    assert _files(registry.find(two, "checkpoint-1").folder) == FILES


def test_a_copy_that_was_cut_off_goes_on_where_it_was(tmp_path: Path, store: Store) -> None:
    one, two = Warehouse(Home(tmp_path / "one")), Warehouse(Home(tmp_path / "two"))
    _register(one)
    aside = two.home.root / Path(PATH).with_name(f".{Path(PATH).name}.copying")
    (aside / "weights").mkdir(parents=True)
    half = FILES["weights/model.safetensors"][:7_000_000]
    (aside / "weights" / "model.safetensors.part").write_bytes(half)
    (aside / "left.part").write_bytes(b"of an older manifest")
    assert _files(registry.find(two, "checkpoint-1").folder) == FILES
    assert not aside.exists()


def test_a_changed_object_never_becomes_a_checkpoint(tmp_path: Path, store: Store) -> None:
    one, two = Warehouse(Home(tmp_path / "one")), Warehouse(Home(tmp_path / "two"))
    _register(one)
    store.write(f"{PATH}/card.json", b"[]")
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"card\.json was changed since it was sent"):
            _ = registry.find(two, "checkpoint-1").folder
    assert not (two.home.root / PATH).exists()
    assert damage(store, PATH) == "has another card.json in the object store than was sent"


def _aged(folder: Path, age_s: float) -> Path:
    for file in (path for path in folder.rglob("*") if path.is_file()):
        os.utime(file, (file.stat().st_mtime - age_s, file.stat().st_mtime))
    return folder


def test_checkpoints_that_were_not_used_for_longest_go_from_the_home_and_come_back(tmp_path: Path, store: Store) -> None:
    warehouse, size = Warehouse(Home(tmp_path / "home")), sum(map(len, FILES.values()))
    folders = []
    for index, age_s in enumerate((4e5, 3e5, 2e5, 10)):
        path = f"checkpoints/000{index}/sft_model/checkpoint-{index}"
        folders.append(_made(warehouse.home.root / path))
        put(store, path, folders[-1])
        _aged(folders[-1], age_s)
    work = [_aged(_made(folders[0].with_name(name)), 5e5) for name in ("run", "draft")]
    registry.register(warehouse, iteration="0000", stage="sft_model", checkpoint_id="checkpoint-0", folder=folders[0])
    store.delete([f"checkpoints/0001/sft_model/checkpoint-1/{next(iter(FILES))}"])
    left = folders[0].with_name(f".{folders[0].name}.pruned")
    left.mkdir()
    (left / "of who was killed").touch()
    assert prune(warehouse.home, 5.5 * size) == [folders[0]] and not left.exists(), "folders of work under way are not in the store"
    assert prune(warehouse.home, 0) == [folders[2]], "one that the store does not have whole stays, as does what was used within a day"
    assert all(folder.is_dir() for folder in work)
    assert _files(registry.find(warehouse, "checkpoint-0").folder) == FILES


def test_a_host_that_copies_checkpoints_keeps_to_the_limit(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Warehouse(Home(tmp_path / "one")), Warehouse(Home(tmp_path / "two"))
    _register(one)
    other = _made(one.home.root / "checkpoints/0002/sft_model/checkpoint-2")
    registry.register(one, iteration="0002", stage="sft_model", checkpoint_id="checkpoint-2", folder=other)
    first = _aged(registry.find(two, "checkpoint-1").folder, 1e5)
    monkeypatch.setenv(copies.LIMIT_VARIABLE, "0")
    monkeypatch.setattr(copies, "_LOOKED", {})
    second = registry.find(two, "checkpoint-2").folder
    assert second.is_dir() and not first.exists()
    assert registry.find(two, "checkpoint-1").folder == first and _files(first) == FILES
