"""Dragging on the screen of the annotator's page, in a real browser on a real sandbox: a box around a thing, a thing to another place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.annotation.web.page_history import logged_in
from tests.annotation.web.page_parts import chromium, deciding, site
from tests.annotation.web.page_screen import boxes, point_at

pytestmark = pytest.mark.slow


async def drag(page: Page, start: tuple[int, int], end: tuple[int, int], *, lets_go: bool = True) -> None:
    """By hand, between two pixels of the screen."""
    await point_at(page, *start)
    await page.mouse.down()
    await point_at(page, (start[0] + end[0]) // 2, (start[1] + end[1]) // 2)
    await point_at(page, *end)
    await expect(page.locator("#pointer")).to_contain_text(f"{start[0]}, {start[1]} → {end[0]}, {end[1]}")
    if lets_go:
        await page.mouse.up()


class Held:
    """Requests that wait until they are let go."""

    def __init__(self) -> None:
        self._go = asyncio.Event()

    def let_go(self) -> None:
        self._go.set()

    async def later(self, route: Route) -> None:
        await self._go.wait()
        await route.continue_()

    async def refused(self, route: Route) -> None:
        await self._go.wait()
        await route.fulfill(status=422, json={"title": "Wrong request", "detail": "too late", "type": "ConfigError"})


def around(box: dict[str, Any], px: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom, no further left than the screen: a thing may lie at its edge."""
    return max(0, box["x"] - px), box["y"] - px, box["x"] + box["width"] + px, box["y"] + box["height"] + px


def middle(box: dict[str, Any]) -> tuple[int, int]:
    return box["x"] + box["width"] // 2, box["y"] + box["height"] // 2


def test_a_box_around_a_thing_becomes_a_click_on_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            await here.add_campaign("miniwob/enter-text", num_candidates=1)
            page = await logged_in(browser, here, "ann", "annotator")
            await page.goto("/work")
            await deciding(page, 1)
            await page.wait_for_selector("#screen[data-screenshot]")
            button = next(box for box in await boxes(page) if box["name"] == "Submit")
            left, top, right, bottom = around(button, 5)
            start, end = (left, bottom), (right, top)  # from below, where nothing is: the field above may touch the button
            await drag(page, start, end, lets_go=False)
            drawn = page.locator("#overlay .is-drawn")
            assert [int(await drawn.get_attribute(name) or 0) for name in ("x", "y", "width", "height")] == [
                left,
                top,
                right - left,
                bottom - top,
            ]
            await expect(page.locator("#overlay .middle")).to_have_count(1)
            await expect(page.locator("#pointer")).to_contain_text(f"{right - left} × {bottom - top}")
            await page.keyboard.press("Escape")
            await expect(drawn).to_have_count(0)
            await page.mouse.up()
            await expect(page.locator("#meanings")).to_be_hidden()

            await drag(page, start, end)
            await expect(page.locator("#meanings button").first).to_contain_text(f"click [{button['index']}]")
            await expect(drawn).to_have_count(1)
            await page.keyboard.press("Escape")
            await expect(drawn).to_have_count(0)
            first, second, third = Held(), Held(), Held()
            await page.route("**/at", first.later)
            async with page.expect_response("**/at"):
                await drag(page, start, end)
                await expect(drawn).to_have_count(1)
                await page.keyboard.press("Escape")
                await expect(drawn).to_have_count(0)
                first.let_go()
            await expect(page.locator("#meanings")).to_be_hidden()
            await page.unroute("**/at")
            await page.route("**/at", second.refused, times=1)
            await drag(page, start, end)
            async with page.expect_response(lambda answer: answer.url.endswith("/at") and answer.status == 422):
                await drag(page, (right, bottom), (left, top))
                await expect(page.locator("#meanings button").first).to_be_focused()
                second.let_go()
            await page.wait_for_timeout(100)
            await expect(drawn).to_have_count(1)
            await expect(page.locator("#toasts .bad")).to_have_count(0)
            await page.keyboard.press("Escape")
            await page.route("**/at", third.later)
            await drag(page, (right, bottom), (left, top))
            await page.keyboard.press("Enter")
            third.let_go()
            await expect(page.locator("#meanings button").first).to_be_focused()
            assert here.steps() == [], "a key that was too soon for the menu accepts no candidate"
            await page.keyboard.press("Enter")
            await expect(page.locator("#action-field")).to_have_value(f"click [{button['index']}]")
            await page.locator("#thought-field").press_sequentially("I send it as it is.")
            await page.keyboard.press("Control+Enter")
            await expect(page.get_by_role("dialog")).to_contain_text("Was the task done?")
            (step,) = here.steps()
            assert step.action is not None
            x, y = middle(button)
            assert (step.decision, step.action["kind"]) == ("override", "click")
            assert abs(step.action["x"] - x) <= 1 and abs(step.action["y"] - y) <= 1
            assert here.said == []

    asyncio.run(main())


def test_a_thing_dragged_to_another_place_is_dragged_there(tmp_path: Path) -> None:
    """The small box of MiniWoB's drag-box, into the large one: its verifier says whether it arrived."""

    async def main() -> None:
        async with site(tmp_path) as here, chromium() as browser:
            await here.add_campaign("miniwob/drag-box", num_candidates=1)
            page = await logged_in(browser, here, "ann", "annotator")
            await page.goto("/work")
            await deciding(page, 1)
            await page.wait_for_selector("#screen[data-screenshot]")
            found = sorted(await boxes(page), key=lambda box: box["width"] * box["height"])
            small, large = found[0], found[-1]
            await drag(page, middle(small), middle(large))
            await expect(page.locator("#meanings button").first).to_contain_text("drag")
            await page.keyboard.press("Control+Enter")
            await deciding(page, 2)
            (step,) = here.steps()
            assert step.action is not None and step.action["kind"] == "drag"
            assert here.said == []

    asyncio.run(main())
