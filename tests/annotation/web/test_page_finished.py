"""Looking back on finished work in a real browser on the real server: the list of runs, taking one back, the queue of a reviewer with a
recording in it, pictures enlarged, dialogs by the keyboard alone, and what one reads where there is nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect
from sqlalchemy import select

from annotation.service.recordings.recordings import Recordings
from annotation.service.review.review import Reviews
from annotation.storage.logins import Principal
from annotation.storage.parts import PartStore
from annotation.storage.schema import AuditEntry, Recording, Review, Run
from annotation.wire.review import StepOpinion, SubmitReview
from tests.annotation.service.review_parts import Did
from tests.annotation.web.page_access import unnamed
from tests.annotation.web.page_history import a_disputed_run, a_recording, history_of, logged_in, with_pictures
from tests.annotation.web.page_parts import Site, chromium, log_in, new_page, site

pytestmark = pytest.mark.slow


def in_browser(folder: Path, work: Callable[[Site, Browser], Awaitable[None]]) -> None:
    async def main() -> None:
        async with site(folder) as here, chromium() as browser:
            await work(here, browser)
            assert here.said == []

    asyncio.run(main())


def test_an_annotator_looks_back_and_takes_a_run_back(tmp_path: Path) -> None:
    async def work(here: Site, browser: Browser) -> None:
        page = await logged_in(browser, here, "ann", "annotator")
        await here.add_person("bob")
        history = history_of(here)
        slip = history.run("ann", seed=4, steps=(Did(), Did(decision="override", number=2)))
        history.run("ann", seed=5, verifier=False)
        history.run("bob", seed=6)
        with_pictures(here, tmp_path)
        await page.goto("/")
        await page.get_by_role("link", name="2", exact=True).click()
        await expect(page.locator("#numbers")).to_have_text("2 runs")
        assert await page.locator("#list").get_by_text("click-button · 6").count() == 0, "another's"
        await expect(page.locator(".of-others").first).to_be_hidden()
        await page.get_by_label("Show").select_option("waiting")
        await expect(page.locator("#numbers")).to_have_text("1 run")
        assert "status=waiting" in page.url
        await page.get_by_label("Show").select_option("")
        assert await unnamed(page) == []
        await look_at(page, slip)
        await take_back(page, here, slip)

    in_browser(tmp_path, work)


async def look_at(page: Page, run_id: str) -> None:
    """Opened by its link; its steps and pictures by keys; the browser's own way back."""
    await page.get_by_role("link", name="click-button · 4").click()
    await expect(page.locator("#case h1")).to_be_focused()
    await expect(page.locator("#case")).to_contain_text(run_id)
    assert f"run={run_id}" in page.url and await unnamed(page) == []
    await page.keyboard.press("ArrowRight")
    await expect(page.locator(".said")).to_contain_text("↺ overridden")
    await page.keyboard.press("z")
    zoom = page.get_by_role("dialog")
    await expect(zoom).to_contain_text("ann: done · step 2 of 2")
    assert await unnamed(page) == []
    shown = await zoom.locator("img").bounding_box()
    assert shown is not None and shown["width"] >= 2 * 160, "as large as the window allows"
    assert await zoom.locator("img").evaluate("picture => picture.decode().then(() => picture.naturalWidth)") == 160
    await expect(zoom.locator("svg .mark.selected")).to_have_count(1)
    await page.keyboard.press("+")
    larger = await zoom.locator("img").bounding_box()
    assert larger is not None and larger["width"] > shown["width"]
    await page.keyboard.press("0")
    await page.keyboard.press("ArrowLeft")
    await expect(zoom).to_contain_text("step 1 of 2")
    await page.keyboard.press("Escape")
    await expect(zoom).to_have_count(0)
    await expect(page.locator("#case h1")).to_be_visible()
    await expect(page.locator(".said")).to_contain_text("✓ accepted")
    await page.get_by_role("button", name="Enlarge the picture of step 1").press("Enter")
    await page.keyboard.press("z")
    await expect(zoom).to_have_count(0)
    await page.go_back()
    await expect(page.locator("#list")).to_be_visible()
    await page.go_forward()
    await expect(page.locator("#case")).to_contain_text(run_id)


