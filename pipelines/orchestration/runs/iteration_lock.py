"""Locks that say which process runs an iteration in a home, and of hosts that share an object store, on which of them. Light: a query
does not import Dagster."""

from __future__ import annotations

import socket
import time
import uuid
from pathlib import Path

from warehouse.core.home import Home, atomic_write
from warehouse.core.leases import StoreLease
from warehouse.core.locks import FileLock, holder_of

LOCK_NAME = "iteration.lock"


def lock_path(home: Home) -> Path:
    """Held by the process that works an iteration: no two on a home, and a run without it is dead (executor.py)."""
    return home.locks / LOCK_NAME


def driver_path(home: Home) -> Path:
    """Held by `flywheel run` from its first iteration to its last: a second one is refused between two iterations too, when nobody holds
    the iteration's lock."""
    return home.locks / "run.lock"


class IterationLock:
    """One of the two: the file in the home, which the kernel releases, and with an object store a lease of that name there, so that other
    hosts are kept off as well."""

    def __init__(self, home: Home, path: Path) -> None:
        self._file = FileLock(path)
        self._lease = _lease(home, path)

    def acquire(self, timeout_s: float = 0.0) -> bool:
        """Try to take it. A lease whose holder may be dead takes its time to run out (warehouse/core/leases.py). Raises
        StoreUnreachable."""
        if not self._file.acquire(timeout_s):
            return False
        try:
            if self._lease is None or self._acquire_lease(self._lease, timeout_s):
                return True
        except BaseException:
            self._file.release()
            raise
        self._file.release()
        return False

    @staticmethod
    def _acquire_lease(lease: StoreLease, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not lease.acquire():
            if time.monotonic() >= deadline:
                return False
        return True

    def release(self) -> None:
        if self._lease is not None:
            self._lease.release()
        self._file.release()

    def holder(self) -> str | None:
        """The process that has it, with its host where that may be another."""
        found = holder_of(self._file.path) or (self._lease.holder() if self._lease is not None else None)
        return None if found is None else str(found)


def is_running_elsewhere(home: Home) -> bool:
    """Whether another host holds the lock of the iteration; one that died counts until this process has asked for LEASE_S."""
    lease = _lease(home, lock_path(home))
    holder = lease.living_holder() if lease is not None else None
    return holder is not None and holder.owner != _owner(home)


def _lease(home: Home, path: Path) -> StoreLease | None:
    return None if home.store is None else StoreLease(home.store, path.stem, owner=_owner(home))


def _owner(home: Home) -> str:
    """Names the home on this host: who holds its file lock knows that no other process of it holds the lease. A copy of the home, or the
    same on another host, is another one."""
    path = home.locks / "owner"
    if not path.exists():
        with FileLock(home.locks / "owner.lock"):
            if not path.exists():
                atomic_write(path, uuid.uuid4().hex.encode())
    return f"{path.read_text()} {path.stat().st_ino} {socket.gethostname()}"


def running_process(home: Home) -> int | None:
    """The process that runs an iteration in a home now, if there is one."""
    return holder_of(driver_path(home)) or holder_of(lock_path(home))
