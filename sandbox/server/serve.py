"""Running a sandbox server: the pool behind a socket, and an end that releases everything. What it answers is app.py's business."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from sandbox.http.serving import Server, on_free_port, serve_until_signalled
from sandbox.http.tokens import Tokens
from sandbox.pool.pool_protocol import SessionPoolProtocol
from sandbox.server.app import create_app
from sandbox.server.settings import ServerSettings

GRACE_S = 10
"""Requests under way may take so long to end once the server shuts down."""


def _server(session_pool: SessionPoolProtocol, tokens: Tokens, settings: ServerSettings | None) -> Server:
    settings = settings or ServerSettings()
    app, leases = create_app(session_pool, tokens, settings)
    return Server(app, grace_s=GRACE_S, hosts=settings.allowed_hosts, on_end=leases.begin_close, socket_bytes=settings.max_body_mib << 20)


async def serve(
    session_pool: SessionPoolProtocol,
    tokens: Tokens,
    settings: ServerSettings,
    listener: socket.socket,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread. The caller has entered the pool, and leaves it."""
    await serve_until_signalled(_server(session_pool, tokens, settings), listener, ready)


def serving(
    session_pool: SessionPoolProtocol, tokens: Tokens, settings: ServerSettings | None = None, *, host: str = "127.0.0.1"
) -> AbstractAsyncContextManager[str]:
    """A server in this event loop, on a free port, for as long as the block lasts; gives its address."""
    return on_free_port(_server(session_pool, tokens, settings), host)
