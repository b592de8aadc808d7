"""A disk that remembers every write and every flush, and the states in which a power cut could leave it. What is run on it, and what is
asked of it afterwards, is trials.py's.

`LoggedDisk` serves one file by FUSE and mounts it as an ext4 file system through a loop device, so that the kernel's own block layer
decides what is written and flushed, in which order. A disk with a volatile write cache promises only this: when a flush is answered, all
that was written before it is on the platter. `Platter` replays the log up to any moment by that promise: everything before the last flush,
and of what came after it any part, in blocks of 4 KiB (the model of Linux' dm-log-writes, for one file and without a kernel module).

Needs root, /dev/fuse, loop devices, mkfs.ext4 and libfuse 3. As a program (`python -m benchmarks.power_cut.logged_disk FOLDER`) it is the
process that serves the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 4096
"""Bytes that reach the platter together or not at all: the file system's own block, and a physical sector of most disks."""
_HEADER = struct.Struct("<cQQd")
WRITE, FLUSH, MARK = b"W", b"F", b"M"
START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record of the log: a write at a byte offset, a flush, or a mark that the workload set."""

    kind: bytes
    offset: int
    data: bytes
    at_s: float
    """Seconds since the epoch."""


def entries(log: Path) -> Iterator[Entry]:
    """The log from its beginning."""
    with log.open("rb") as file:
        while header := file.read(_HEADER.size):
            kind, offset, size, at_s = _HEADER.unpack(header)
            yield Entry(kind=kind, offset=offset, data=file.read(size), at_s=at_s)


def why_not() -> str | None:
    """Why no logged disk can be had on this machine; None where it can."""
    if os.geteuid() != 0:
        return "root is needed to mount"
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(device):
            return f"{device} is missing"
    if shutil.which("mkfs.ext4") is None:
        return "mkfs.ext4 is missing (Debian: e2fsprogs)"
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as error:
        return f"mfusepy cannot be used ({error}): pip install mfusepy, and Debian's libfuse3-3 and fuse3"
    return None


class LoggedDisk:
    """An ext4 file system under `folder`/mnt whose disk is logged to `folder`/log. A context manager: mounted while it is entered."""

    def __init__(self, folder: Path, *, size_mib: int = 2048) -> None:
        self._folder, self._size = folder, size_mib * 1024**2
        self.mount, self.log = folder / "mnt", folder / "log"
        self._served = folder / "served"
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LoggedDisk:
        for each in (self.mount, self._served):
            each.mkdir(parents=True)
        with (self._folder / "disk").open("wb") as file:
            file.truncate(self._size)
        self.log.touch()
        self._server = subprocess.Popen([sys.executable, "-m", __spec__.name, str(self._folder)], cwd=ROOT, start_new_session=True)
        disk = self._served / "disk"
        deadline = time.monotonic() + START_TIMEOUT_S
        while not disk.exists():
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the logged disk in {self._folder} did not start")
            time.sleep(0.05)
        # Without discards and with all of the inode tables written now, the log holds what the workload does, and little else.
        subprocess.run(["mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", str(disk)], check=True)
        subprocess.run(["mount", "-o", "loop", str(disk), str(self.mount)], check=True)
        self.mount.chmod(0o755)
        return self

    def mark(self, text: str) -> None:
        """Write down in the log that this has happened by now, e.g. that a command said it was done."""
        descriptor = os.open(self._served / "mark", os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def __exit__(self, *_: object) -> None:
        unmount(self.mount)
        unmount(self._served)
        if self._server is not None:
            self._server.terminate()
            self._server.wait()


def unmount(folder: Path) -> None:
    """Unmount, and wait for processes that still hold a file there; after ten seconds detach it all the same."""
    for _ in range(50):
        if subprocess.run(["umount", str(folder)], stderr=subprocess.DEVNULL).returncode == 0 or not os.path.ismount(folder):
            return
        time.sleep(0.2)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Platter:
    """The disk as it was when each moment of the log was reached; moments only go forward. `image` holds what is surely on it."""

    def __init__(self, log: Path, image: Path, *, size: int) -> None:
        self._entries, self.image = enumerate(entries(log)), image
        with image.open("wb") as file:
            file.truncate(size)
        self._pending: list[Entry] = []
        """Written since the last flush that was answered."""
        self.marks: list[str] = []
        self._next: tuple[int, Entry] | None = next(self._entries, None)

    def advance(self, position: int) -> None:
        """To the moment before entry `position` of the log."""
        with self.image.open("r+b") as file:
            while self._next is not None and self._next[0] < position:
                entry = self._next[1]
                if entry.kind == WRITE:
                    self._pending.append(entry)
                elif entry.kind == MARK:
                    self.marks.append(entry.data.decode())
                else:
                    for written in self._pending:
                        os.pwrite(file.fileno(), written.data, written.offset)
                    self._pending.clear()
                self._next = next(self._entries, None)

    def cut(self, state: Path, dice: random.Random) -> int:
        """Make `state` an image of the disk after a power cut at this moment; returns how many blocks were lost. How much of the volatile
        cache survives is drawn again each time: nothing, everything, or each block by a chance."""
        subprocess.run(["cp", "--sparse=always", str(self.image), str(state)], check=True)
        chance = dice.choice([0.0, 1.0, dice.random()])
        num_lost = 0
        with state.open("r+b") as file:
            for entry in self._pending:
                for first in range(0, len(entry.data), BLOCK):
                    if dice.random() < chance:
                        os.pwrite(file.fileno(), entry.data[first : first + BLOCK], entry.offset + first)
                    else:
                        num_lost += 1
        return num_lost


@contextlib.contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    """The file system of an image; the kernel replays its journal, as it does after a cut."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield folder
    finally:
        unmount(folder)


def serve(folder: Path) -> None:
    """Serve `disk` and `mark` under `folder`/served until unmounted; writes go to `folder`/disk and, in order, to the log."""
    import mfusepy

    class Files(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def __init__(self) -> None:
            self._disk = os.open(folder / "disk", os.O_RDWR)
            self._log = (folder / "log").open("ab")
            self._lock = threading.Lock()

        def _put(self, kind: bytes, offset: int = 0, data: bytes = b"") -> None:
            with self._lock:
                self._log.write(_HEADER.pack(kind, offset, len(data), time.time()))
                self._log.write(data)
                if kind != WRITE:
                    self._log.flush()

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
            if path not in ("/disk", "/mark"):
                raise mfusepy.FuseOSError(errno.ENOENT)
            size = os.fstat(self._disk).st_size if path == "/disk" else 0
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size}

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", "disk", "mark"]

        def open(self, path: str, fi: Any) -> int:
            fi.direct_io = True  # each write and flush of the block layer is reported as it happens
            return 0

        def read(self, path: str, size: int, offset: int, fi: Any) -> bytes:
            return os.pread(self._disk, size, offset)

        def write(self, path: str, data: bytes, offset: int, fi: Any) -> int:
            if path == "/mark":
                self._put(MARK, data=data)
            else:
                os.pwrite(self._disk, data, offset)
                self._put(WRITE, offset, data)
            return len(data)

        def fsync(self, path: str, datasync: int, fi: Any) -> int:
            self._put(FLUSH)
            return 0

        def truncate(self, path: str, length: int, fh: int | None = None) -> int:
            return 0

        def destroy(self, path: str) -> None:
            self._log.close()

    mfusepy.FUSE(Files(), str(folder / "served"), raw_fi=True, foreground=True, nothreads=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]).absolute())
