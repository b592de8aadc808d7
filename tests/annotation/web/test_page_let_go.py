"""Work that cannot go on, and pages without a line: each says so, and shows the way out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.annotation.service.live_parts import OneSource
from tests.annotation.web.page_parts import EXPECTED, chromium, deciding, log_in, new_page, site
from tests.annotation.web.page_samples import answer_with_samples


@pytest.mark.slow
def test_what_is_held_is_named_and_can_be_let_go_where_it_cannot_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            await here.add_person("ann")
            first, other = await here.add_campaign("miniwob/click-button"), await here.add_campaign("miniwob/enter-text")
            page = await new_page(browser, here)
            await log_in(page, "ann")
            await page.goto(f"/work?campaign={first}")
            await deciding(page, 1)
            await expect(page.locator("#toasts")).to_have_count(0)
            await page.goto(f"/work?campaign={other}")
            await deciding(page, 1)
            await expect(page.locator("#toasts")).to_contain_text("You are still at this task of miniwob/click-button")

            assert here.runs is not None and isinstance(here.runs.policies, OneSource)
            here.runs.policies.gone = frozenset({"newest"})
            await page.reload()
            between = page.locator("#between")
            await expect(between).to_contain_text("no checkpoint newest is registered")
            names = [await one.inner_text() for one in await between.get_by_role("button").all()]
            assert [name.split("\n")[0].removesuffix("Enter").strip() for name in names] == ["Try again", "Skip…", "Flag…", "Give back"]
            await between.get_by_role("button", name="Skip…").click()
            await page.get_by_label("Reason").fill("its policy is gone")
            here.runs.policies.gone = frozenset()
            await page.get_by_role("button", name="Skip", exact=False).last.click()
            await deciding(page, 1)
            await expect(page.locator("#task-name")).not_to_be_empty()
            here.runs.policies.gone = frozenset({"newest"})
            await page.reload()
            await between.get_by_role("button", name="Give back").click()
            await expect(page.locator("#now")).to_contain_text("Nothing is in your hands")
            assert [said for said in here.said if "status of 502" not in said] == []

    asyncio.run(main())


@pytest.mark.slow
def test_a_reviewer_without_a_line_sees_so_and_keeps_what_is_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            await here.add_person("rex", "reviewer")
            page = await new_page(browser, here)
            await log_in(page, "rex")
            await answer_with_samples(page)
            await page.goto("/review")
            await page.locator("#queue button.opens").first.click()
            await expect(page.locator("#case")).to_be_visible()
            await page.route("**/api/v1/reviews", lambda route: route.abort("internetdisconnected"))
            for _ in range(2):
                await page.keyboard.press("Escape")
            await expect(page.locator("#toasts")).to_contain_text("The server cannot be reached.")
            await page.get_by_role("button", name="← Queue").click()
            await expect(page.locator("#case")).to_be_visible()
            await page.unroute("**/api/v1/reviews")
            await page.keyboard.press("Escape")
            await expect(page.locator("#case")).to_be_hidden()
            assert here.said == [], EXPECTED

    asyncio.run(main())
