"""The pages beside the annotator's: accounts and campaigns before the real server; review, quality, recordings and task design with samples
in its form (page_samples.py)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from annotation.storage.logins import TOKEN_PREFIX
from annotation.wire.design import SaveNode, SaveQuery
from annotation.wire.review import SubmitReview
from tests.annotation.web.page_access import unnamed
from tests.annotation.web.page_parts import EVIL, PASSWORD, Site, chromium, log_in, new_page, site
from tests.annotation.web.page_samples import answer_with_samples


def with_admin(folder: Path, work: Callable[[Page, Site, Browser], Awaitable[None]]) -> None:
    async def main() -> None:
        async with site(folder) as here, chromium() as browser:
            await here.add_person("ada", "admin")
            page = await new_page(browser, here)
            await log_in(page, "ada")
            await work(page, here, browser)
            assert not await page.evaluate("window.evil")
            assert here.said == []

    asyncio.run(main())


@pytest.mark.slow
def test_an_admin_invites_makes_a_campaign_and_reads_the_log(tmp_path: Path) -> None:
    async def work(page: Page, here: Site, browser: Browser) -> None:
        link = await invite(page)
        await accept_invitation(browser, here, link)
        await page.reload()
        await expect(page.locator("#people tr")).to_have_count(2)
        await expect(page.locator("#audit")).to_contain_text("invitation.used")
        await page.get_by_role("combobox", name="Role of grace").select_option("reviewer")
        await expect(page.locator("#audit")).to_contain_text("user.role_set")
        await page.locator("#people tr", has_text="grace").get_by_role("button", name="Disable").click()
        await expect(page.locator("#people")).to_contain_text("disabled")
        await make_campaign(page)
        await manage_tokens(page)

    with_admin(tmp_path, work)


async def invite(page: Page) -> str:
    await page.goto("/people")
    await page.get_by_role("button", name="Invite somebody").click()
    assert await unnamed(page) == []
    await page.get_by_role("button", name="Make the link").click()
    link = await page.get_by_role("textbox", name="Link").input_value()
    await page.keyboard.press("Escape")
    assert await unnamed(page) == []
    return link


async def accept_invitation(browser: Browser, here: Site, link: str) -> None:
    page = await new_page(browser, here)
    await page.goto(link)
    assert await unnamed(page) == []
    await page.fill("#name", "grace")
    await page.fill("#password", PASSWORD)
    await page.fill("#again", "something else")
    await page.get_by_role("button", name="Make my account").click()
    await expect(page.locator("#said")).to_have_text("The two passwords differ.")
    await page.fill("#again", PASSWORD)
    await page.get_by_role("button", name="Make my account").click()
    await expect(page.locator("#campaigns")).to_contain_text("No campaign is open to you now.")
    await page.context.close()


async def make_campaign(page: Page) -> None:
    await page.goto("/campaigns")
    await page.get_by_role("button", name="New campaign").click()
    dialog = page.get_by_role("dialog", name="New campaign")
    await dialog.get_by_label("Name").fill(f"Forms {EVIL}")
    await dialog.get_by_label("Tasks").fill("miniwob/no-such-task")
    await dialog.get_by_label("Policy").click()
    await expect(dialog).to_contain_text("is not a task")
    await dialog.get_by_role("button", name="Create").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("is not a task")
    await dialog.get_by_label("Tasks").fill("miniwob/enter-text\nminiwob/click-button")
    await dialog.get_by_label("Policy").click()
    await expect(dialog).to_contain_text("2 tasks; weakest:")
    assert await unnamed(page) == []
    await dialog.get_by_role("button", name="Create").click()
    card = page.get_by_role("article", name="Forms")
    await expect(card).to_contain_text("0 of 100")
    await card.get_by_role("button", name="Pause").click()
    await expect(card).to_contain_text("paused")
    await card.get_by_role("button", name="Edit").click()
    await page.get_by_label("Guidelines").fill("Read the page first.")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert await unnamed(page) == []


async def manage_tokens(page: Page) -> None:
    await page.goto("/")
    await page.get_by_role("button", name="New token for a program").click()
    await page.get_by_label("What it is for").fill("my recorder")
    await page.get_by_label("My password").fill(PASSWORD)
    await page.get_by_role("button", name="Make it").click()
    assert (await page.get_by_role("textbox", name="Token").input_value()).startswith(TOKEN_PREFIX)
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="End the token for my recorder").click()
    await expect(page.locator("#tokens")).to_contain_text("No program works in my name.")
    assert await unnamed(page) == []


@pytest.mark.slow
def test_reviewers_pages_show_and_send_what_the_contract_says(tmp_path: Path) -> None:
    async def work(page: Page, here: Site, browser: Browser) -> None:
        sent: list[tuple[str, dict[str, Any]]] = []
        page.on(
            "request",
            lambda request: sent.append((request.url, json.loads(request.post_data or "{}"))) if request.method != "GET" else None,
        )
        await answer_with_samples(page)
        await review_a_run(page, sent)
        await review_a_recording(page, sent)
        await look_at_quality(page)
        await design_tasks(page, sent)

    with_admin(tmp_path, work)


async def review_a_run(page: Page, sent: list[tuple[str, dict[str, Any]]]) -> None:
    await page.goto("/review")
    await expect(page.locator("#numbers")).to_contain_text("25 waiting")
    await expect(page.locator("#flagged")).to_contain_text("Nothing is flagged")
    assert await unnamed(page) == []
    await page.get_by_role("button", name="book-flight · 42").click()
    await expect(page.locator(".replay")).to_have_count(2)
    await expect(page.locator("#case")).to_contain_text("Rejected by alan")
    assert await unnamed(page) == []
    await page.keyboard.press("r")
    await expect(page.locator(".replay").first).to_contain_text(EVIL[:12])
    await page.keyboard.press("w")
    await page.keyboard.press("t")
    await page.keyboard.press("n")
    await page.keyboard.type("the city was there")
    await page.keyboard.press("Enter")
    await page.keyboard.press("a")
    await page.get_by_role("dialog").get_by_label("Note").fill("nearly")
    await page.get_by_role("button", name="Not done").click()
    await expect(page.locator("#case h1")).to_contain_text("login-user")
    url, body = sent[-1]
    review = SubmitReview.model_validate(body)
    assert (
        url.endswith("/reviews/runs/run-1")
        and review.kind == "adjudication"
        and review.approves
        and review.verdict is False
        and review.note == "nearly"
    )
    assert review.steps[0].is_right is True and review.steps[1].is_right is False
    assert review.steps[1].thought_fits is True and review.steps[1].note == "the city was there" and 2 not in review.steps


async def review_a_recording(page: Page, sent: list[tuple[str, dict[str, Any]]]) -> None:
    await page.goto("/recordings")
    await expect(page.locator("#list tbody tr")).to_have_count(4)
    await page.get_by_label("Show").select_option("approved")
    await expect(page.locator("#list tbody tr")).to_have_count(1)
    await page.get_by_label("Show").select_option("")
    await page.get_by_role("button", name="into the sheet 0").click()
    await expect(page.locator("#case")).to_contain_text("Taken out before the upload: 1 password, 2 e-mail.")
    await expect(page.locator("#case")).to_contain_text("heard: uh i put the name here first <img")
    assert await unnamed(page) == []
    await page.keyboard.press("r")
    await page.keyboard.press("x")
    await page.get_by_label("Reason").fill("nothing is said")
    await page.get_by_role("dialog").get_by_role("button", name="Reject").click()
    await expect(page.locator("#list")).to_be_visible()
    assert SubmitReview.model_validate(sent[-1][1]).approves is False


async def look_at_quality(page: Page) -> None:
    await page.goto("/quality")
    await expect(page.locator("#policies .line")).to_have_count(6)
    await expect(page.locator("#agreement")).to_contain_text("0.81")
    await expect(page.locator("#people")).to_contain_text("grace")
    assert await unnamed(page) == []


async def design_tasks(page: Page, sent: list[tuple[str, dict[str, Any]]]) -> None:
    await page.goto("/design")
    await expect(page.get_by_role("treeitem")).to_have_count(4)
    await expect(page.locator("#queries")).to_contain_text("30 steps · crosses pages · 2 prerequisites · exceptions")
    assert await unnamed(page) == []
    await page.get_by_role("treeitem").first.focus()
    await page.keyboard.press("ArrowLeft")
    await expect(page.get_by_role("treeitem")).to_have_count(2)
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(page.locator("#queries-title")).to_have_text("Queries: Attach a file")
    await page.get_by_role("button", name="New query").click()
    await page.get_by_label("What the person is asked to do").fill("Attach the plan.")
    await page.get_by_label("Works across pages").check()
    assert await unnamed(page) == []
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    query = SaveQuery.model_validate(next(body for url, body in sent if url.endswith("/design/queries")))
    assert query.node_id == "node-2" and query.crosses_pages and not query.handles_exceptions
    await page.get_by_role("button", name="New function").click()
    await page.get_by_label("What it does").fill("Print")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert SaveNode.model_validate(next(body for url, body in sent if url.endswith("/design/nodes"))).title == "Print"
