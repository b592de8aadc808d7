"""Running a policy server: the engine behind a socket, and an end that lets answers finish. What it answers is app.py's business."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from models.server.app import create_app
from models.server.backend import ServedEngine
from models.server.service import Service
from models.server.settings import ServerSettings
from sandbox.http.serving import Server, on_free_port, serve_until_signalled

LAST_REPLIES_S = 5
"""After answers were given up, their clients have so long to read that."""


Beside = Callable[[Service], Coroutine[Any, Any, None]]
"""What runs beside a server for as long as it serves, such as following a release (pipelines/policy_server)."""


def _server(engine: ServedEngine, token: str, settings: ServerSettings | None) -> tuple[Server, Service]:
    """At its end answers under way may finish, for as long as the settings say; signalled again, they are given up at once."""
    app, service = create_app(engine, token, settings)
    grace_s, hosts = service.settings.grace_s, service.settings.allowed_hosts

    def begin_end() -> None:
        service.begin_close()
        asyncio.get_running_loop().call_later(grace_s, service.give_up)

    server = Server(app, grace_s=int(grace_s) + LAST_REPLIES_S, lifespan="off", hosts=hosts, on_end=begin_end, on_end_again=service.give_up)
    return server, service


async def serve(
    engine: ServedEngine,
    token: str,
    settings: ServerSettings,
    listener: socket.socket,
    ready: Callable[[], None] = lambda: None,
    *,
    beside: Beside | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread. The caller that opened the engine closes it."""
    server, service = _server(engine, token, settings)
    async with _running_beside(service, beside):
        await serve_until_signalled(server, listener, ready)


@asynccontextmanager
async def serving(
    engine: ServedEngine, token: str, settings: ServerSettings | None = None, *, host: str = "127.0.0.1", beside: Beside | None = None
) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """A server in this event loop, on a free port, for as long as the block lasts; gives its address, and a function that stops it."""
    server, service = _server(engine, token, settings)
    async with _running_beside(service, beside), on_free_port(server, host) as address:
        yield address, server.end


@asynccontextmanager
async def _running_beside(service: Service, beside: Beside | None) -> AsyncIterator[None]:
    task = asyncio.create_task(beside(service)) if beside is not None else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
