"""Running a gateway: a socket, the log, the upstream, and an end that lets calls finish."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agent.gateway.intake import Intake
from agent.gateway.log import GatewayLog
from models.gateway.app import create_app
from models.gateway.recorder import Owner, Recorder
from models.gateway.settings import GatewaySettings
from models.gateway.upstream import Upstream
from models.gateway.upstreams import Upstreams
from models.server.metrics import Metrics
from sandbox.http.serving import Server, on_free_port, serve_until_signalled

LAST_REPLIES_S = 5
"""After the grace, clients have so long to read the answers of calls that were given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a policy server is reached; `replicas`: further ones with the same weights and token. `policy_id` and `model`: whose weights it
    was made to load, and by what name it answers with them; None: what it lists first."""

    url: str
    replicas: tuple[str, ...] = ()
    token: str | None = None
    policy_id: str | None = None
    model: str | None = None


@asynccontextmanager
async def _server(
    log: GatewayLog,
    live: Address,
    candidate: Address | None,
    tokens: Mapping[str, str],
    settings: GatewaySettings,
    owner: Owner | None = None,
) -> AsyncIterator[tuple[Server, Recorder]]:
    upstreams = [_upstreams(one, settings) for one in (live, candidate) if one is not None]
    try:
        for upstream in upstreams:
            await upstream.open()
        recorder = Recorder(log, upstreams[0], upstreams[1] if len(upstreams) > 1 else None, settings, owner)

        def begin_end() -> None:
            recorder.is_closing = True

        app = create_app(recorder, tokens, Metrics(), Intake(log.home))
        try:
            server = Server(
                app, grace_s=int(settings.grace_s) + LAST_REPLIES_S, lifespan="off", hosts=settings.allowed_hosts, on_end=begin_end
            )
            yield server, recorder
        finally:
            await recorder.settle()
    finally:
        await asyncio.gather(*(upstream.close() for upstream in upstreams))


def _upstreams(address: Address, settings: GatewaySettings) -> Upstreams:
    wanted: dict[str, Any] = {"timeout_s": settings.timeout_s, "policy_id": address.policy_id, "model": address.model}
    return Upstreams([Upstream(url, address.token, **wanted) for url in (address.url, *address.replicas)])


async def serve(
    log: GatewayLog,
    live: Address,
    candidate: Address | None,
    tokens: Mapping[str, str],
    settings: GatewaySettings,
    listener: socket.socket,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread. The caller that opened the log closes it."""
    async with _server(log, live, candidate, tokens, settings) as (server, _):
        await serve_until_signalled(server, listener, ready)


@asynccontextmanager
async def serving(
    log: GatewayLog, live: Address, tokens: Mapping[str, str], settings: GatewaySettings | None = None, *, candidate: Address | None = None
) -> AsyncIterator[str]:
    """A gateway in this event loop, on a free port, for as long as the block lasts; gives its address."""
    opened = _server(log, live, candidate, tokens, settings or GatewaySettings())
    async with opened as (server, _), on_free_port(server) as address:
        yield address


@asynccontextmanager
async def serving_recorder(
    log: GatewayLog, live: Address, tokens: Mapping[str, str], settings: GatewaySettings, owner: Owner
) -> AsyncIterator[tuple[str, Recorder]]:
    """The same for an owner of its episodes: callers neither list nor end them."""
    async with _server(log, live, None, tokens, settings, owner) as (server, recorder), on_free_port(server) as address:
        yield address, recorder
