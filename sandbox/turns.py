"""Turns on an application that somebody else runs: sessions that change it follow one another, over all processes of the machine."""

from __future__ import annotations

import asyncio
import time

from sandbox.cache import cache_folder
from warehouse.core.errors import SandboxBusy
from warehouse.core.identity import bytes_id
from warehouse.core.locks import FileLock

TURN_S = 300.0
"""How long a session waits for its turn."""
POLL_S = 0.1
LOOPBACK = frozenset({"127.0.0.1", "::1", "[::1]"})


async def turn_at(host: str, port: int, *, limit_s: float = TURN_S) -> FileLock:
    """The lock of a host and port; the names of this machine's loopback are one. Raises SandboxBusy."""
    origin = f"{'localhost' if host in LOOPBACK else host.lower()}:{port}"
    lock = FileLock(cache_folder() / "turns" / f"{bytes_id('turn', origin.encode()).replace(':', '-')}.lock")
    until_s = time.monotonic() + limit_s
    while not lock.acquire():
        if time.monotonic() > until_s:
            raise SandboxBusy(
                f"Another session was at {origin} for more than {limit_s:g} s, and sessions on an application that they change take turns. "
                "Run fewer at once (sandbox.num_sessions of the profile), or set `is_shared` where nothing is changed."
            )
        await asyncio.sleep(POLL_S)
    return lock
