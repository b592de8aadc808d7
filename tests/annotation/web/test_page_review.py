"""From an annotator's verdict to a reviewer's word, in two browsers before one server; then the figures of it, and the design of tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from sqlalchemy import select

from annotation.storage.schema import Review, TaskQuery
from tests.annotation.web.page_parts import Site, chromium, deciding, log_in, new_page, site


@pytest.mark.slow
def test_a_reviewer_settles_a_disagreement_and_designs_tasks(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            await here.add_person("ann")
            await here.add_person("rob", "reviewer")
            await here.add_campaign("miniwob/enter-text")
            annotator, reviewer = await new_page(browser, here), await new_page(browser, here)
            await log_in(annotator, "ann")
            await annotate(annotator)
            await log_in(reviewer, "rob")
            await review(reviewer, here)
            await look_at_quality(reviewer)
            await design(reviewer, here)
            assert here.said == []

    asyncio.run(main())


async def annotate(page: Page) -> None:
    """Three right steps, and a verdict that is not the verifier's."""
    await page.goto("/work")
    for step in (1, 2, 3):
        await deciding(page, step)
        await page.keyboard.press("1")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("The verifier says: the task was done")
    await page.keyboard.press("m")
    await page.keyboard.type("I saw no answer")
    await dialog.get_by_role("button", name="No, not done").click()
    await expect(page.locator("#between h1")).to_have_text("Finished")
    await expect(page.locator("#between")).to_contain_text("You see it otherwise: a reviewer looks at the run.")


async def review(page: Page, here: Site) -> None:
    await page.goto("/review")
    await expect(page.locator("#queue")).to_contain_text("verifier disagrees")
    await page.locator("#queue .opens").click()
    await expect(page.locator("#case")).to_contain_text("Annotator's note: I saw no answer")
    await expect(page.locator(".shot img").first).to_be_visible()
    assert await page.locator(".shot img").first.evaluate("image => image.decode().then(() => image.naturalWidth)") == 160
    for _ in range(3):
        await page.keyboard.press("r")
    await expect(page.locator(".steps .right")).to_have_count(3)
    await page.keyboard.press("t")
    await page.keyboard.press("a")
    await page.get_by_role("dialog").get_by_label("Note").fill("it was done")
    await page.get_by_role("dialog").get_by_role("button", name="Done", exact=False).last.click()
    await expect(page.locator("#queue")).to_contain_text("Nothing waits for a review.")
    with here.database.read() as session:
        (said,) = session.scalars(select(Review)).all()
    assert said.approves and said.verdict is True and said.note == "it was done"
    assert [said.steps[str(index)]["is_right"] for index in range(3)] == [True, True, True]


async def look_at_quality(page: Page) -> None:
    await page.goto("/quality")
    await expect(page.locator("#people tbody tr")).to_have_count(1)
    await expect(page.locator("#people tbody tr")).to_contain_text("ann")
    await expect(page.locator("#policies tbody tr")).to_contain_text("100 %")
    await expect(page.locator("#throughput .chart")).to_be_visible()


async def design(page: Page, here: Site) -> None:
    await page.goto("/design")
    await page.get_by_role("button", name="New application").click()
    await page.get_by_label("Name").fill("Calc")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#graph-title")).to_have_text("Task graph of Calc")
    await page.get_by_role("button", name="New function").click()
    await page.get_by_label("What it does").fill("Sum a column")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#queries-title")).to_have_text("Queries: Sum a column")
    await page.get_by_role("button", name="New query").click()
    await page.get_by_label("What the person is asked to do").fill("Add up the totals of March.")
    await page.get_by_label("Steps it takes").fill("30")
    await page.get_by_label("Works across pages").check()
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".query")).to_contain_text("advanced")
    await page.get_by_role("button", name="Retire").click()
    await expect(page.locator(".query")).to_contain_text("retired")
    with here.database.read() as session:
        (query,) = session.scalars(select(TaskQuery)).all()
    assert query.num_steps == 30 and query.crosses_pages and query.retired_at_s is not None
