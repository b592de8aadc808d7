"""What holds for the annotator's page whatever is done in it: model's text stays text, the keyboard is enough, everything has a name, what
was typed outlives a reload, nothing is carried out twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from agent.policy.policy import Prompt, Response
from sandbox.pool.pool import SessionPool
from sandbox.session import Observation, Session
from sandbox.tasks.task import Task
from tests.annotation.service.live_parts import Reader
from tests.annotation.web.page_access import all_names, unnamed
from tests.annotation.web.page_parts import EVIL, PASSWORD, chromium, deciding, log_in, new_page, site


class EvilSession:
    """A session whose page says markup: in its instruction, and as the name of an element."""

    def __init__(self, inner: Session) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def reset(self, task: Task, seed: int) -> Observation:
        return _evil(await self._inner.reset(task, seed))

    async def step(self, action: Any) -> Any:
        transition = await self._inner.step(action)
        return replace(transition, observation=_evil(transition.observation))


def _evil(observation: Observation) -> Observation:
    first, *rest = observation.elements
    return replace(
        observation,
        instruction=f"{observation.instruction} {EVIL}",
        elements=(replace(first, text=EVIL), *rest),
        url=f"http://x/{EVIL}",
        output=EVIL,
    )


class EvilPool:
    def __init__(self, inner: SessionPool) -> None:
        self._inner = inner

    @asynccontextmanager
    async def lease(self, task: Task | None = None, *, screenshots: bool = True) -> AsyncIterator[Session]:
        async with self._inner.lease(task, screenshots=screenshots) as session:
            yield EvilSession(session)

    async def close(self) -> None:
        await self._inner.close()


class EvilPolicy(Reader):
    """Proposes markup: as a thought, as what is typed, and as no action at all."""

    def _response(self, prompt: Prompt, kind: int) -> Response:
        text = (f"Thought {EVIL} Action click [1]", f'Thought type Action type "{EVIL}"', EVIL)[kind]
        return Response(text=text, prompt_token_ids=(1,), token_ids=(2,), logprobs=(-0.5,), policy_id=self.policy_id)


@pytest.mark.slow
def test_markup_of_models_and_pages_stays_text(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            SessionPool(size=1) as pool,
            site(tmp_path, EvilPolicy(f"policy {EVIL}"), pool=EvilPool(pool)) as here,
            chromium() as browser,
        ):
            await here.add_person("ann")
            await here.add_campaign("miniwob/enter-text", name=EVIL)
            page = await new_page(browser, here)
            await log_in(page, "ann")
            await expect(page.locator("#campaigns")).to_contain_text(EVIL)
            await page.goto("/work")
            await deciding(page, 1)
            for place in ("#instruction", "#cards", "#task-name", "#policy", "#address"):
                await expect(page.locator(place)).to_contain_text("<img src=x")
            await page.keyboard.press("g")
            await expect(page.get_by_role("dialog")).to_contain_text(EVIL)
            await page.keyboard.press("Escape")
            await expect(page.get_by_role("dialog")).to_have_count(0)
            await page.keyboard.press("2")
            await deciding(page, 2)
            await expect(page.locator("#history")).to_contain_text("img src=x onerror")
            await expect(page.locator("#terminal")).to_contain_text(EVIL)
            await page.keyboard.press("[")
            await expect(page.get_by_role("dialog")).to_contain_text("img src=x onerror")
            await page.keyboard.press("Escape")
            await page.keyboard.press("/")
            await expect(page.locator("#found")).to_contain_text(EVIL)
            await page.keyboard.press("Escape")
            await expect(page.get_by_role("dialog")).to_have_count(0)
            await page.keyboard.press("Shift+Digit1")
            await expect(page.locator("#thought-field")).to_have_value(EVIL)
            assert not await page.evaluate("Boolean(window.evil) || document.querySelectorAll('[onerror], img[src=x]').length")
            assert here.said == []

    asyncio.run(main())


@pytest.mark.slow
def test_the_keyboard_is_enough_and_everything_has_a_name(tmp_path: Path) -> None:
    """From the login to the verdict without a pointer; at each stop no control is without a name."""

    async def main() -> None:
        async with site(tmp_path, Reader(errs=True)) as here, chromium() as browser:
            await here.add_person("ann")
            await here.add_campaign("miniwob/click-button")
            page = await new_page(browser, here)
            await page.goto("/login")
            assert await unnamed(page) == []
            await page.keyboard.type("ann")
            await page.keyboard.press("Tab")
            await page.keyboard.type(PASSWORD)
            await page.keyboard.press("Enter")
            await page.wait_for_selector("#now-body a")
            assert await unnamed(page) == []
            await tab_to(page, "Annotate the next task")
            await page.keyboard.press("Enter")
            await deciding(page, 1)
            assert await unnamed(page) == []
            await look_around(page)
            await choose_by_name(page)
            await page.keyboard.press("y")
            await expect(page.locator("#between h1")).to_have_text("Finished")
            (run,) = here.finished()
            assert run.verifier_verdict is True and run.person_verdict is True
            assert [(step.decision, step.thought) for step in here.steps()] == [("edit", "this is the button")], "a candidate's action"
            assert here.said == []

    asyncio.run(main())


RIGHT_BEHIND = """keys => {
  for (const key of keys)
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
}"""
"""Keys between which the browser draws no frame and sends no event of its own."""


async def tab_to(page: Page, name: str) -> None:
    for _ in range(40):
        await page.keyboard.press("Tab")
        focused = await page.evaluate("document.activeElement.textContent")
        assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle !== 'none'"), (
            f"{focused!r} does not show its focus"
        )
        if name in focused:
            return
    raise AssertionError(f"nothing named {name!r} is reached by Tab")


async def look_around(page: Page) -> None:
    """Selecting, help, the screen's zoom; and what is announced."""
    said = await page.text_content("#announcer") or ""
    assert "Step 1." in said and "candidates. First:" in said
    await page.keyboard.press("ArrowDown")
    await expect(page.locator("#cards > li").nth(1)).to_have_attribute("aria-current", "true")
    await expect(page.locator("#overlay .mark.selected")).to_have_attribute("data-label", "2")
    await page.keyboard.press("?")
    help_dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    await expect(help_dialog).to_contain_text("Accept candidate 1 … 9")
    assert await unnamed(page) == []
    await page.evaluate(RIGHT_BEHIND, ["Escape", "/"])
    await expect(help_dialog).to_have_count(0)
    await expect(page.get_by_role("dialog", name="Find an element")).to_be_visible()
    await page.keyboard.press("Escape")
    before = await page.locator("#frame").bounding_box()
    await page.keyboard.press("+")
    after = await page.locator("#frame").bounding_box()
    assert before is not None and after is not None and after["width"] > before["width"]
    await page.keyboard.press("0")


