"""Running an annotation server: the application behind a socket. What it is made of is the caller's
(pipelines/cli/annotate/commands.py)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.types import ASGIApp

from sandbox.http.serving import Server, on_free_port, serve_until_signalled

GRACE_S = 5
"""Requests under way may take so long to end once the server shuts down; streams are cut off then, and come back to the next server."""


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    ready: Callable[[], None] = lambda: None,
    *,
    on_end: Callable[[], None] = lambda: None,
    watch: Callable[[], Coroutine[Any, Any, None]] | None = None,
    hosts: Iterable[str] = (),
) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread, for the names `hosts` beside loopback names and IP addresses. `on_end` is called
    when that comes, so that streams know that they end. When `watch` ends the server ends as well, and what it raised is raised."""
    server = Server(app, grace_s=GRACE_S, hosts=hosts, on_end=on_end)
    watching = asyncio.create_task(watch(), name="what an annotation server lives on") if watch is not None else None
    if watching is not None:
        watching.add_done_callback(lambda _: server.end())
    try:
        await serve_until_signalled(server, listener, ready)
    finally:
        if watching is not None and not watching.done():
            watching.cancel()
            await asyncio.wait({watching})
    if watching is not None and not watching.cancelled():
        await watching


def serving(
    app: ASGIApp, *, host: str = "127.0.0.1", on_end: Callable[[], None] = lambda: None, hosts: Iterable[str] = ()
) -> AbstractAsyncContextManager[str]:
    """A server in this event loop, on a free port, for as long as the block lasts; gives its address."""
    return on_free_port(Server(app, grace_s=GRACE_S, hosts=hosts, on_end=on_end), host)
