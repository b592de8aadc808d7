"""Gateways for tests: real ones, in front of a real policy server, in a thread of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from agent.gateway.log import GatewayLog, read_calls
from agent.gateway.records import Call
from models.gateway.serve import Address, serving
from models.gateway.settings import GatewaySettings
from sandbox.loop_thread import LoopThread
from warehouse.core.home import Home

PROJECTS = {"alpha": "alpha-0123456789-token", "beta": "beta-0123456789-token"}


@dataclass
class Gateway:
    url: str
    home: Home

    def client(self, project: str = "alpha", *, name: str | None = None, **headers: str) -> httpx.Client:
        named = {} if name is None else {"x-flywheel-episode": name}
        authorised = {"authorization": f"Bearer {PROJECTS[project]}"} | named | headers
        return httpx.Client(base_url=self.url, headers=authorised, timeout=60.0, verify=False, trust_env=False)

    def calls(self) -> list[Call]:
        return list(read_calls(self.home))


@contextmanager
def gateway(home: Path, live: Address, settings: GatewaySettings | None = None, *, candidate: Address | None = None) -> Iterator[Gateway]:
    """A gateway for as long as the block lasts; the next on the same home goes on where it ended."""
    place = Home(home)
    loop, stack = LoopThread("gateway"), AsyncExitStack()
    log = GatewayLog(place)
    try:

        async def start() -> str:
            return await stack.enter_async_context(serving(log, live, PROJECTS, settings, candidate=candidate))

        yield Gateway(loop.run(start()), place)
    finally:
        loop.run(stack.aclose())
        loop.close()
        log.close()


def asked(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), "max_tokens": 8, "seed": 1} | fields


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}
