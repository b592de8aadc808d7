"""Running a policy server: the engine behind a socket, and an end that lets answers finish. What it answers is app.py's business."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from models.server.app import create_app
from models.server.backend import ServedEngine
from models.server.service import Service
from models.server.settings import ServerSettings
from sandbox.http.serving import Server, address_of, bind, running, serve_until_signalled

TOLD_S = 5
"""After answers were given up, their clients have so long to read that."""


class _Server(Server):
    def __init__(self, app: ASGIApp, service: Service) -> None:
        grace_s, hosts = int(service.settings.grace_s) + TOLD_S, service.settings.allowed_hosts
        super().__init__(app, grace_s=grace_s, lifespan="off", hosts=hosts)
        self._service = service

    def end(self) -> None:
        """Answers under way may finish, for as long as the settings say; a second time, they are given up at once."""
        if self.should_exit:
            self._service.give_up()
            return
        super().end()
        self._service.begin_close()
        asyncio.get_running_loop().call_later(self._service.settings.grace_s, self._service.give_up)


async def serve(
    engine: ServedEngine, token: str, settings: ServerSettings, listener: socket.socket, ready: Callable[[], None] = lambda: None
) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread. Whoever opened the engine closes it."""
    await serve_until_signalled(_Server(*create_app(engine, token, settings)), listener, ready)


@asynccontextmanager
async def serving(
    engine: ServedEngine, token: str, settings: ServerSettings | None = None, *, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """A server in this event loop, on a free port, for as long as the block lasts; gives its address, and a function that stops it."""
    with bind(host, 0) as listener:
        server = _Server(*create_app(engine, token, settings))
        async with running(server, listener):
            yield address_of(listener), server.end
