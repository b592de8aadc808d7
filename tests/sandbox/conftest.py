"""Pages of our own under the sessions: every kind of control on one page, and pages that misbehave. Pools that live for a whole module."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sandbox.actions import Action
from sandbox.client import SandboxClient
from sandbox.page_task import PageMoment, PageSettings, PageState
from sandbox.pool import SessionPool
from sandbox.server.serve import serving
from sandbox.server.settings import ServerSettings
from sandbox.server.tokens import Tokens
from sandbox.session import Verdict
from sandbox.task import Task

PAGES = Path(__file__).with_name("pages")
T = TypeVar("T")


class HtmlSource:
    """A source whose tasks are the HTML files of a folder."""

    ready_script = "typeof start === 'function'"
    state_script = "state()"
    environment = "test pages"

    def __init__(self, root: Path = PAGES) -> None:
        self.root = root

    def settings(self, task: Task) -> PageSettings:
        return PageSettings(viewport_px=(320, 320), area_px=(240, 300), step_time_ms=50.0, frame_time_ms=1000 / 60)

    def url(self, task: Task) -> str:
        return (self.root / f"{task.name}.html").as_uri()

    def start_script(self, task: Task, seed: int) -> str:
        return f"start({seed})"

    def needs_fresh_page(self, task: Task) -> bool:
        return False

    def verdict(self, state: PageState) -> Verdict:
        return Verdict(origin="verifier", score=state.reward if state.done else 0.0, threshold=1.0)

    async def hint(self, moment: PageMoment) -> Action | None:
        return None


class LivePool:
    """A pool in an event loop of its own: `run(use)` gives what `await use(pool)` gives."""

    def __init__(self, runner: asyncio.Runner, pool: SessionPool) -> None:
        self._runner, self.pool = runner, pool

    def run(self, use: Callable[[SessionPool], Coroutine[Any, Any, T]]) -> T:
        return self._runner.run(use(self.pool))


TOKENS = {"ann": "token-of-ann-0123456789", "bob": "token-of-bob-0123456789"}


@asynccontextmanager
async def _remote(pool: Any, **settings: Any) -> AsyncIterator[SandboxClient]:
    """A client of a server of its own over a pool that has been entered."""
    async with serving(pool, Tokens(TOKENS), ServerSettings(oracles=True, **settings)) as url, SandboxClient(url, TOKENS["ann"]) as client:
        yield client


@contextmanager
def _live_pool(pool: SessionPool, *, remote: bool = False) -> Iterator[LivePool]:
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
    """`with live_pool(SessionPool(…)) as live: live.run(use)`; with `remote`, `use` gets a client of a server over the pool."""
    return _live_pool


@pytest.fixture(scope="session")
def html_source() -> Callable[..., HtmlSource]:
    """A source over the pages beside this file, or over another folder."""
    return HtmlSource
