"""SessionPoolProtocol: the protocol between users and lenders of sessions. SessionPool (pool.py), Fleet (fleet/manager.py), SandboxClient
(server/client.py, of one server) and ServersPool (server/servers_pool.py, of several) satisfy it, so that a collector, a server and an
environment run on any of them.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from sandbox.session import Session
from sandbox.tasks.task import Task


class SessionPoolProtocol(Protocol):
    """Sessions to lend. A session whose browser died is replaced by the time it is lent again."""

    def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AbstractAsyncContextManager[Session]:
        """A session that is the caller's until the block ends, best one that has `task` loaded; without screenshots where none are
        wanted. Raises SandboxError when none can be had."""
        ...

    async def close(self) -> None:
        """End the sessions; may be called twice."""
        ...


@runtime_checkable
class SizedSessionPool(Protocol):
    """A pool that knows how many sessions it can lend at once; a server's client does not, which shares them with others."""

    @property
    def size(self) -> int: ...
