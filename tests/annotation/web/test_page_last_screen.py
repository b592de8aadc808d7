"""What a run's last step led to: shown behind the steps, to whoever says whether the task was done; it takes no opinion, as a step does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from annotation.storage.schema import Review
from tests.annotation.web.page_history import a_disputed_run, logged_in
from tests.annotation.web.page_parts import chromium, site


@pytest.mark.slow
def test_a_reviewer_sees_what_the_last_step_led_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            history = await a_disputed_run(here, tmp_path)
            page = await logged_in(browser, here, "rex")
            await page.goto("/review")
            await page.get_by_role("button", name="click-button · 0").click()
            steps = page.get_by_role("group", name="Steps, ann: done").get_by_role("button")
            await expect(steps).to_have_text(["1", "2", "End"])
            await page.keyboard.press("r")
            await page.keyboard.press("r")
            await at_the_end(page)
            await page.keyboard.press("w")
            await page.keyboard.press("t")
            await expect(steps).to_have_text(["1 ✓", "2 ✓", "End"])
            await page.keyboard.press("ArrowLeft")
            await expect(page.locator(".opinion")).to_contain_text("Step 2 of 2")
            assert await page.locator(".opinion input:disabled").count() == 0
            await page.keyboard.press("a")
            await page.get_by_role("dialog").get_by_role("button", name="Done", exact=False).last.click()
            await expect(page.locator("#numbers")).to_contain_text("0 waiting")
            (review,) = history.all(Review)
            assert review.steps == {"0": {"is_right": True}, "1": {"is_right": True}}
            assert here.said == []

    asyncio.run(main())


async def at_the_end(page: Page) -> None:
    """The picture, in the page and enlarged, without a mark; and nothing to say of it."""
    await expect(page.locator(".said")).to_have_text("After the last step")
    await expect(page.get_by_role("img", name="Screen after the last step")).to_be_visible()
    assert await page.locator(".shot img").evaluate("picture => picture.decode().then(() => picture.naturalWidth)") == 160
    assert await page.locator(".shot svg .mark").count() == 0
    await expect(page.locator(".opinion")).to_contain_text("After the last step")
    assert await page.locator(".opinion input:enabled").count() == 0
    await page.keyboard.press("z")
    await expect(page.get_by_role("dialog")).to_contain_text("ann: done · after the last step")
    await page.keyboard.press("Escape")
