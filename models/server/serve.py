"""Running a policy server: a socket, the engine, uvicorn, and an end that lets answers finish. What it answers is app.py's business."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from models.server.app import create_app
from models.server.backend import ServedEngine
from models.server.service import Service
from models.server.settings import ServerSettings
from warehouse.errors import ConfigError, ModelError

BACKLOG = 1024
TOLD_S = 5
"""After answers were given up, their clients have so long to read that."""


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        """Answers under way may finish, for as long as the settings say; a second time, they are given up at once."""
        if self.should_exit:
            self._service.give_up()
            return
        self.should_exit = True
        self._service.begin_close()
        asyncio.get_running_loop().call_later(self._service.settings.grace_s, self._service.give_up)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ConfigError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"nothing can listen on {host}:{port} ({error.strerror}): choose another --port, or end what has it") from error
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    engine: ServedEngine, token: str, settings: ServerSettings, listener: socket.socket, ready: Callable[[], None] = lambda: None
) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread. Whoever opened the engine closes it."""
    loop = asyncio.get_running_loop()
    async with _running(engine, token, settings, listener) as (server, task):
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.end)
        try:
            ready()
            await task
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


@asynccontextmanager
async def serving(
    engine: ServedEngine, token: str, settings: ServerSettings | None = None, *, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """A server in this event loop, on a free port, for as long as the block lasts; gives its address, and what tells it to end."""
    with bind(host, 0) as listener:
        async with _running(engine, token, settings or ServerSettings(), listener) as (server, _):
            yield address_of(listener), server.end


@asynccontextmanager
async def _running(
    engine: ServedEngine, token: str, settings: ServerSettings, listener: socket.socket
) -> AsyncIterator[tuple[_Server, asyncio.Task[None]]]:
    app, service = create_app(engine, token, settings)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",  # an upgrade request is then answered like any other
        proxy_headers=False,
        timeout_graceful_shutdown=int(settings.grace_s) + TOLD_S,
        lifespan="off",
    )
    server = _Server(config, service)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                raise ModelError("the policy server did not start") from task.exception()
            await asyncio.sleep(0.005)
        yield server, task
    finally:
        if not task.done():
            server.end()
        await task
