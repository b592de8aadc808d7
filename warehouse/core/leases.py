"""Exclusive locks between hosts, in the object store that they share. A lock is a row of numbered objects, `locks/<name>/<number>`, each
put only where there is none (`Store.create`): the process that puts the next number has the lock.

The holder puts the next number every HEARTBEAT_S. Another host takes the lock once it has seen no new number for LEASE_S, by its own clock
alone; the holder has given up before, GIVE_UP_S after it began to put its last. No two clocks are compared, only that they run equally
fast. A holder that loses the lock, or hears nothing of the store for so long, is to stop at once: `on_loss`.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.util import Finalize

from pydantic import BaseModel, ConfigDict, ValidationError

from warehouse.core.errors import FlywheelError, StoreUnreachable
from warehouse.core.store import Store

HEARTBEAT_S, GIVE_UP_S, LEASE_S = 20.0, 120.0, 180.0
POLL_S = 1.0
_SEEN: dict[str, tuple[int, float]] = {}
"""The newest number of each lock that was asked for, and when this process first saw it."""
_log = logging.getLogger(__name__)


class Holder(BaseModel):
    """Who put a number. `is_released`: it has let go."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: str
    owner: str
    host: str
    pid: int
    is_released: bool = False

    def __str__(self) -> str:
        return f"{self.pid} on host {self.host}"


def _now() -> float:
    """Seconds, counted on while the machine sleeps where the system has such a clock: other hosts count these too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class StoreLease:
    """One lock. `owner` is known to be gone where its next process asks, e.g. because that one holds a file lock of the same place."""

    def __init__(self, store: Store, name: str, *, owner: str, on_loss: Callable[[str], None] | None = None) -> None:
        self._store, self._folder = store, f"locks/{name}"
        self._mine = Holder(token=uuid.uuid4().hex, owner=owner, host=socket.gethostname(), pid=os.getpid())
        self._on_loss = on_loss or _stop_at_once
        self._number, self._renewed_at = 0, 0.0
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._at_exit: Finalize | None = None

    def acquire(self) -> bool:
        """Take the lock; False where somebody holds it who is alive. Of a holder that may be dead the answer takes LEASE_S. Raises
        StoreUnreachable."""
        number, holder = self._newest()
        if holder is not None and not holder.is_released and holder.owner != self._mine.owner:
            _log.warning("process %s holds %s: seeing for up to %.0f s whether it is alive", holder, self._folder, LEASE_S)
            if not self._is_silent(number):
                return False
        return self._take(number + 1)

    def _is_silent(self, number: int) -> bool:
        seen_at = _now()
        while _now() - seen_at < LEASE_S:
            time.sleep(min(POLL_S, LEASE_S / 10))
            if self._newest()[0] != number:
                return False
        return True

    def _take(self, number: int) -> bool:
        if not self._put(number, self._mine):
            return False
        newest, holder = self._newest()
        if holder is None or newest != number or holder.token != self._mine.token:  # the number was of before: others are further
            self._store.delete([self._name(number)])
            return False
        self._ended.clear()
        self._threads = [threading.Thread(target=each, name="lease", daemon=True) for each in (self._beat, self._watch)]
        for thread in self._threads:
            thread.start()
        self._at_exit = Finalize(None, self.release, exitpriority=0)  # atexit is not asked in a child of multiprocessing
        return True

    def release(self) -> None:
        """Let go; does nothing where the lock is not held."""
        if not self._threads or self._ended.is_set():
            return
        self._ended.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(HEARTBEAT_S)
        if self._at_exit is not None:
            self._at_exit.cancel()
        with suppress(FlywheelError):  # then it expires
            self._put(self._number + 1, self._mine.model_copy(update={"is_released": True}))

    def holder(self) -> Holder | None:
        """Who holds the lock, or held it last without letting go."""
        _, holder = self._newest()
        return None if holder is None or holder.is_released else holder

    def living_holder(self) -> Holder | None:
        """`holder`, until this process has seen no new number for LEASE_S, from call to call."""
        number, holder = self._newest()
        if holder is None or holder.is_released:
            return None
        key, now = f"{self._store.url}/{self._folder}", _now()
        if _SEEN.get(key, (0, 0.0))[0] != number:
            _SEEN[key] = number, now
        return holder if now - _SEEN[key][1] < LEASE_S else None

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            try:
                if not self._put(self._number + 1, self._mine):
                    self._lose("another host has taken it")
            except StoreUnreachable as error:
                _log.warning("the lease %s could not be renewed: %s", self._folder, error)
            except FlywheelError as error:
                self._lose(str(error))

    def _watch(self) -> None:
        """A thread of its own: a request may wait longer than the lease lasts."""
        while not self._ended.wait(min(POLL_S, GIVE_UP_S / 10)):
            if _now() - self._renewed_at > GIVE_UP_S:
                self._lose(f"it could not be renewed for {GIVE_UP_S:.0f} s")

    def _lose(self, why: str) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._on_loss(f"the lock {self._store.url}/{self._folder} is lost: {why}")

    def _put(self, number: int, holder: Holder) -> bool:
        """The number with this holder; then those before it go."""
        begun_at = _now()
        data = f"{holder.model_dump_json()}\n{number}".encode()
        if not self._store.create(self._name(number), data):
            return False
        self._number, self._renewed_at = number, begun_at
        with suppress(FlywheelError):
            self._store.delete([each.name for each in self._store.list(self._folder) if each.name < self._name(number)])
        return True

    def _newest(self) -> tuple[int, Holder | None]:
        """The highest number and who put it; 0 where nobody ever did."""
        names = sorted(each.name for each in self._store.list(self._folder))
        for name in reversed(names):
            data = self._store.read(name)
            if data is None:  # it went meanwhile, after a higher one was put
                return self._newest()
            try:
                return int(name.rsplit("/", 1)[-1]), Holder.model_validate_json(data.splitlines()[0])
            except (ValidationError, ValueError, IndexError):
                _log.warning("%s/%s is not a lease's", self._store.url, name)
        return 0, None

    def _name(self, number: int) -> str:
        return f"{self._folder}/{number:020d}"


def _stop_at_once(why: str) -> None:
    """Nothing may be done any more under a lock that somebody else may have."""
    print(f"{why}. This process ends; what is finished is kept", file=sys.stderr, flush=True)
    os._exit(1)
