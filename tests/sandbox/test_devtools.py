"""A leased page that a program beside us drives by its browser's DevTools address, and looks at what it did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from playwright.async_api import Page, async_playwright

from sandbox.browser.page_session import PageSession
from sandbox.pool.pool import SessionPool
from sandbox.session import Session
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Split, Task

pytestmark = pytest.mark.slow


def task_named(name: str) -> Task:
    return next(task for task in tasks_of("miniwob") if task.name == name)


@asynccontextmanager
async def driven(task: Task) -> AsyncIterator[tuple[PageSession, Page]]:
    """A page that has been reset, as we and as a program sees it."""
    async with SessionPool(kind="devtools", size=1) as pool, pool.lease(task) as session, async_playwright() as playwright:
        assert isinstance(session, PageSession)
        await session.reset(task, task.seeds(Split.TRAIN, 1)[0])
        browser = await playwright.chromium.connect_over_cdp(await address_of(session))
        pages = [page for context in browser.contexts for page in context.pages]
        assert len(pages) == 1
        yield session, pages[0]


async def address_of(session: PageSession) -> str:
    url = await session.devtools()
    assert url is not None
    return url


def test_what_a_program_does_is_seen_judged_and_final() -> None:
    async def play() -> None:
        async with driven(task_named("click-test-2")) as (session, page):
            before = await session.look()
            assert not before.terminated and before.observation.elements
            await page.get_by_text("ONE", exact=True).click()
            led = await session.look()
            assert (led.terminated, led.reward) == (True, 1.0)
            await page.evaluate("WOB_RAW_REWARD_GLOBAL = -1")
            assert (await session.look()).terminated and (await session.evaluate()).success

    asyncio.run(play())


def test_the_program_reaches_the_task_and_nothing_else() -> None:
    async def play() -> None:
        async with driven(task_named("click-button")) as (session, page):
            url = await address_of(session)
            assert url == await address_of(session)
            reached = "fetch({!r}).then(() => 'reached', () => 'refused')"
            assert await page.evaluate(reached.format("http://task.test/miniwob/click-button.html")) == "reached"
            for address in (f"{url}/json", "http://task.test/../../../etc/passwd", "https://example.org/"):
                text = await page.evaluate(f"fetch({address!r}).then(response => response.text(), () => '')")
                assert text in ("", "There is no such page.")
            await page.evaluate("location.href = 'http://example.org/'")
            await asyncio.sleep(0.2)
            assert page.url.startswith("http://task.test/")
        async with httpx.AsyncClient(trust_env=False) as http:
            with pytest.raises(httpx.ConnectError):
                await http.get(f"{url}/json/version")

    asyncio.run(play())


def test_sessions_of_other_kinds_have_no_such_address() -> None:
    async def play() -> None:
        task = task_named("click-button")
        async with SessionPool(size=1) as pool, pool.lease(task) as session:
            opened: Session = session
            await opened.reset(task, 0)
            assert isinstance(opened, PageSession) and await opened.devtools() is None

    asyncio.run(play())
