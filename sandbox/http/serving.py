"""What every HTTP server of ours is run with: a socket, uvicorn in the caller's event loop, an end by signal. What it answers, and what an
end means to what is under way, is each server's own; how errors look is problems.py's, and tokens are tokens.py's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import metadata
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp

from sandbox.http.connection import Connection
from sandbox.http.hosts import KnownHosts
from warehouse.core.errors import ConfigError, FlywheelError

T = TypeVar("T")
BACKLOG = 1024
SOCKET_SILENCE_S = 60.0
"""A WebSocket whose other end answers no ping for so long is closed."""
IDLE_CONNECTION_S = 65
"""Longer than clients keep an idle connection (httpx: 5 s, also uvicorn's own): a request never meets a server that just closed."""


def api_version() -> str:
    """What an interface says of its version: the package's; 0 where it is not installed."""
    try:
        return metadata.version("flywheel")
    except metadata.PackageNotFoundError:
        return "0"


class Server(uvicorn.Server):
    """Leaves signals to its caller, who calls `end`, once or more often."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        grace_s: int,
        lifespan: Literal["on", "off"] = "on",
        hosts: Iterable[str] = (),
        on_end: Callable[[], None] = lambda: None,
        on_end_again: Callable[[], None] | None = None,
        socket_bytes: int = 0,
    ) -> None:
        """`grace_s`: requests under way may take so long to end before they are cut off. `hosts`: names that the server answers for
        beside loopback names and IP addresses (hosts.py). `on_end` is called when the server is asked to stop, to end what would keep it
        (streams, requests that wait); `on_end_again` when it is asked once more, instead of cutting off what is under way.
        `socket_bytes`: the largest message of a WebSocket; with 0 there are none, and an upgrade request is answered like any other."""
        config = uvicorn.Config(
            KnownHosts(app, hosts),
            http=Connection,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="websockets-sansio" if socket_bytes else "none",
            ws_max_size=socket_bytes,
            ws_ping_timeout=SOCKET_SILENCE_S,
            timeout_keep_alive=IDLE_CONNECTION_S,
            proxy_headers=False,
            timeout_graceful_shutdown=grace_s,
            lifespan=lifespan,
        )
        super().__init__(config)
        self._on_end, self._on_end_again = on_end, on_end_again

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        if not self.should_exit:
            self.should_exit = True
            self._on_end()
        elif self._on_end_again is not None:
            self._on_end_again()
        else:
            self.force_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ConfigError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. asyncio does it only for sockets made with the protocol's number; without it an answer waits 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"Nothing can listen on {host}:{port} ({error.strerror}): choose another --port, or end what has it.") from error
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def without_secrets(url: str) -> str:
    """An address as errors and logs show it: without user, password, query and fragment."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@asynccontextmanager
async def running(server: Server, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """A server in this event loop for as long as the block lasts, or until it is asked to stop; gives the task that ends with it."""
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                raise FlywheelError(f"The server on {address_of(listener)} ended before it had started.") from task.exception()
            await asyncio.sleep(0.005)
        yield task
    finally:
        if not task.done():
            server.end()
        await task


@asynccontextmanager
async def on_free_port(server: Server, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """A server in this event loop for as long as the block lasts; gives its address."""
    with bind(host, 0) as listener:
        async with running(server, listener):
            yield address_of(listener)


async def serve_until_signalled(server: Server, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread; a second signal calls `end` again. `ready` is called when requests are taken."""
    loop = asyncio.get_running_loop()
    async with running(server, listener) as task:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.end)
        try:
            ready()
            await task
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T], error: Exception) -> T:
    """The result, unless the client goes away before: then the work is cancelled, and `error` raised, which nobody reads."""
    task = asyncio.ensure_future(work)

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watch = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise error
    finally:
        for other in (watch, task):
            other.cancel()
        await asyncio.gather(watch, task, return_exceptions=True)
