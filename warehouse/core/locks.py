"""Exclusive locks between processes that the kernel releases when their holder dies. What a lock protects is its user's business."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

POLL_S = 0.02
LOOKED_AT_S = 1.0
"""How long to try for a lock that others ask for the holder of: each look takes it for a moment."""


class FileLock:
    """An exclusive `flock` on one file, which holds the holder's pid for people and messages.

    Processes and threads alike exclude each other, each with a FileLock of its own. A `kill -9` of the holder frees the lock: nothing is
    left to clean up. A forked child shares its parent's lock; a subprocess does not.
    """

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, timeout_s: float | None = 0.0) -> bool:
        """Try to take the lock; True when it is ours. Waits up to `timeout_s` seconds, for ever when None."""
        if self._descriptor is not None:
            raise RuntimeError(f"lock {self.path} is already held by this object: release it first")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _lock(descriptor, timeout_s):
                os.close(descriptor)
                return False
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let go; does nothing when the lock is not held."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone would leave it to a child that was forked meanwhile
            os.close(descriptor)

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def holder(self) -> int | None:
        """Pid of the process that holds the lock now, here or elsewhere; None when nobody does."""
        if self._descriptor is not None:
            return os.getpid()
        return holder_of(self.path)

    def __enter__(self) -> FileLock:
        self.acquire(timeout_s=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def holder_of(path: Path) -> int | None:
    """Pid of the process that holds the lock at `path`; None when nobody does. To see that, it takes a free lock for a moment, for which it
    is enough to be allowed to read it. Of a process in another container the pid is the one that it has there."""
    try:
        descriptor = _opened(path)
    except FileNotFoundError:
        return None
    try:
        if _lock(descriptor, 0.0):
            return None
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR)  # on a network file system an exclusive lock wants this
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS):
            raise
        return os.open(path, os.O_RDONLY)


def _lock(descriptor: int, timeout_s: float | None) -> bool:
    if timeout_s is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
