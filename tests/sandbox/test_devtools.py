"""A leased page that a program beside us drives by its browser's DevTools address, and looks at what it did."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page, async_playwright

from sandbox.browser.cdp.devtools import DrivenPage
from sandbox.browser.page_session import Limits, PageSession
from sandbox.pool.pool import SessionPool
from sandbox.session import Session
from sandbox.tasks.sources import tasks_of
from sandbox.tasks.task import Split, Task
from warehouse.core.errors import BrowserCrashed

pytestmark = pytest.mark.slow
Does = Callable[[Page, str], Awaitable[None]]


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


def test_a_script_of_the_program_is_paid() -> None:
    """A weakness that docs/verifiers.md names: the page keeps its reward where scripts reach it."""

    async def play() -> None:
        async with driven(task_named("click-button")) as (session, page):
            await page.evaluate("core.endEpisode(1)")
            led = await session.look()
            assert (led.terminated, led.reward) == (True, 1.0) and (await session.evaluate()).success

    asyncio.run(play())


async def opens_a_page(page: Page, url: str) -> None:
    await page.context.new_page()


async def creates_a_target(page: Page, url: str) -> None:
    devtools = await page.context.new_cdp_session(page)
    await devtools.send("Target.createTarget", {"url": url})


async def creates_a_context(page: Page, url: str) -> None:
    assert page.context.browser is not None
    other = await (await page.context.browser.new_context()).new_page()
    await other.goto(url)


@pytest.mark.parametrize("opens", [opens_a_page, creates_a_target, creates_a_context])
def test_a_page_that_the_program_opens_beside_ours_loads_nothing_and_is_closed(opens: Does) -> None:
    async def play() -> None:
        async with driven(task_named("click-button")) as (session, page):
            loaded: list[str] = []
            page.context.on("response", lambda response: loaded.append(response.url))
            with suppress(PlaywrightError):
                await asyncio.wait_for(opens(page, "file:///etc/passwd"), 5)
            await asyncio.sleep(0.5)
            assert "file:///etc/passwd" not in loaded
            assert page.context.browser is not None
            assert [other for context in page.context.browser.contexts for other in context.pages] == [page]
            assert not (await session.look()).terminated

    asyncio.run(play())


async def closes_the_page(page: Page, _: str = "") -> None:
    await page.close()


async def closes_the_browser(page: Page, _: str = "") -> None:
    assert page.context.browser is not None
    devtools = await page.context.browser.new_browser_cdp_session()
    await devtools.send("Browser.close")


async def crashes_the_page(page: Page, _: str = "") -> None:
    devtools = await page.context.new_cdp_session(page)
    await asyncio.wait_for(devtools.send("Page.crash"), 1)


async def hangs_the_page(page: Page, _: str = "") -> None:
    await asyncio.wait_for(page.evaluate("while (true);"), 1)


@pytest.mark.parametrize("ends", [closes_the_page, closes_the_browser, crashes_the_page, hangs_the_page])
def test_a_program_that_makes_its_page_unusable_has_failed(ends: Does) -> None:
    async def play() -> None:
        async with driven(task_named("click-button")) as (session, page):
            session._limits = Limits(step_s=2)
            with suppress(PlaywrightError, TimeoutError):
                await ends(page, "")
            led = await session.look()
            assert (led.terminated, led.reward) == (True, 0.0) and led.observation.elements
            verdict = await session.evaluate()
            assert verdict.score == 0.0 and "cannot be used any more" in verdict.reasons[0]
            assert (await session.look()).terminated

    asyncio.run(play())


def test_a_browser_that_is_killed_is_no_failure_of_the_program() -> None:
    async def play() -> None:
        async with driven(task_named("click-button")) as (session, _):
            assert isinstance(session._page, DrivenPage)
            os.kill(session._page.browser.process.pid, signal.SIGKILL)
            with pytest.raises(BrowserCrashed):
                await session.look()

    asyncio.run(play())


def test_sessions_of_other_kinds_have_no_such_address() -> None:
    async def play() -> None:
        task = task_named("click-button")
        async with SessionPool(size=1) as pool, pool.lease(task) as session:
            opened: Session = session
            await opened.reset(task, 0)
            assert isinstance(opened, PageSession) and await opened.devtools() is None

    asyncio.run(play())
