"""The policy servers behind a gateway: one, or several with the same weights. An episode stays with one of them for as long as that
answers (models/http/affinity.py); what one server is asked is upstream.py's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from models.gateway.upstream import Unreachable, Upstream
from models.http.affinity import LOST_S, Affinity
from models.server.wire import ChatRequest
from warehouse.core.errors import ConfigError

_LOG = logging.getLogger(__name__)


class Upstreams:
    """Lives in one event loop; `open` it before anything else."""

    def __init__(self, servers: Sequence[Upstream]) -> None:
        self._servers = servers
        self._affinity = Affinity[Upstream]()
        self._lost_s = dict[Upstream, float]()
        """When those that did not answer may be retried."""

    @property
    def policy_id(self) -> str:
        return self._servers[0].policy_id

    @property
    def entry(self) -> Mapping[str, Any]:
        """What the first lists of its model."""
        return self._servers[0].entry

    async def open(self) -> None:
        """Find out what they serve. Raises EngineUnreachable, ModelError, ConfigError where they differ."""
        await asyncio.gather(*(server.open() for server in self._servers))
        first = self._servers[0]
        for server in self._servers[1:]:
            if server.served != first.served:
                kinds, models, policies = zip(first.served, server.served, strict=True)
                raise ConfigError(
                    f"{first.url} and {server.url} do not serve the same: kind {' and '.join(kinds)}, model {' and '.join(models)}, "
                    f"weights {' and '.join(policies)}. Upstreams of one gateway have the same; for other weights there is --candidate"
                )

    def body(self, asked: ChatRequest, conversation: str) -> dict[str, Any]:
        """As Upstream's; the same for all."""
        return self._servers[0].body(asked, conversation)

    async def whole(self, body: Mapping[str, Any], episode: str) -> dict[str, Any]:
        """The answer of the episode's server, or of another where that does not answer. Raises ApiError."""
        tried = set[Upstream]()
        while True:
            server = self._chosen(episode, tried)
            try:
                with server.running():
                    return await server.whole(body)
            except Unreachable as error:
                self._lose(server, error, tried)

    async def chunks(self, body: Mapping[str, Any], episode: str) -> AsyncGenerator[dict[str, Any], None]:
        """The same as a stream; once it has begun, no other server goes on with it."""
        tried, has_begun = set[Upstream](), False
        while True:
            server = self._chosen(episode, tried)
            try:
                with server.running():
                    async with aclosing(server.chunks(body)) as chunks:
                        async for chunk in chunks:
                            has_begun = True
                            yield chunk
                return
            except Unreachable as error:
                if has_begun:
                    raise
                self._lose(server, error, tried)

    def _chosen(self, episode: str, tried: set[Upstream]) -> Upstream:
        now_s = time.monotonic()
        left = [server for server in self._servers if server not in tried]
        return self._affinity.choose(episode, [one for one in left if now_s > self._lost_s.get(one, 0.0)] or left)

    def _lose(self, server: Upstream, error: Unreachable, tried: set[Upstream]) -> None:
        """Leave it alone for a while. Raises the error where there is no other."""
        tried.add(server)
        self._lost_s[server] = time.monotonic() + LOST_S
        if len(tried) == len(self._servers):
            raise error
        _LOG.warning("policy server %s is done without for %g s: %s", server.url, LOST_S, error)

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))
