"""Running an annotation server: the application behind a socket. What it is made of is the caller's (pipelines/annotate_command.py)."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from sandbox.http_serving import Server, address_of, bind, running, serve_until_signalled

GRACE_S = 5
"""Requests under way may take so long to end once the server is told to; streams are cut off then, and come back to the next server."""


class _Server(Server):
    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app, grace_s=GRACE_S, lifespan="on")

    def end(self) -> None:
        """A second time: do not wait for requests under way."""
        self.force_exit = self.should_exit
        super().end()


async def serve(app: ASGIApp, listener: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread."""
    await serve_until_signalled(_Server(app), listener, ready)


@asynccontextmanager
async def serving(app: ASGIApp, *, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """A server in this event loop, on a free port, for as long as the block lasts; gives its address."""
    with bind(host, 0) as listener:
        async with running(_Server(app), listener):
            yield address_of(listener)
