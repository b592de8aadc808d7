"""Checkpoints of a home that keeps them in an object store: sent when a stage registers one, copied to the home where it is first used.
What a checkpoint is, models/checkpoints says; here it is a folder of files.

`<path>/manifest.json` is put last, so a checkpoint is there whole or not at all. It lists each file with its size and SHA-256, against
which a copy is checked before it gets its name. What was copied when a process died is not copied again.

The folders in a home obey the limit of copies.py, those of checkpoints that were made there as well, once they are in the store whole.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from warehouse.core.errors import CheckpointError, StoreUnreachable
from warehouse.core.home import Home
from warehouse.core.identity import file_digest
from warehouse.core.locks import FileLock
from warehouse.core.store import Store, at_once
from warehouse.storage.remote import copies

MANIFEST = "manifest.json"
_KNOWN_BY_SIZE = 64 * 2**20
"""Files from this size on that a killed process sent are not sent again where they are there whole: the id of a checkpoint is that of its
weights."""
IN_USE_S = 24 * 3600.0
"""A stage or a server that was started on a checkpoint may open its folder again for so long."""
_PRUNED = ".pruned"
_AGAIN = "copy it there again from a host that has it, or have its stage work again"
_log = logging.getLogger(__name__)


class StoredFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="path below the checkpoint's folder")
    size: int = Field(ge=0, description="bytes")
    sha256: str = Field(description="of its bytes, in hexadecimal")


class Manifest(BaseModel):
    """What a checkpoint in the store consists of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: tuple[StoredFile, ...]


def send(home: Home, path: str) -> None:
    """Have the checkpoint in the folder `path` of a home be in its store; nothing is done where it is there, or the home has no store.
    Raises CheckpointError where there is none to send."""
    if home.store is None or read_manifest(home.store, path) is not None:
        return
    if not (home.root / path).is_dir():
        raise CheckpointError(f"{home.root / path} is not there, nor in {home.store.url}: {_AGAIN}")
    put(home.store, path, home.root / path)
    _prune_now_and_then(home)


def is_sent(store: Store, path: str) -> bool:
    """Whether a checkpoint was once there whole, whatever became of it."""
    return store.read(f"{path}/{MANIFEST}") is not None


def put(store: Store, path: str, folder: Path, *, again: bool = False) -> None:
    """Send a checkpoint. `again`: all of it, as what is there may be damaged."""
    names = sorted(file.relative_to(folder).as_posix() for file in _files(folder))
    there = {} if again else {each.name: each.size for each in store.list(path)}

    def one(name: str) -> StoredFile:
        file = folder / name
        size, key = file.stat().st_size, f"{path}/{name}"
        if size < _KNOWN_BY_SIZE or there.get(key) != size:
            store.write(key, file)
        return StoredFile(name=name, size=size, sha256=file_digest(file))

    manifest = Manifest(files=tuple(at_once(one, names)))
    store.write(f"{path}/{MANIFEST}", manifest.model_dump_json().encode())


def read_manifest(store: Store, path: str) -> Manifest | None:
    """None where no whole checkpoint is there. Raises CheckpointError for what is not a manifest."""
    data = store.read(f"{path}/{MANIFEST}")
    if data is None:
        return None
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        raise CheckpointError(f"{store.url}/{path}/{MANIFEST} is not a manifest ({error}): {_AGAIN}") from error


def folder_of(home: Home, path: str) -> Path:
    """The folder of a checkpoint, copied from the home's store where it is not here. Raises CheckpointError for one that the store does not
    have whole."""
    folder = home.root / path
    if home.store is None:
        return folder
    with _lock(home, folder):
        _note_use(folder)
        is_here = folder.exists()
        if not is_here:
            get(home.store, path, folder)
    if not is_here:
        _prune_now_and_then(home)
    return folder


def _note_use(folder: Path) -> None:
    for file in _files(folder):
        copies.note_use(file)


def _lock(home: Home, folder: Path) -> FileLock:
    return FileLock(home.locks / f"copy-{folder.name}.lock")


def _prune_now_and_then(home: Home) -> None:
    if not copies.is_due(home.checkpoints):
        return
    limit = copies.limit_bytes()
    try:
        prune(home, limit)
    except (CheckpointError, StoreUnreachable, OSError) as error:  # of checkpoints that nobody asked for now
        _log.warning("copies of checkpoints were not pruned: %s", error)


