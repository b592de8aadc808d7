"""Running a sandbox server: the pool behind a socket, and an end that releases everything. What it answers is app.py's business."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from sandbox.http.serving import Server, address_of, bind, running, serve_until_signalled
from sandbox.http.tokens import Tokens
from sandbox.pool.pool_protocol import Pool
from sandbox.server.app import create_app
from sandbox.server.leases import Leases
from sandbox.server.settings import ServerSettings

GRACE_S = 10
"""Requests under way may take so long to end once the server is told to."""


class _Server(Server):
    """Tells viewers and waiting requests to go when it ends: it would wait for them otherwise."""

    def __init__(self, app: ASGIApp, leases: Leases) -> None:
        super().__init__(app, grace_s=GRACE_S, lifespan="on", hosts=leases.settings.allowed_hosts)
        self._leases = leases

    def end(self) -> None:
        """A second time: do not wait for requests under way."""
        self.force_exit = self.should_exit
        super().end()
        self._leases.begin_close()


async def serve(
    pool: Pool, tokens: Tokens, settings: ServerSettings, listener: socket.socket, ready: Callable[[], None] = lambda: None
) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread. The pool has been entered; whoever did that leaves it."""
    await serve_until_signalled(_Server(*create_app(pool, tokens, settings)), listener, ready)


@asynccontextmanager
async def serving(pool: Pool, tokens: Tokens, settings: ServerSettings | None = None, *, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """A server in this event loop, on a free port, for as long as the block lasts; gives its address."""
    with bind(host, 0) as listener:
        async with running(_Server(*create_app(pool, tokens, settings)), listener):
            yield address_of(listener)