async def take_back(page: Page, here: Site, run_id: str) -> None:
    """Not by Esc, not without a reason, but by Ctrl Enter with one."""
    dialog = page.get_by_role("dialog", name="Withdraw this run of yours?")
    await page.get_by_role("button", name="Withdraw…").click()
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await page.get_by_role("button", name="Withdraw…").click()
    await page.keyboard.press("Control+Enter")
    await expect(dialog).to_be_visible()
    assert await unnamed(page) == []
    await page.keyboard.type("z ? my slip")
    await expect(page.get_by_role("dialog")).to_have_count(1)
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#case .card-head")).to_contain_text("withdrawn")
    reported = page.locator("#case .note", has_text="Withdrawn by ann")
    await expect(reported).to_contain_text(": z ? my slip")
    assert await unnamed(page) == []
    await expect(page.get_by_role("button", name="Withdraw…")).to_have_count(0)
    with here.database.read() as session:
        assert session.get_one(Run, run_id).withdrawn_at_s is not None
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.action == "run.withdrawn"))
        assert entry.subject == run_id and entry.detail["reason"] == "z ? my slip"
    await page.keyboard.press("Escape")
    await expect(page.locator("#list tbody tr", has_text="click-button · 4")).to_contain_text("withdrawn")


def test_who_refused_a_run_or_a_recording_and_why_is_on_its_page(tmp_path: Path) -> None:
    async def work(here: Site, browser: Browser) -> None:
        page = await logged_in(browser, here, "ann", "annotator")
        for name in ("rex", "eve"):
            await here.add_person(name, "reviewer")
        history = history_of(here)
        run_id = history.run("ann", verifier=False, steps=(Did(), Did(decision="override", number=2)))
        with_pictures(here, tmp_path)
        rex, eve = (
            Principal(user_id=history.ids[name], name=name, role="reviewer", kind="browser", digest=name, csrf_token=None)
            for name in ("rex", "eve")
        )
        wrong = {1: StepOpinion(is_right=False, thought_fits=False, note="<b>the other</b> one")}
        first = SubmitReview(approves=False, verdict=False, note="not that one", steps=wrong)
        last = SubmitReview(kind="adjudication", approves=False, verdict=None, note="I agree with rex")
        for said, who in ((first, rex), (last, eve)):
            await Reviews(here.database).submit(run_id, said, by=who)
        await page.goto(f"/runs?run={run_id}")
        notes = page.locator("#case .note.bad")
        await expect(notes).to_have_count(2)
        await expect(notes.first).to_contain_text("Rejected by rex")
        await expect(notes.first).to_contain_text("The task was not done. not that one")
        await expect(notes.last).to_contain_text(". I agree with rex")
        await page.get_by_role("button", name="Step 2, wrong").click()
        await expect(page.locator(".said")).to_contain_text("rex: wrong; the thought does not fit; <b>the other</b> one")
        assert await unnamed(page) == []
        recording_id = await a_recording(here, tmp_path / "made")
        store = Recordings(here.database, PartStore(tmp_path / "nothing"))
        await store.review(recording_id, SubmitReview(approves=False, verdict=None, note="a letter can be read"), by=rex)
        eves = await new_page(browser, here)
        await log_in(eves, "eve")
        await eves.goto(f"/recordings?recording={recording_id}")
        await expect(eves.locator("#case .note.bad")).to_contain_text("Rejected by rex")
        await expect(eves.locator("#case .note.bad")).to_contain_text("a letter can be read")
        assert await unnamed(eves) == []

    in_browser(tmp_path, work)


