"""The annotator's page in a real browser, before a real server, real sandboxes and a policy that reads its prompt."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.annotation.web.page_parts import EVIL, PASSWORD, Site, chromium, deciding, log_in, new_page, site
from tests.annotation.web.page_screen import boxes, screen_point

MOST_MS = 300
"""From the decision to the next picture on the screen."""


async def open_work(browser: Browser, here: Site, name: str = "ann") -> Page:
    page = await new_page(browser, here)
    await log_in(page, name)
    await page.get_by_role("link", name="Annotate the next task").click()
    await deciding(page, 1)
    return page


async def write(page: Page, thought: str | None, action: str | None) -> None:
    """Into the open editor, as somebody types."""
    for field, text in (("#thought-field", thought), ("#action-field", action)):
        if text is not None:
            await page.fill(field, "")
            await page.locator(field).press_sequentially(text)


@pytest.mark.slow
def test_an_annotator_works_through_a_miniwob_task(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            await here.add_campaign("miniwob/enter-text")
            page = await join(browser, here)
            await page.get_by_role("link", name="Annotate the next task").click()
            await deciding(page, 1)
            await accept_edit_and_step_back(page, here)
            await lose_the_line(page, here)
            await finish(page, here)
            assert here.said == []

    asyncio.run(main())


async def join(browser: Browser, here: Site) -> Page:
    secret, _ = await here.accounts.invite("annotator", by=None)
    page = await new_page(browser, here)
    await page.goto(f"/join#{secret}")
    await expect(page.locator("#what")).to_contain_text("invited as annotator")
    assert secret not in page.url
    for field, text in (("#name", "ann"), ("#password", PASSWORD), ("#again", PASSWORD)):
        await page.fill(field, text)
    await page.keyboard.press("Enter")
    await expect(page.locator("#now")).to_contain_text("Nothing is in your hands")
    return page


async def accept_edit_and_step_back(page: Page, here: Site) -> None:
    word = (await page.text_content("#instruction") or "").split('"')[1]
    await expect(page.locator("#cards > li")).to_have_count(3)
    assert await page.locator("#overlay .mark").count() >= 1
    await page.keyboard.press("1")
    await deciding(page, 2)
    await expect(page.locator(".past")).to_have_count(1)
    assert int(await page.evaluate("document.body.dataset.latency_ms")) < 10 * MOST_MS, "benchmarks measure it; here it is only plausible"

    await page.keyboard.press("e")
    await expect(page.locator("#action-field")).to_have_value(f'type "{word}"')
    await write(page, "the field has the focus, so type", f'type "{word}')
    await expect(page.locator("#check")).to_contain_text("✗")
    await page.locator("#action-field").press_sequentially('"')
    await expect(page.locator("#check")).to_contain_text("✓")
    await page.keyboard.press("Control+Enter")
    await deciding(page, 3)
    assert [(step.decision, step.thought) for step in here.steps()][-1] == ("edit", "the field has the focus, so type")

    await page.keyboard.press("[")
    await expect(page.get_by_role("dialog")).to_contain_text("Step 2: this decision is taken back")
    await page.keyboard.press("Enter")
    await deciding(page, 2)
    await expect(page.locator(".past")).to_have_count(1)
    await expect(page.locator("#editor")).to_be_hidden()


async def lose_the_line(page: Page, here: Site) -> None:
    """What is typed and decided without a server is done once, when it answers again."""
    word = (await page.text_content("#instruction") or "").split('"')[1]
    await page.keyboard.press("o")
    await write(page, "before", None)
    await expect(page.locator("#saved")).to_have_text("draft saved")
    await page.context.set_offline(True)
    await expect(page.locator("#offline")).to_be_visible()
    await write(page, "typed without a line", f'type "{word}"')
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#waiting")).to_have_text("decision queued")
    await page.context.set_offline(False)
    await deciding(page, 3)
    await expect(page.locator("#offline")).to_be_hidden()
    last = here.steps()[-1]
    assert (last.decision, last.thought, last.step_index) == ("edit", "typed without a line", 1), "a candidate's action"
    assert len(here.steps()) == 2 and len(here.steps(kept=False)) == 3


async def finish(page: Page, here: Site) -> None:
    """The click on the screen that ends the episode, and the word on the whole."""
    box = await page.locator("#frame").bounding_box()
    assert box is not None
    await page.keyboard.press("/")
    await page.keyboard.type("submit")
    await page.keyboard.press("Enter")
    await expect(page.locator("#meanings button").first).to_be_focused()
    await page.keyboard.press("Control+Enter")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("The verifier says: the task was done")
    await dialog.get_by_label("Note").fill(f"fine {EVIL}")
    await dialog.get_by_role("button", name="Yes, done").click()
    await expect(page.locator("#between")).to_contain_text("Finished")
    (run,) = here.finished()
    assert (run.person_verdict, run.verifier_verdict, run.num_backs) == (True, True, 1)
    assert [step.decision for step in here.steps()] == ["accept", "edit", "accept"], "what was chosen on the screen was proposed"
    await page.keyboard.press("Enter")
    await deciding(page, 1)


@pytest.mark.slow
def test_a_hybrid_task_with_its_terminal_and_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            await here.add_person("ann")
            await here.add_campaign("hybrid/type-word")
            page = await open_work(browser, here)
            word = await read_the_file(page)
            await type_the_word(page, word)
            await finish_hybrid(page, here, word)
            assert here.said == [] and not await page.evaluate("window.evil")

    asyncio.run(main())


async def read_the_file(page: Page) -> str:
    """The word, as the terminal printed it and the files pane shows it."""
    name = next(word for word in (await page.text_content("#instruction") or "").split() if word.endswith(".txt"))
    await expect(page.locator("#panes")).to_be_visible()
    await expect(page.locator("#file-list button")).to_have_count(1)
    await page.keyboard.press("Enter")
    await deciding(page, 2)
    await expect(page.locator("#terminal")).to_contain_text(f'run "cat {name}"')
    printed = await page.locator("#terminal p:not(.prompt)").inner_text()
    await page.get_by_role("tab", name="Files").click()
    await page.locator("#file-list button").click()
    word = printed.split()[0]
    await expect(page.locator("#file-text")).to_have_text(word)
    return word


async def type_the_word(page: Page, word: str) -> None:
    """By clicks on the screen, and by what is typed into the command line."""
    await page.get_by_role("tab", name="Terminal").click()
    await page.locator("#command").fill("wc -l *.txt")
    await page.keyboard.press("Enter")
    await expect(page.locator("#action-field")).to_have_value('run "wc -l *.txt"')
    await page.keyboard.press("Control+Enter")
    await deciding(page, 3)
    await expect(page.locator("#terminal")).to_contain_text("1 ")
    await page.keyboard.press("/")
    await page.keyboard.type("input")
    await page.keyboard.press("Enter")
    await page.locator("#meanings button", has_text="triple_click").click()
    await page.locator("#thought-field").press_sequentially("The field Word is here.")
    await page.keyboard.press("Control+Enter")
    await deciding(page, 4)
    await page.keyboard.press("o")
    await page.locator("#action-field").press_sequentially("ty")
    await expect(page.locator("#completions")).to_be_visible()
    await page.keyboard.press("Tab")
    await page.locator("#action-field").fill(f'type "{word}"')
    await page.keyboard.press("Control+Enter")
    await deciding(page, 5)


async def finish_hybrid(page: Page, here: Site, word: str) -> None:
    send = next(box for box in await boxes(page) if box["name"] == "Send")
    await page.mouse.click(*await screen_point(page, send["x"] + send["width"] // 2, send["y"] + send["height"] // 2))
    await expect(page.locator("#meanings button").first).to_contain_text("click [")
    await expect(page.locator("#meanings button").first).to_be_focused()
    await page.keyboard.press("Control+Enter")
    await deciding(page, 6)
    await page.keyboard.press("f")
    await page.keyboard.press("y")
    await expect(page.locator("#between")).to_contain_text("The verifier says: done")
    run = here.finished()[-1]
    assert run.person_verdict is True and run.verifier_verdict is True
    actions = [step.action["kind"] for step in here.steps() if step.action is not None and step.run_id == run.run_id]
    assert actions == ["tool", "tool", "click", "type", "click"]
