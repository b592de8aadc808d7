"""Committing to a table that others write to as well: a conflict is retried, a full disk is named. What is written is the caller's."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deltalake.exceptions import CommitFailedError, DeltaError

from warehouse.core.disk import is_full_disk, storage_full
from warehouse.core.errors import StorageFull, WriteConflict

MAX_ATTEMPTS = 12
"""On one machine, whose writers wait for each other's lock."""
ATTEMPTS_OF_HOSTS = 100
"""In an object store, where of several writers on several hosts each commit beats all others."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.02, 1.0


def retry_commit(what: str, place: Path, write: Callable[[], int], *, attempts: int = MAX_ATTEMPTS) -> int:
    """Run `write` until its commit is not beaten by another writer's; waits a little longer each time.

    Raises WriteConflict after so many attempts, StorageFull when the disk has no room.
    """
    attempt = 1
    while True:
        try:
            with naming_a_full_disk(what, place):
                return write()
        except CommitFailedError as error:
            if attempt == attempts:
                raise WriteConflict(
                    f"{what}: other writers committed first {attempt} times. A partition has one writer: is this stage running twice? In "
                    "an object store another host that commits to the table without a pause has the same effect: have it write more at once"
                ) from error
        time.sleep(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt) * random.uniform(0.5, 1.0))
        attempt += 1


@contextmanager
def naming_a_full_disk(what: str, place: Path) -> Iterator[None]:
    """Whatever says on the way to a commit below `place` that the disk has no room becomes StorageFull."""
    try:
        yield
    except (DeltaError, OSError) as error:
        if isinstance(error, StorageFull) or not is_full_disk(error):
            raise
        raise storage_full(what, place, error, then="run it again; nothing was committed") from error