async def choose_by_name(page: Page) -> None:
    wanted = (await page.text_content("#instruction") or "").split('"')[1]
    await page.keyboard.press("/")
    await page.keyboard.type(wanted)
    await expect(page.locator("#found li").first).to_have_attribute("aria-selected", "true")
    assert await unnamed(page) == []
    await page.keyboard.press("Enter")
    await expect(page.locator("#meanings button").first).to_be_focused()
    assert await unnamed(page) == []
    await page.keyboard.press("Enter")
    await expect(page.locator("#thought-field")).to_be_focused()
    await page.keyboard.type("this is the button")
    assert await unnamed(page) == []
    assert {"Thought", "Action"} <= set(await all_names(page, "textbox", "combobox"))
    await page.keyboard.press("Control+Enter")
    await expect(page.get_by_role("dialog")).to_contain_text("Was the task done?")
    assert await unnamed(page) == []


@pytest.mark.slow
def test_a_draft_outlives_reloads_and_a_lost_answer_is_not_done_twice(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            await here.add_person("ann")
            await here.add_campaign("miniwob/enter-text")
            page = await new_page(browser, here)
            await log_in(page, "ann")
            await page.goto("/work")
            await deciding(page, 1)
            await page.keyboard.press("o")
            await page.locator("#thought-field").press_sequentially("first the field")
            await page.locator("#action-field").press_sequentially("click [1")
            await page.reload()
            await expect(page.locator("#action-field")).to_have_value("click [1")
            await expect(page.locator("#thought-field")).to_have_value("first the field")

            other = await new_page(browser, here)
            await log_in(other, "ann")
            await other.goto("/work")
            await expect(other.locator("#action-field")).to_have_value("click [1")
            await other.close()

            lost = 0

            async def lose_the_answer(route: Route) -> None:
                nonlocal lost
                lost += 1
                await route.fetch()
                await route.abort("connectionreset")

            await page.route("**/decide", lose_the_answer, times=2)
            await page.locator("#action-field").press_sequentially("]")
            await page.locator("#instruction").click()
            await page.keyboard.press("1")
            await expect(page.locator("#toasts")).to_contain_text("The editor is open")
            await page.keyboard.press("Control+Enter")
            await deciding(page, 2)
            await expect(page.locator("#waiting")).to_be_empty()
            assert lost >= 1
            assert [(step.decision, step.thought) for step in here.steps()] == [("edit", "first the field")]
            assert await page.locator("#toasts .bad").count() == 0
            await expect(page.locator("#editor")).to_be_hidden()

            await page.keyboard.press("e")
            await expect(page.locator("#editor-title")).to_have_text("Edit candidate 1")
            await page.locator("#thought-field").press_sequentially(" (mine)")
            await page.reload()
            await expect(page.locator("#editor-title")).to_have_text("Edit candidate 1")
            await page.keyboard.press("Control+Enter")
            await deciding(page, 3)
            assert [step.decision for step in here.steps()] == ["edit", "edit"], "an edit stays one over a reload"

    asyncio.run(main())
