"""Reviewers at work in a real browser on the real server: two of them settle a run, look at the figures, and design what is recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from annotation.storage.schema import Review
from tests.annotation.web.page_history import a_disputed_run, logged_in
from tests.annotation.web.page_parts import chromium, site


@pytest.mark.slow
def test_two_reviewers_settle_a_run_and_design_what_is_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            history = await a_disputed_run(here, tmp_path)
            rex = await logged_in(browser, here, "rex")
            await rex.goto("/review")
            await expect(rex.locator("#numbers")).to_contain_text("1 waiting · 0 reviewed by me today")
            await rex.get_by_role("button", name="click-button · 0").click()
            await expect(rex.locator("#case")).to_contain_text("Click on two.")
            assert await rex.locator(".replay img").first.evaluate("picture => picture.decode().then(() => picture.naturalWidth)") == 160
            await rex.keyboard.press("r")
            await rex.keyboard.press("w")
            await rex.keyboard.press("x")
            await rex.get_by_role("button", name="Not done").click()
            await expect(rex.locator("#numbers")).to_contain_text("0 waiting · 1 reviewed by me today")
            eve = await logged_in(browser, here, "eve")
            await eve.goto("/review")
            await eve.get_by_role("button", name="click-button · 0").click()
            await expect(eve.locator("#case")).to_contain_text("Rejected by rex")
            await eve.keyboard.press("a")
            await eve.get_by_role("dialog").get_by_role("button", name="Done", exact=False).last.click()
            await expect(eve.locator("#numbers")).to_contain_text("0 waiting")
            first, second = sorted(history.all(Review), key=lambda one: one.created_at_s)
            assert (first.kind, first.approves, first.steps) == ("second", False, {"0": {"is_right": True}, "1": {"is_right": False}})
            assert (second.kind, second.approves) == ("adjudication", True)
            await eve.goto("/quality")
            await expect(eve.locator("#people")).to_contain_text("ann")
            await expect(eve.locator("#agreement")).to_contain_text("verdict")
            await design(eve)
            assert here.said == []

    asyncio.run(main())


async def design(page: Page) -> None:
    await page.goto("/design")
    await page.locator("#new-application").click()
    await page.get_by_role("dialog").get_by_label("Name").fill("Mail")
    await page.keyboard.press("Enter")
    await expect(page.locator("#applications")).to_contain_text("Mail")
    await page.locator("#new-node").click()
    await page.get_by_role("dialog").get_by_label("What it does").fill("Write a letter")
    await page.keyboard.press("Enter")
    await page.get_by_role("treeitem", name="Write a letter").click()
    await page.locator("#new-query").click()
    await page.get_by_role("dialog").get_by_label("What the person is asked to do").fill("Write to Emma")
    await page.get_by_role("dialog").get_by_label("Steps it takes").fill("14")
    await page.keyboard.press("Enter")
    await expect(page.locator("#queries")).to_contain_text("intermediate")