def test_an_admin_filters_by_person_and_takes_back_from_the_list(tmp_path: Path) -> None:
    async def work(here: Site, browser: Browser) -> None:
        await here.add_person("ann")
        await here.add_person("bob")
        history = history_of(here)
        for seed in range(103):
            history.run("ann", seed=seed)
        other = history.run("bob", seed=200)
        page = await logged_in(browser, here, "ada", "admin")
        await page.get_by_role("link", name="Runs").click()
        await expect(page.locator("#numbers")).to_have_text("104 runs")
        await expect(page.locator("#list tbody tr")).to_have_count(100)
        await page.get_by_role("button", name="Older runs").click()
        await expect(page.locator("#list tbody tr")).to_have_count(104)
        await expect(page.get_by_role("button", name="Older runs")).to_have_count(0)
        await page.get_by_label("Person").select_option("bob")
        await expect(page.locator("#list tbody tr")).to_have_count(1)
        await page.reload()
        await expect(page.get_by_label("Person")).to_have_value("bob")
        await page.get_by_role("button", name="Withdraw click-button 200").click()
        await expect(page.get_by_role("dialog", name="Withdraw this run of bob?")).to_be_visible()
        await page.keyboard.type("asked to")
        await page.get_by_role("dialog").get_by_role("button", name="Withdraw").click()
        await expect(page.locator("#list tbody tr")).to_contain_text("withdrawn")
        with here.database.read() as session:
            assert session.get_one(Run, other).withdrawn_at_s is not None

    in_browser(tmp_path, work)


def test_an_answer_that_was_overtaken_is_not_shown(tmp_path: Path) -> None:
    async def work(here: Site, browser: Browser) -> None:
        page = await logged_in(browser, here, "ann", "annotator")
        history = history_of(here)
        for seed in range(101):
            history.run("ann", seed=seed)
        history.run("ann", seed=200, verifier=False)
        with_pictures(here, tmp_path)
        await page.goto("/runs")
        numbers, rows = page.locator("#numbers"), page.locator("#list tbody tr")
        await expect(numbers).to_have_text("102 runs")
        async with held_up(page, "status=waiting"):
            await page.get_by_label("Show").select_option("waiting")
            await page.get_by_label("Show").select_option("counts")
            await expect(numbers).to_have_text("101 runs")
        await expect(numbers).to_have_text("101 runs")
        await expect(rows).to_have_count(100)
        async with held_up(page, "before="):
            await page.get_by_role("button", name="Older runs").click()
            await page.get_by_label("Show").select_option("waiting")
            await expect(rows).to_have_count(1)
        await expect(rows).to_have_count(1)
        async with held_up(page, "/replay"):
            await page.get_by_role("link", name="click-button · 200").click()
            await page.go_back()
            await expect(rows).to_have_count(1)
        await expect(page.locator("#case")).to_be_hidden()
        await expect(rows).to_have_count(1)

    in_browser(tmp_path, work)


@asynccontextmanager
async def held_up(page: Page, part: str) -> AsyncIterator[None]:
    """What is asked for so is answered when the block ends, and the page has had time to show it."""
    asked_for, goes = re.compile(rf"/api/v1/runs.*{re.escape(part)}"), asyncio.Event()

    async def later(route: Route) -> None:
        await goes.wait()
        await route.continue_()

    await page.route(asked_for, later, times=1)
    async with page.expect_response(asked_for) as answered:
        yield
        goes.set()
    await (await answered.value).finished()
    await page.wait_for_timeout(200)


def test_recordings_wait_on_the_review_page_and_dialogs_are_by_keys(tmp_path: Path) -> None:
    async def work(here: Site, browser: Browser) -> None:
        history = await a_disputed_run(here, tmp_path)
        recording_id = await a_recording(here, tmp_path / "made")
        page = await logged_in(browser, here, "rex")
        await page.goto("/review")
        await expect(page.locator("#numbers")).to_contain_text("2 waiting · 0 reviewed by me today")
        await expect(page.locator("#queue tbody tr")).to_have_count(2)
        await expect(page.locator("#queue tbody tr").nth(1)).to_contain_text("recording")
        await judge_a_run(page, history.all(Run)[0].run_id)
        assert [(one.approves, one.verdict, one.note) for one in history.all(Review)] == [(False, False, "ax ? wrong one")]
        await page.get_by_role("link", name="Write to Emma").click()
        await expect(page.locator("#case")).to_contain_text("← Review")
        assert f"recording={recording_id}" in page.url
        await page.keyboard.press("z")
        await expect(page.get_by_role("dialog")).to_contain_text("step 1 of 4")
        await page.keyboard.press("Escape")
        await page.keyboard.press("a")
        await page.keyboard.type("r well told")
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("#queue")).to_contain_text("Nothing waits for a review.")
        await expect(page.locator("#numbers")).to_contain_text("0 waiting · 2 reviewed by me today")
        (recording,) = history.all(Recording)
        assert recording.state == "approved"

    in_browser(tmp_path, work)


