"""What to record, and what was recorded, in a real browser before a real server: the task design reaches those who record, and reviewers
hear what was said."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect
from sqlalchemy import select

from annotation.recorder.review.upload import Uploader
from annotation.storage.schema import Application, Recording, TaskNode, TaskQuery
from tests.annotation.web.page_access import unnamed
from tests.annotation.web.page_parts import Site, chromium, log_in, new_page, site
from tests.annotation.web.recording_parts import reviewed

TEXT = "Write 'hello' to Emma; then\nsave $HOME"


async def logged_in(browser: Browser, here: Site, name: str, role: str) -> Page:
    await here.add_person(name, role)
    page = await new_page(browser, here)
    await log_in(page, name)
    return page


@pytest.mark.slow
def test_what_is_designed_is_offered_to_those_who_record_and_can_be_removed(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            rex = await logged_in(browser, here, "rex", "reviewer")
            await design(rex)
            with here.database.read() as session:
                query_id = session.scalars(select(TaskQuery.query_id)).one()
            await expect(rex.locator(".query code")).to_have_text(query_id)
            ann = await logged_in(browser, here, "ann", "annotator")
            await read_what_is_wanted(ann, query_id)
            recording_id = await upload(here, tmp_path / "made")
            with here.database.write() as session:
                session.get_one(Recording, recording_id).query_id = query_id
            await remove(rex, here)
            assert [said for said in here.said if "status of 409" not in said] == []

    asyncio.run(main())


async def design(page: Page) -> None:
    await page.goto("/design")
    await page.get_by_role("button", name="New application").click()
    await page.get_by_label("Name").fill("Mail's Calc")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#graph-title")).to_have_text("Task graph of Mail's Calc")
    for title, parent in (("Write", ""), ("Send", "Write")):
        await page.get_by_role("button", name="New function").click()
        await page.get_by_label("What it does").fill(title)
        await page.get_by_label("Part of").select_option(label=parent or "none: a main function")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator("#queries-title")).to_have_text(f"Queries: {title}")
    await page.get_by_role("button", name="New query").click()
    await page.get_by_label("What the person is asked to do").fill(TEXT)
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".query")).to_contain_text("Write 'hello'")


async def read_what_is_wanted(page: Page, query_id: str) -> None:
    """The command, as a shell reads it."""
    await page.goto("/recordings")
    wanted = page.get_by_role("region", name="What to record")
    await expect(wanted.get_by_role("article")).to_contain_text("0 recordings")
    assert await unnamed(page) == []
    command = await wanted.get_by_role("textbox").input_value()
    text = " ".join(TEXT.split())
    assert shlex.split(command) == [
        "flywheel",
        "record",
        "start",
        query_id,
        f"--query={text}",
        "--app=Mail's Calc",
        "--track",
        "expert",
        "--node",
        query_id,
    ]
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await wanted.get_by_role("button", name="Copy the command").click()
    await expect(page.locator("#toasts")).to_contain_text("Copied.")
    assert await page.evaluate("navigator.clipboard.readText()") == command


async def upload(here: Site, folder: Path) -> str:
    """A recording, by the real client; its id."""
    token, _ = await here.accounts.add_program("recorder", "annotator", "a test")
    store, sender = reviewed(folder), Uploader(here.url, token, attempts=1)
    try:
        await asyncio.to_thread(sender.upload, store)
    finally:
        sender.close()
    return store.cover.recording_id


async def remove(page: Page, here: Site) -> None:
    """What something was recorded of stays; all else goes, with what is below it."""
    await page.locator("#remove-node").click()
    await expect(page.get_by_role("dialog")).to_contain_text("1 function goes with it, and 1 query")
    await page.get_by_role("button", name="Remove", exact=True).click()
    await expect(page.locator("#toasts")).to_contain_text("1 recordings were made of its queries")
    await page.get_by_role("button", name="New function").click()
    await page.get_by_label("What it does").fill("Print")
    await page.get_by_label("Part of").select_option(label="none: a main function")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#queries-title")).to_have_text("Queries: Print")
    await page.locator("#remove-node").click()
    await page.keyboard.press("Escape")
    await expect(page.locator("#queries-title")).to_have_text("Queries: Print")
    await page.locator("#remove-node").click()
    await page.get_by_role("button", name="Remove", exact=True).click()
    await expect(page.locator("#graph")).not_to_contain_text("Print")
    await page.get_by_role("button", name="New application").click()
    await page.get_by_label("Name").fill("Paint")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#graph-title")).to_have_text("Task graph of Paint")
    for title, parent in (("Draw", ""), ("Fill", "Draw")):
        await page.get_by_role("button", name="New function").click()
        await page.get_by_label("What it does").fill(title)
        await page.get_by_label("Part of").select_option(label=parent or "none: a main function")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator("#queries-title")).to_have_text(f"Queries: {title}")
    await page.locator("#remove-application").click()
    await expect(page.get_by_role("dialog")).to_contain_text("2 functions go with it, and 0 queries")
    await page.get_by_role("button", name="Remove", exact=True).click()
    await expect(page.locator("#graph-title")).to_have_text("Task graph of Mail's Calc")
    with here.database.read() as session:
        assert session.scalars(select(Application.name)).all() == ["Mail's Calc"]
        assert sorted(session.scalars(select(TaskNode.title))) == ["Send", "Write"]


@pytest.mark.slow
def test_a_reviewer_hears_what_was_said(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            recording_id = await upload(here, tmp_path / "made")
            rex = await logged_in(browser, here, "rex", "reviewer")
            await rex.goto(f"/recordings?recording={recording_id}&from=review")
            player = rex.get_by_role("region", name="Sound").locator("audio")
            await expect(player).to_have_count(1)
            assert await unnamed(rex) == []
            await rex.get_by_role("button", name="▶ Hear this").click()
            await rex.wait_for_function("() => document.querySelector('audio').currentTime > 0")
            assert await player.evaluate("one => one.duration") == 18.0
            source = str(await player.get_attribute("src"))
            part = await rex.request.get(source, headers={"Range": "bytes=0-3"})
            assert (part.status, await part.body(), part.headers["content-type"]) == (206, b"RIFF", "audio/wav")
            assert (await rex.request.get(source.replace("sound-", "screen-"))).status == 404
            stranger = await logged_in(browser, here, "eve", "annotator")
            assert (await stranger.request.get(source)).status == 404, "another person's"
            assert here.said == []

    asyncio.run(main())
