"""What tests look at to count processes: members of groups and sessions, and waiting for a condition. Linux only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def group_members(pgid: int) -> list[int]:
    """Live processes of a group; zombies do not count."""
    return _members(2, pgid)


def session_members(sid: int) -> list[int]:
    """Live processes of a session (of what `setsid` began): all that a process started and that did not begin one of its own."""
    return _members(3, sid)


def _members(field: int, number: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[field]) == number and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_so()


async def soon(is_so: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for a condition without blocking the event loop; an AssertionError where it does not come."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        await asyncio.sleep(0.02)