async def judge_a_run(page: Page, run_id: str) -> None:
    """By an address alone, and by keys alone; what is typed into the note is not a shortcut."""
    await page.goto(f"/review?run={run_id}")
    await expect(page.locator("#case")).to_contain_text("Click on two.")
    await page.keyboard.press("x")
    dialog = page.get_by_role("dialog", name="Reject: was the task done?")
    await expect(dialog.get_by_role("button", name="Not done")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(page.locator("#case")).to_be_visible()
    await page.keyboard.press("x")
    await dialog.get_by_label("Note").focus()
    await page.keyboard.type("ax ? wrong one")
    await expect(page.get_by_role("dialog")).to_have_count(1)
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#numbers")).to_contain_text("1 waiting · 1 reviewed by me today")


def test_help_closes_by_the_key_that_opened_it_and_what_is_shown_once_can_be_copied(tmp_path: Path) -> None:
    async def work(here: Site, browser: Browser) -> None:
        await here.add_person("ada", "admin")
        context = await browser.new_context(base_url=here.url, permissions=["clipboard-read", "clipboard-write"])
        page = await new_page(browser, here, context=context)
        await log_in(page, "ada")
        await page.goto("/review")
        await expect(page.locator("#queue")).to_contain_text("Nothing waits")
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_contain_text("In a dialog: send it")
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.goto("/")
        await page.get_by_role("button", name="New token for a program").click()
        await page.get_by_label("What it is for").fill("my recorder")
        await page.get_by_label("My password").fill("three words of mine")
        await page.keyboard.press("Control+Enter")
        await expect(page.get_by_role("dialog", name="The token")).to_be_visible()
        await page.get_by_role("button", name="Copy").click()
        await expect(page.locator("#toasts")).to_contain_text("Copied.")
        assert await page.evaluate("navigator.clipboard.readText()") == await page.get_by_role("textbox", name="Token").input_value()
        await page.keyboard.press("Escape")
        await page.goto("/people")
        await page.get_by_role("button", name="Invite somebody").click()
        await page.keyboard.press("Control+Enter")
        await page.get_by_role("button", name="Copy").click()
        await expect(page.locator("#toasts")).to_contain_text("Copied.")
        assert "/join#" in await page.evaluate("navigator.clipboard.readText()")

    in_browser(tmp_path, work)


def test_what_there_is_not_or_is_not_allowed_is_a_page_with_a_way_back(tmp_path: Path) -> None:
    async def work(here: Site, browser: Browser) -> None:
        page = await new_page(browser, here)
        await here.add_person("ann")
        await page.goto("/nowhere?x=1")
        assert "/login?next=/nowhere" in page.url, "who is not logged in is asked to, whatever there is"
        await page.fill("#name", "ann")
        await page.fill("#password", "three words of mine")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Not found")).to_be_visible()
        assert await unnamed(page) == []
        answer = await page.goto("/people")
        assert answer is not None and answer.status == 403
        await expect(page.locator("main")).to_contain_text("This is for admins; ann is annotator.")
        await page.get_by_role("link", name="Back to my work").click()
        await expect(page.locator("#now")).to_contain_text("Nothing is in your hands.")
        here.said[:] = [line for line in here.said if "status of 40" not in line]

    in_browser(tmp_path, work)
