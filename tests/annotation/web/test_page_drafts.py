"""What is typed while the line is bad, in a real browser: editor, server and browser end with the newest text."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Request, Route, expect
from sqlalchemy import select

from annotation.storage.schema import Draft
from tests.annotation.web.page_parts import WAIT_MS, Site, chromium, deciding, log_in, new_page, site

OLD, TEXT = "abcdefg", "abcdefghij"


def drafts_on_server(here: Site) -> list[str]:
    with here.database.read() as session:
        return list(session.scalars(select(Draft.thought)))


async def in_browser(page: Page) -> list[str]:
    kept: dict[str, str] = await page.evaluate("({ ...localStorage })")
    return [json.loads(value)["thought"] for name, value in kept.items() if name.startswith("flywheel.draft.")]


async def typing(browser: Browser, here: Site) -> Page:
    """A page with an open, empty editor."""
    await here.add_person("ann")
    await here.add_campaign("miniwob/click-button")
    page = await new_page(browser, here)
    await log_in(page, "ann")
    await page.goto("/work")
    await deciding(page, 1)
    await page.keyboard.press("o")
    return page


async def all_are(page: Page, here: Site, text: str) -> None:
    await expect(page.locator("#saved")).to_have_text("draft saved", timeout=WAIT_MS)
    assert await page.input_value("#thought-field") == text
    assert await in_browser(page) == [text]
    assert drafts_on_server(here) == [text]


@pytest.mark.slow
def test_a_line_that_comes_back_never_puts_an_older_text_over_a_newer_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            page = await typing(browser, here)
            sent: list[str] = []
            typed = {1: asyncio.Event(), 2: asyncio.Event()}

            async def bad_line(route: Route) -> None:
                sent.append(route.request.post_data_json["thought"])
                number = len(sent)
                if number == 1:  # slow, so that what is typed meanwhile waits
                    await typed[1].wait()
                    return await route.continue_()
                if number == 2:  # it arrives, and nobody hears of it
                    await typed[2].wait()
                    await route.fetch()
                    return await route.abort()
                await route.continue_()

            await page.route("**/draft", bad_line)
            field = page.locator("#thought-field")
            await field.press_sequentially(OLD)
            await expect(page.locator("#saved")).to_have_text("saving…")
            await field.press_sequentially(TEXT[len(OLD) :])
            typed[1].set()
            typed[2].set()
            await expect(page.locator("#saved")).to_have_text("draft kept in this browser")
            assert sent == ["a", TEXT] and drafts_on_server(here) == [TEXT]
            await all_are(page, here, TEXT)
            assert sent == ["a", TEXT, TEXT], "once more, and the newest"

            # Another page has counted further meanwhile: what is typed here is newer all the same, and nothing older is sent.
            with here.database.write() as session:
                session.scalars(select(Draft)).one().number += 100
            await field.press_sequentially("kl")
            await all_are(page, here, f"{TEXT}kl")

            await page.reload()
            await deciding(page, 1)
            await expect(page.locator("#thought-field")).to_have_value(f"{TEXT}kl")

    asyncio.run(main())


@pytest.mark.slow
def test_what_is_refused_for_a_while_is_kept_and_sent_again_and_what_is_typed_last_outlives_the_page(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            page = await typing(browser, here)
            here_before = [*await in_browser(page)]
            assert here_before == []
            answers = [429, 401]

            async def refused(route: Route) -> None:
                if answers:
                    return await route.fulfill(status=answers.pop(0), json={"title": "Not now"})
                await route.continue_()

            await page.route("**/draft", refused)
            await page.locator("#thought-field").press_sequentially("x")
            await expect(page.locator("#saved")).to_have_text("draft kept in this browser")
            assert drafts_on_server(here) == [] and await in_browser(page) == ["x"]
            await page.locator("#thought-field").press_sequentially("y")
            await expect(page.locator("#saved")).to_have_text("draft kept in this browser")
            await all_are(page, here, "xy")

            # Its last request hangs, and the page is left.
            held: list[Route] = []
            is_first = asyncio.Event()

            async def hang(route: Route) -> None:
                if not held:
                    held.append(route)
                    return is_first.set()
                await route.continue_()

            await page.unroute("**/draft")
            await page.route("**/draft", hang)
            again: list[Request] = []
            page.on("request", lambda request: again.append(request) if request.url.endswith("/draft") else None)
            await page.locator("#thought-field").press_sequentially("z")
            await is_first.wait()
            await page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")
            for _ in range(100):
                if drafts_on_server(here) == ["xyz"]:
                    break
                await asyncio.sleep(0.1)
            assert drafts_on_server(here) == ["xyz"] and len(again) == 2
            await held[0].abort()

    asyncio.run(main())
