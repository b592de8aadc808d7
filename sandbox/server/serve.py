"""Running a sandbox server: a socket, the pool, uvicorn, and an end that releases everything. What it answers is app.py's business."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from sandbox.pool_protocol import Pool
from sandbox.server.app import create_app
from sandbox.server.leases import Leases
from sandbox.server.settings import ServerSettings
from sandbox.server.tokens import Tokens
from warehouse.errors import ConfigError, SandboxError

BACKLOG = 1024
GRACE_S = 10
"""Requests under way may take so long to end once the server is told to."""


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it, and tells viewers and waiting requests to go when it ends: it would wait for them otherwise."""

    def __init__(self, config: uvicorn.Config, leases: Leases) -> None:
        super().__init__(config)
        self._leases = leases

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        """A second time: do not wait for requests under way."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._leases.begin_close()


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
        raise ConfigError(f"Nothing can listen on {host}:{port} ({error.strerror}): choose another --port, or end what has it.") from error
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    pool: Pool, tokens: Tokens, settings: ServerSettings, listener: socket.socket, ready: Callable[[], None] = lambda: None
) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread. The pool has been entered; whoever did that leaves it."""
    loop = asyncio.get_running_loop()
    async with _running(pool, tokens, settings, listener) as (server, task):
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.end)
        try:
            ready()
            await task
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


@asynccontextmanager
async def serving(pool: Pool, tokens: Tokens, settings: ServerSettings | None = None, *, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """A server in this event loop, on a free port, for as long as the block lasts; gives its address."""
    with bind(host, 0) as listener:
        async with _running(pool, tokens, settings or ServerSettings(), listener):
            yield address_of(listener)


@asynccontextmanager
async def _running(
    pool: Pool, tokens: Tokens, settings: ServerSettings, listener: socket.socket
) -> AsyncIterator[tuple[_Server, asyncio.Task[None]]]:
    server = _make(pool, tokens, settings)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                raise SandboxError("The sandbox server did not start.") from task.exception()
            await asyncio.sleep(0.005)
        yield server, task
    finally:
        if not task.done():
            server.end()
        await task


def _make(pool: Pool, tokens: Tokens, settings: ServerSettings) -> _Server:
    app, leases = create_app(pool, tokens, settings)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",  # an upgrade request is then answered like any other
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
        lifespan="on",
    )
    return _Server(config, leases)
