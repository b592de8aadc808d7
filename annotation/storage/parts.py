"""Parts of uploaded recordings, each person's apart from everybody else's, and each stored once under the SHA-256 of its bytes. They come
from strangers' programs: what has not the length and the digest that it was announced with never gets a name here. What is in them is
checked when a recording is complete (service/bundles.py).

    parts/<user id>/<first two digits>/<sha256>
    parts/<user id>/answers/<recording id>         what models answered about a recording, a JSON line each
    parts/incoming/                                what is on its way in
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from warehouse.core.disk import is_full_disk
from warehouse.core.durable import make_folder, sync
from warehouse.core.errors import BadUpload, StorageFull, UnknownSubject, UploadTooLarge
from warehouse.core.home import Home

_DIGEST = re.compile(r"[0-9a-f]{64}")
_RECORDING = re.compile(r"recording-[0-9a-f]{16}")
_USER = re.compile(r"user-[0-9a-z-]{1,27}")
KEPT_FREE_BYTES = 1024**3
"""What uploads leave free on the disk, for everything else."""
WRITE_BYTES = 1024 * 1024
TORN_AFTER_S = 3600.0


class PartStore:
    """A folder of parts."""

    def __init__(self, folder: Path, *, kept_free_bytes: int = KEPT_FREE_BYTES) -> None:
        self._folder, self._kept_free_bytes = folder, kept_free_bytes

    @classmethod
    def of_home(cls, home: Home) -> PartStore:
        return cls(home.root / "annotation" / "parts")

    def of(self, user_id: str) -> Parts:
        """Raises UnknownSubject for what is not a user's id: nothing else becomes a path."""
        if not _USER.fullmatch(user_id):
            raise UnknownSubject(f"{user_id[:80]!r} is not the id of an account")
        return Parts(self, self._folder / user_id)

    @property
    def incoming(self) -> Path:
        folder = self._folder / "incoming"
        make_folder(folder)
        return folder

    def check_disk_space(self, num_bytes: int) -> None:
        """Raises StorageFull where so much more would not leave enough free."""
        free = shutil.disk_usage(self.incoming).free
        if free - num_bytes < self._kept_free_bytes:
            raise StorageFull(
                f"the server's disk has {free / 1024**3:.1f} GiB left, of which {self._kept_free_bytes / 1024**3:.1f} are kept free: "
                f"{num_bytes / 1024**2:.1f} MiB do not fit. Upload again once there is room; what arrived before is not sent again"
            )

    def remove_torn(self) -> None:
        """What was on its way in when a server was killed."""
        for path in self.incoming.iterdir():
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > TORN_AFTER_S:
                    path.unlink()


class Parts:
    """One person's. All but `receive` block: from an event loop call them in a thread."""

    def __init__(self, store: PartStore, folder: Path) -> None:
        self._store, self._folder = store, folder

    def path(self, sha256: str) -> Path:
        """Where a part lies, or would. Raises UnknownSubject for what is not a digest: nothing else becomes a path."""
        if not _DIGEST.fullmatch(sha256):
            raise UnknownSubject(f"{sha256[:80]!r} is not the SHA-256 of a part: 64 hexadecimal digits in lower case")
        return self._folder / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def missing(self, digests: Iterable[str]) -> tuple[str, ...]:
        """Those that are not here yet, in the order given."""
        return tuple(sha256 for sha256 in digests if not self.has(sha256))

    def get(self, sha256: str) -> bytes:
        """Raises UnknownSubject."""
        try:
            return self.path(sha256).read_bytes()
        except FileNotFoundError:
            raise UnknownSubject(f"there is no part {sha256}") from None

    def erase(self, digests: Iterable[str]) -> int:
        """Remove parts for good; how many there were. May be done twice."""
        num = 0
        for path in map(self.path, digests):
            with suppress(FileNotFoundError):
                path.unlink()
                num += 1
        return num

    def answers(self, recording_id: str) -> Answers:
        """What models answered about a recording. Raises UnknownSubject for what is not an id: nothing else becomes a path."""
        if not _RECORDING.fullmatch(recording_id):
            raise UnknownSubject(f"{recording_id[:80]!r} is not the id of a recording")
        return Answers(self._folder / "answers" / recording_id)

    async def receive(self, sha256: str, num_bytes: int, chunks: AsyncIterator[bytes]) -> None:
        """Take in one part as it comes; one that is here already is read to its end and dropped. Raises UploadTooLarge, BadUpload where
        length or digest are not those announced, StorageFull: nothing is kept then."""
        path = self.path(sha256)
        await asyncio.to_thread(self._store.check_disk_space, num_bytes)
        file, aside = await asyncio.to_thread(self._begin)
        digest, length = hashlib.sha256(), 0
        try:
            with file:
                buffer = bytearray()
                async for chunk in chunks:
                    length += len(chunk)
                    if length > num_bytes:
                        raise UploadTooLarge(f"part {sha256[:12]}… is longer than the {num_bytes} bytes that it was announced with")
                    buffer += chunk
                    if len(buffer) >= WRITE_BYTES:
                        await asyncio.to_thread(_write, file, digest, bytes(buffer))
                        buffer.clear()
                await asyncio.to_thread(_write, file, digest, bytes(buffer))
                if length != num_bytes or digest.hexdigest() != sha256:
                    came = f"{length} of {num_bytes} bytes with the digest {digest.hexdigest()[:12]}…"
                    raise BadUpload(f"part {sha256[:12]}… came as {came}: send it again")
                await asyncio.to_thread(_keep, file, aside, path)
        except OSError as error:
            if is_full_disk(error):
                raise StorageFull(
                    f"the server's disk is full, part {sha256[:12]}… was not kept: upload again once there is room"
                ) from error
            raise
        finally:
            with suppress(FileNotFoundError):
                aside.unlink()

    def _begin(self) -> tuple[BinaryIO, Path]:
        descriptor, name = tempfile.mkstemp(dir=self._store.incoming, prefix="part-")
        return os.fdopen(descriptor, "wb"), Path(name)


class Answers:
    """By what was asked. Each is kept as it comes; of one that was cut off nothing is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, str] | None = None

    def get(self, asked: str) -> str | None:
        return self._read().get(asked)

    def put(self, asked: str, answer: str) -> None:
        known = self._read()
        make_folder(self.path.parent)
        with self.path.open("ab") as file:
            file.write(b"\n" + json.dumps([asked, answer]).encode())
        known[asked] = answer

    def erase(self) -> None:
        """May be done twice."""
        self.path.unlink(missing_ok=True)
        self._known = None

    def _read(self) -> dict[str, str]:
        if self._known is None:
            self._known = {}
            lines = self.path.read_bytes().split(b"\n") if self.path.is_file() else []
            for line in lines:
                with suppress(ValueError):
                    asked, answer = json.loads(line)
                    self._known[str(asked)] = str(answer)
        return self._known


def _write(file: BinaryIO, digest: hashlib._Hash, data: bytes) -> None:
    digest.update(data)
    file.write(data)


def _keep(file: BinaryIO, aside: Path, path: Path) -> None:
    os.fchmod(file.fileno(), 0o640)  # the iteration that takes it in may be of another user, and of the home's group
    file.flush()
    os.fsync(file.fileno())
    make_folder(path.parent)
    aside.replace(path)
    sync(path.parent)
