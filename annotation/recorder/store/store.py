"""A recording on the disk: a folder with a cover that says which it is, a journal that only grows, and files. Crash-safe and private:
but for the sound, nothing comes here from which the recorder has not taken what is private (screening.py, screens.py).

    recordings/<name>/
    ├── cover.json       id, state, how it is sealed; nothing of what was recorded
    ├── journal.jsonl    while it is recorded: one line a record, each written whole before the next
    ├── manifest.json    once it is finished: bundle.Manifest; the journal is then gone
    ├── screens/         one file a picture, by its id
    ├── speech.pcm       sound as it came: records of a length and that many bytes
    └── lock             held while a process records

A killed process leaves at most one torn line and one torn stretch of sound, which reading skips. What is deleted is overwritten and then
removed; on disks that move blocks (SSDs) and in snapshots and backups copies may outlive that, which sealing protects.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shutil
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from annotation.recorder.store.vault import OpenVault, Seal, Vault, new_vault, open_vault
from annotation.recorder.store.wiping import OLD, wipe, wipe_old
from annotation.recordings.bundle import Manifest, RecordingId
from warehouse.core.durable import make_folder
from warehouse.core.errors import RecordingRefused
from warehouse.core.home import atomic_write

State = Literal["recording", "recorded", "reviewed", "uploaded"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
COVER, JOURNAL, MANIFEST, SPEECH, SCREENS, LOCK = "cover.json", "journal.jsonl", "manifest.json", "speech.pcm", "screens", "lock"


class Cover(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    recording_id: RecordingId
    state: State = "recording"
    seal: Seal | None = None


class Store:
    """One recording's folder."""

    def __init__(self, folder: Path, cover: Cover, vault: Vault) -> None:
        self.folder, self.cover, self._vault = folder, cover, vault
        self._journal: int | None = None
        self._speech: int | None = None
        self._num_speech = 0
        self._writing = threading.Lock()

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def is_sealed(self) -> bool:
        return self._vault.is_sealed

    # --- what grows while it is recorded ---

    def append(self, record: Mapping[str, Any]) -> None:
        """One line of the journal, written by one system call."""
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
        if self.is_sealed:
            line = base64.b64encode(self._vault.seal(line, JOURNAL))
        with self._writing:
            if self._journal is None:
                self._journal = os.open(self.folder / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                self._end_torn_line()
            os.write(self._journal, line + b"\n")

    def _end_torn_line(self) -> None:
        """What a killed process left unfinished must not spoil the line after it."""
        path = self.folder / JOURNAL
        if path.stat().st_size and path.read_bytes()[-1:] != b"\n" and self._journal is not None:
            os.write(self._journal, b"\n")

    def journal(self) -> Iterator[dict[str, Any]]:
        """Its records in order; torn lines are skipped."""
        path = self.folder / JOURNAL
        for line in path.read_bytes().split(b"\n") if path.exists() else ():
            with suppress(ValueError):
                if line:
                    plain = self._vault.unseal(base64.b64decode(line, validate=True), JOURNAL) if self.is_sealed else line
                    yield json.loads(plain)

    def append_speech(self, samples: bytes) -> None:
        sealed = self._vault.seal(samples, f"{SPEECH}:{self._num_speech}")
        with self._writing:
            if self._speech is None:
                self._speech = os.open(self.folder / SPEECH, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(self._speech, struct.pack(">I", len(sealed)) + sealed)
            self._num_speech += 1

    def speech(self) -> bytes:
        """All sound, 16-bit samples; a torn end is left out."""
        path = self.folder / SPEECH
        data, at, pieces = path.read_bytes() if path.exists() else b"", 0, list[bytes]()
        while at + 4 <= len(data):
            (length,) = struct.unpack_from(">I", data, at)
            if at + 4 + length > len(data):
                break
            pieces.append(self._vault.unseal(data[at + 4 : at + 4 + length], f"{SPEECH}:{len(pieces)}"))
            at += 4 + length
        return b"".join(pieces)

    def replace_speech(self, samples: bytes) -> None:
        """Sound with something taken out of it, instead of what is there."""
        self.close()
        sealed = self._vault.seal(samples, f"{SPEECH}:0")
        self._replace(self.folder / SPEECH, struct.pack(">I", len(sealed)) + sealed if samples else b"")

    def sync(self) -> None:
        """So that a power cut loses nothing of what was written so far."""
        for descriptor in (self._journal, self._speech):
            if descriptor is not None:
                os.fsync(descriptor)

    def close(self) -> None:
        self.sync()
        for descriptor in (self._journal, self._speech):
            if descriptor is not None:
                os.close(descriptor)
        self._journal = self._speech = None

    # --- pictures ---

    def put_screen(self, screen_id: str, png: bytes) -> None:
        path = self._screen(screen_id)
        if not path.exists():
            self._put(path, self._vault.seal(png, screen_id))

    def screen(self, screen_id: str) -> bytes:
        return self._vault.unseal(self._screen(screen_id).read_bytes(), screen_id)

    def screen_ids(self) -> list[str]:
        return sorted(path.name for path in (self.folder / SCREENS).glob("screen-*"))

    def erase_screen(self, screen_id: str) -> None:
        wipe(self._screen(screen_id))

    def _screen(self, screen_id: str) -> Path:
        if not re.fullmatch(r"screen-[0-9a-f]{16}", screen_id):
            raise RecordingRefused(f"{screen_id!r} is not a picture's id.")
        return self.folder / SCREENS / screen_id

    # --- once it is finished ---

    def has_manifest(self) -> bool:
        return (self.folder / MANIFEST).exists()

    def manifest(self) -> Manifest:
        """Raises RecordingRefused where it was never finished."""
        if not self.has_manifest():
            raise RecordingRefused(f"The recording {self.name} is not finished: `flywheel record resume {self.name}`")
        return Manifest.model_validate_json(self._vault.unseal((self.folder / MANIFEST).read_bytes(), MANIFEST))

    def put_manifest(self, manifest: Manifest, state: State) -> None:
        """The manifest first, then the state that vouches for it; at last the journal goes, and every picture that is not named."""
        self.close()
        self._replace(self.folder / MANIFEST, self._vault.seal(manifest.model_dump_json(indent=1).encode(), MANIFEST))
        self.set_state(state)
        wipe(self.folder / JOURNAL)
        for screen_id in set(self.screen_ids()) - {screen.screen_id for screen in manifest.screens}:
            self.erase_screen(screen_id)

    def set_state(self, state: State) -> None:
        self.cover = self.cover.model_copy(update={"state": state})
        self._put(self.folder / COVER, self.cover.model_dump_json(indent=1).encode())

    def erase(self) -> None:
        """The whole recording."""
        self.close()
        for path in self.folder.rglob("*"):
            if path.is_file():
                wipe(path)
        shutil.rmtree(self.folder)

    @staticmethod
    def _put(path: Path, data: bytes) -> None:
        atomic_write(path, data)
        path.chmod(0o600)

    def _replace(self, path: Path, data: bytes) -> None:
        """Put a file in another's place and wipe that one: at every moment one of them is there under its name."""
        old = path.with_name(path.name + OLD)
        if path.exists():
            wipe_old(old)
            os.link(path, old)
        try:
            self._put(path, data)
        finally:
            wipe_old(old)

    # --- who records ---

    def lock(self) -> int:
        """A descriptor that holds the recording for as long as it is open. Raises RecordingRefused where another process records."""
        descriptor = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise RecordingRefused(f"The recording {self.name} is being recorded by another process: stop that one first.") from error
        return descriptor

    @property
    def is_live(self) -> bool:
        """Whether a process records it now."""
        try:
            os.close(self.lock())
        except RecordingRefused:
            return True
        return False


def _lock(descriptor: int) -> None:
    """Raises OSError where another process holds it."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def create(root: Path, name: str, passphrase: str | None = None) -> Store:
    """A new, empty recording. Raises RecordingRefused for a name that is taken or no name."""
    check_new(root, name)
    folder = root / name
    vault, seal = new_vault(passphrase)
    make_folder(root)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError as error:
        raise _taken(name) from error
    (folder / SCREENS).mkdir(mode=0o700)
    store = Store(folder, Cover(recording_id=f"recording-{secrets.token_hex(8)}", seal=seal), vault)
    store.set_state("recording")
    return store


def check_new(root: Path, name: str) -> None:
    """Raises RecordingRefused for a name that is taken or no name."""
    if not NAME.fullmatch(name):
        raise RecordingRefused(f"{name!r} is not a name for a recording: letters, digits, dot, dash and underscore, at most 80.")
    if (root / name).exists():
        raise _taken(name)


def _taken(name: str) -> RecordingRefused:
    return RecordingRefused(f"There is a recording {name} already: choose another name, or `flywheel record delete {name}`.")


def read_cover(folder: Path) -> Cover:
    """Raises RecordingRefused for a folder that is not a recording."""
    try:
        return Cover.model_validate_json((folder / COVER).read_bytes())
    except (OSError, ValidationError) as error:
        raise RecordingRefused(f"There is no recording {folder.name}: `flywheel record list` lists them.") from error


def open_store(root: Path, name: str, passphrase: str | None = None) -> Store:
    """A recording that is there. Raises RecordingRefused, and RecordingLocked for a wrong passphrase."""
    if not NAME.fullmatch(name):
        raise RecordingRefused(f"{name!r} is not a name of a recording.")
    cover = read_cover(root / name)
    for path in (root / name).glob(f"*{OLD}"):  # a process was killed before it was gone
        wipe_old(path)
    return Store(root / name, cover, open_vault(passphrase, cover.seal))


def all_recordings(root: Path) -> list[tuple[str, Cover, bool]]:
    """Name, cover and whether it is live, of every recording."""
    found = []
    for path in sorted(root.glob(f"*/{COVER}")):
        with suppress(RecordingRefused):
            cover = read_cover(path.parent)
            found.append((path.parent.name, cover, Store(path.parent, cover, OpenVault()).is_live))
    return found