def prune(home: Home, limit: float, *, in_use_s: float = IN_USE_S) -> list[Path]:
    """Delete checkpoints from a home that the store has whole, those first that were not used for longest, until they take up `limit`
    bytes; which they were. Folders of work under way stay: nothing is in the store under their names."""
    for left in home.checkpoints.glob(f"*/*/.*{_PRUNED}"):  # by who was killed
        shutil.rmtree(left, ignore_errors=True)
    made = [each for each in map(_copy_in, home.checkpoints.glob("*/*/[!.]*")) if each is not None]
    return copies.delete_oldest(made, limit, in_use_s, partial(_prune, home))


def _copy_in(folder: Path) -> copies.Copy | None:
    states = []
    for file in _files(folder):
        with suppress(FileNotFoundError):
            states.append(file.stat())
    return copies.Copy(max(each.st_atime for each in states), sum(each.st_size for each in states), folder) if states else None


def _prune(home: Home, found: copies.Copy) -> bool:
    with _lock(home, found.path):
        if not _is_in_store(home, found.path) or _copy_in(found.path) != found:  # used meanwhile
            return False
        aside = found.path.with_name(f".{found.path.name}{_PRUNED}")
        shutil.rmtree(aside, ignore_errors=True)
        found.path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    return True


def _is_in_store(home: Home, folder: Path) -> bool:
    """Whether every file of a checkpoint is in the store with its size."""
    store, path = home.store, folder.relative_to(home.root).as_posix()
    manifest = read_manifest(store, path) if store is not None else None
    if store is None or manifest is None:
        return False
    there = {each.name: each.size for each in store.list(path)}
    here = {file.relative_to(folder).as_posix(): file.stat().st_size for file in _files(folder)}
    return here == {file.name: file.size for file in manifest.files} and all(there.get(f"{path}/{name}") == here[name] for name in here)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def get(store: Store, path: str, folder: Path) -> None:
    """Copy a checkpoint to a folder, which is there whole or not at all. Call it alone for that folder."""
    manifest = read_manifest(store, path)
    if manifest is None:
        raise CheckpointError(f"{store.url}/{path} holds no whole checkpoint: {_AGAIN}")
    aside = folder.with_name(f".{folder.name}.copying")
    aside.mkdir(parents=True, exist_ok=True)
    _log.info("copying %s/%s (%.1f MB)", store.url, path, sum(file.size for file in manifest.files) / 1e6)
    at_once(lambda file: _copy(store, path, file, aside), manifest.files)
    for found in list(_files(aside)):
        if found.relative_to(aside).as_posix() not in {file.name for file in manifest.files}:
            found.unlink()
    aside.rename(folder)


def _copy(store: Store, path: str, file: StoredFile, aside: Path) -> None:
    target = aside / file.name
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    begin = part.stat().st_size if part.exists() else 0
    try:
        if begin < file.size:
            with part.open("ab") as sink:
                for data in store.stream(f"{path}/{file.name}", begin):
                    sink.write(data)
        part.touch()
        if part.stat().st_size != file.size or file_digest(part) != file.sha256:
            part.unlink()
            raise CheckpointError(f"{store.url}/{path}/{file.name} was changed since it was sent: {_AGAIN}")
    except FileNotFoundError as error:
        raise CheckpointError(f"{store.url}/{path}/{file.name} is missing: {_AGAIN}") from error
    part.rename(target)


def damage(store: Store, path: str) -> str | None:
    """What is wrong with a checkpoint in the store; every byte is read."""
    try:
        manifest = read_manifest(store, path)
    except CheckpointError:
        return f"has no readable {MANIFEST} in the object store"
    if manifest is None:
        return "is not in the object store, or not whole"
    for file in manifest.files:
        found = hashlib.sha256()
        try:
            for data in store.stream(f"{path}/{file.name}"):
                found.update(data)
        except FileNotFoundError:
            return f"lacks {file.name} in the object store"
        if found.hexdigest() != file.sha256:
            return f"has another {file.name} in the object store than was sent"
    return None
