"""Pages of our own under the sessions: every kind of control on one page, and pages that misbehave. Pools that live for a whole module."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

import pytest

from sandbox.fleet.manager import Fleet
from sandbox.http.tokens import Tokens
from sandbox.pool.pool import SessionPool
from sandbox.server.client import SandboxClient
from sandbox.server.serve import serving
from sandbox.server.settings import ServerSettings
from sandbox.tasks.task import Task
from tests.sandbox.html_pages import HtmlSource

T = TypeVar("T")


class LivePool:
    """A pool in an event loop of its own: `run(use)` gives what `await use(pool)` gives."""

    def __init__(self, runner: asyncio.Runner, pool: SessionPool | Fleet) -> None:
        self._runner, self.pool = runner, pool

    def run(self, use: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        return self._runner.run(use(self.pool))


TOKENS = {"ann": "token-of-ann-0123456789", "bob": "token-of-bob-0123456789"}


@asynccontextmanager
async def _remote(pool: Any, **settings: Any) -> AsyncIterator[SandboxClient]:
    """A client of a server of its own over a pool that has been entered."""
    async with serving(pool, Tokens(TOKENS), ServerSettings(oracles=True, **settings)) as url, SandboxClient(url, TOKENS["ann"]) as client:
        yield client


@contextmanager
def _live_pool(pool: SessionPool | Fleet, *, remote: bool = False) -> Iterator[LivePool]:
    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        lent: Any = runner.run(stack.enter_async_context(pool))
        try:
            if remote:
                lent = runner.run(stack.enter_async_context(_remote(pool)))
            yield LivePool(runner, lent)
        finally:
            runner.run(stack.aclose())


@pytest.fixture(scope="session")
def html_task() -> Callable[..., Task]:
    def make(name: str = "kitchen", max_steps: int = 100) -> Task:
        return Task(source="html", name=name, domain="pointing", max_steps=max_steps)

    return make


@pytest.fixture(scope="session")
def live_pool() -> Callable[[SessionPool], Any]:
    """`with live_pool(SessionPool(…)) as live: live.run(use)`, or a Fleet; with `remote`, `use` gets a client of a server over the pool."""
    return _live_pool


@pytest.fixture(scope="session")
def html_source() -> Callable[..., HtmlSource]:
    """A source over the pages beside this file, or over another folder."""
    return HtmlSource
